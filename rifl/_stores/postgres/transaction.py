"""The completion record inside a handler's own PostgreSQL transaction (DESIGN §6)."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.rows import tuple_row

from _rifl_ground.drivers import driver_connection, driver_connection_async, is_asyncpg
from _rifl_ground.postgres.marked import commits_by_itself
from rifl._stores.drivers import DbApiTransaction, check_blocking
from rifl._stores.errors import WrongDatabase
from rifl._stores.postgres.backend import PostgresBackend
from rifl._stores.postgres.request_statements import acknowledged_of, identity_of
from rifl._stores.shared.requests import Finish, MoveInside, RecordUnclaimed, Written
from rifl._stores.shared.transactions import NeedsClaim
from rifl.core._shared.errors import LeaseExpired, StaleRpc

_NUMBER = "SELECT CAST(txid_current() AS text)"
_RECORD_TYPES = ("text", "int8", "int8", "bytea", "text", "bytea", "bytea", "bool")
_UNCLAIMED_TYPES = (
    *("text", "int8", "int8", "text", "text", "bytea", "bytea", "bytea", "int8"),
    *("int8multirange", "int8", "bool"),
)
_MOVE_TYPES = ("text", "bytea", "bytea", "bytea", "bool")
# What is written in a handler's transaction: what the function that writes it is called, but for
# its version, and the types of its parameters.
SHAPES: dict[type[Written], tuple[str, tuple[str, ...]]] = {
    RecordUnclaimed: ("record_unclaimed", _UNCLAIMED_TYPES),
    Finish: ("record", _RECORD_TYPES),
    MoveInside: ("move", _MOVE_TYPES),
}
# What a database without rifl's tables or functions says.
NOT_OURS = {"42883", "3F000", "42P01", "42501"}


def write_record(
    transaction: Any, backend: PostgresBackend, finish: Written, *, checked: bool = False
) -> None:
    """Write the record in the transaction open on a connection.

    A psycopg connection or cursor, SQLAlchemy's ``Session`` or ``Connection``, or any
    DB-API connection as a ``DbApiTransaction``. ``checked``: there is one. Raises
    ``WrongDatabase`` or ``StaleRpc``; the transaction then has to roll back.
    """
    connection = driver_connection(transaction)
    if isinstance(connection, DbApiTransaction):
        _write_by_name(connection, backend, finish, checked=checked)
        return
    if isinstance(connection, psycopg.Cursor):
        connection = connection.connection
    if not isinstance(connection, psycopg.Connection):
        check_blocking(connection, "await rifl.aio.record(...)")
        raise WrongDatabase(_unknown(connection))
    _check(connection)
    try:
        with connection.cursor(row_factory=tuple_row) as cursor:
            row = cursor.execute(_text(backend, finish), arguments_of(backend, finish)).fetchone()
    except psycopg.Error as error:
        raise _translated(error, error.sqlstate, backend) from error
    judge(row, backend, finish)


async def write_record_async(
    transaction: Any, backend: PostgresBackend, finish: Written, *, checked: bool = False
) -> None:
    """The same for psycopg's, asyncpg's and SQLAlchemy's asynchronous ones, or a blocking one."""
    connection = await driver_connection_async(transaction)
    if is_asyncpg(connection):
        await _write_by_asyncpg(connection, backend, finish)
        return
    if isinstance(connection, psycopg.AsyncCursor):
        connection = connection.connection
    if not isinstance(connection, psycopg.AsyncConnection):
        write_record(connection, backend, finish, checked=checked)
        return
    _check(connection)
    try:
        async with connection.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(_text(backend, finish), arguments_of(backend, finish))
            row = await cursor.fetchone()
    except psycopg.Error as error:
        raise _translated(error, error.sqlstate, backend) from error
    judge(row, backend, finish)


async def _write_by_asyncpg(connection: Any, backend: PostgresBackend, finish: Written) -> None:
    # One that is closed says so itself.
    if not connection.is_closed() and not connection.is_in_transaction():
        raise WrongDatabase(
            "the connection is in autocommit mode: begin a transaction before rifl.record"
        )
    function, types = SHAPES[type(finish)]
    where = f"{backend.schema}.{function}_1"
    # Each as text: asyncpg has no other form of some of these types.
    parameters = placeholders(lambda at: f"CAST(${at} AS text)", types)
    arguments = [_as_text(each) for each in arguments_of(backend, finish)]
    try:
        row = await connection.fetchrow(f"SELECT {where}({parameters})", *arguments)
    except Exception as error:
        raise _translated(error, getattr(error, "sqlstate", None), backend) from error
    judge(row, backend, finish)


def _as_text(value: Any) -> str:
    """Return an argument as PostgreSQL reads it."""
    if isinstance(value, bytes):
        return rf"\x{value.hex()}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _write_by_name(
    transaction: DbApiTransaction, backend: PostgresBackend, finish: Written, *, checked: bool
) -> None:
    transaction.check()
    function, types = SHAPES[type(finish)]
    where = f"{backend.schema}.{function}_1"
    try:
        # In autocommit each statement has a transaction of its own, and another number.
        numbers = [transaction.fetch(_NUMBER, ())[0] for _ in range(0 if checked else 2)]
        if len(set(numbers)) > 1:
            raise WrongDatabase("the connection is in autocommit mode: begin a transaction first")
        row = transaction.fetch(
            f"SELECT {where}({placeholders(transaction.placeholder, types)})",
            arguments_of(backend, finish),
        )
    except Exception as error:
        raise _translated(error, transaction.sqlstate(error), backend) from error
    judge(row, backend, finish)


def _check(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    if commits_by_itself(connection):
        raise WrongDatabase(
            "the connection is in autocommit mode: begin a transaction before rifl.record"
        )


def placeholders(placeholder: Any, types: tuple[str, ...]) -> str:
    """Return the function's parameters as SQL."""
    return ", ".join(f"CAST({placeholder(n)} AS {name})" for n, name in enumerate(types, 1))


def _text(backend: PostgresBackend, finish: Written) -> bytes:
    function, types = SHAPES[type(finish)]
    parameters = placeholders(lambda _: "%s", types)
    return f"SELECT {backend.schema}.{function}_1({parameters})".encode()


def arguments_of(backend: PostgresBackend, finish: Written) -> tuple[Any, ...]:
    """Return what the function that writes it is told, in the order of its types."""
    if isinstance(finish, MoveInside):
        key, expected, value = finish.move
        return (backend.store_id, key.encode(), expected or b"", value, backend.durable)
    token = finish.token.decode()
    call = finish.call
    fingerprint = call.fingerprint or b""
    if isinstance(finish, RecordUnclaimed):
        return (
            backend.store_id,
            call.client_id,
            call.seq,
            token,
            finish.owner,
            finish.record,
            fingerprint,
            call.method.encode(),
            call.first_incomplete,
            acknowledged_of(call),
            finish.window,
            backend.durable,
        )
    identity = identity_of(call)
    return (backend.store_id, *identity, token, finish.record, fingerprint, backend.durable)


def judge(row: Any, backend: PostgresBackend, finish: Written) -> None:
    """Raise what the function's result means, unless it is done."""
    result = row[0] if row else ""
    rpc_id = finish.call.rpc_id
    if result == "wrong":
        raise WrongDatabase(elsewhere(backend))
    if result == "gone":
        raise LeaseExpired(f"client id {finish.call.client_id} expired while the call ran")
    if result == "isolation":
        raise NeedsClaim("the transaction is not READ COMMITTED: it cannot decide about the call")
    if result != "done" and isinstance(finish, MoveInside):
        raise StaleRpc(f"{finish.move.key} moved meanwhile")
    if result != "done":
        raise StaleRpc(f"{rpc_id} is recorded, acknowledged, or taken over by another replica")


def _translated(error: Exception, sqlstate: str | None, backend: PostgresBackend) -> Exception:
    return WrongDatabase(elsewhere(backend)) if sqlstate in NOT_OURS else error


def elsewhere(backend: PostgresBackend) -> str:
    """Return what is wrong with a transaction in another database."""
    return (
        f"the method's records live in {backend.place}, and the transaction is in another "
        "database, or its role may not use the schema: recovery could not find this record"
    )


def _unknown(connection: Any) -> str:
    return (
        "a connection of psycopg or asyncpg, or SQLAlchemy's over one, is wanted, not a "
        f"{type(connection)!r}; name any other DB-API connection by rifl.DbApiTransaction"
    )
