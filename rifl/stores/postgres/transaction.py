"""The completion record inside a handler's own PostgreSQL transaction (DESIGN §6)."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from rifl.core.errors import LeaseExpired, StaleRpc
from rifl.stores.errors import WrongDatabase
from rifl.stores.postgres.backend import PostgresBackend, identity_of
from rifl.stores.shared.requests import Finish
from rifl.stores.transactions import (
    DbApiTransaction,
    driver_connection,
    driver_connection_async,
)

__all__ = ["commit_record", "commit_record_async", "write_record", "write_record_async"]

_NUMBER = "SELECT CAST(txid_current() AS text)"
_TYPES = ("text", "int8", "int8", "bytea", "text", "bytea", "bytea", "bool")
# What a database says that has no tables or functions of ours.
_NOT_OURS = {"42883", "3F000", "42P01", "42501"}
# What our function says by an error, which keeps the COMMIT behind it from being done.
_REFUSED = "RIFL1"
# A larger record is sent on its own, in binary.
_IN_TEXT = 16 * 1024
_COMMIT = b"COMMIT"


def write_record(transaction: Any, backend: PostgresBackend, finish: Finish) -> None:
    """Write the record in the transaction open on a connection.

    A psycopg connection or cursor, SQLAlchemy's ``Session`` or ``Connection``, or any
    DB-API connection as a ``DbApiTransaction``. Raises ``WrongDatabase`` or
    ``StaleRpc``; the transaction then has to roll back.
    """
    connection = driver_connection(transaction)
    if isinstance(connection, DbApiTransaction):
        _write_by_name(connection, backend, finish)
        return
    if isinstance(connection, psycopg.Cursor):
        connection = connection.connection
    if isinstance(connection, psycopg.AsyncConnection | psycopg.AsyncCursor):
        raise WrongDatabase("an asynchronous connection needs `await rifl.aio.record(...)`")
    if not isinstance(connection, psycopg.Connection):
        raise WrongDatabase(_unknown(connection))
    _check(connection)
    try:
        with connection.cursor(row_factory=tuple_row) as cursor:
            row = cursor.execute(_text(backend), _arguments(backend, finish)).fetchone()
    except psycopg.Error as error:
        raise _translated(error, error.sqlstate, backend) from error
    _judge(row, backend, finish)


async def write_record_async(transaction: Any, backend: PostgresBackend, finish: Finish) -> None:
    """The same for psycopg's and SQLAlchemy's asynchronous ones, or a blocking one."""
    connection = await driver_connection_async(transaction)
    if isinstance(connection, psycopg.AsyncCursor):
        connection = connection.connection
    if not isinstance(connection, psycopg.AsyncConnection):
        write_record(connection, backend, finish)
        return
    _check(connection)
    try:
        async with connection.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(_text(backend), _arguments(backend, finish))
            row = await cursor.fetchone()
    except psycopg.Error as error:
        raise _translated(error, error.sqlstate, backend) from error
    _judge(row, backend, finish)


def commit_record(transaction: Any, backend: PostgresBackend, finish: Finish) -> bool:
    """Write the record and commit, in one round trip; true: it is known to be committed.

    For a psycopg connection or cursor. False: nothing was done, as the transaction is
    something else's to commit, or is in a pipeline. Raises as ``write_record`` does, and
    then nothing is committed; or psycopg's error where nobody can tell.
    """
    connection = transaction
    if isinstance(connection, psycopg.Cursor):
        connection = connection.connection
    if not isinstance(connection, psycopg.Connection) or _is_pipelined(connection):
        return False
    _check_own(connection)
    with psycopg.Cursor(connection, row_factory=tuple_row) as cursor:
        try:
            for statement, arguments in _committing(backend, finish):
                cursor.execute(statement, arguments)
        except psycopg.Error as error:
            _refuse(error, backend, finish)
            raise
        _check_committed(cursor)
    return True


async def commit_record_async(transaction: Any, backend: PostgresBackend, finish: Finish) -> bool:
    """The same for psycopg's asynchronous ones."""
    connection = transaction
    if isinstance(connection, psycopg.AsyncCursor):
        connection = connection.connection
    if not isinstance(connection, psycopg.AsyncConnection) or _is_pipelined(connection):
        return False
    _check_own(connection)
    async with psycopg.AsyncCursor(connection, row_factory=tuple_row) as cursor:
        try:
            for statement, arguments in _committing(backend, finish):
                await cursor.execute(statement, arguments)
        except psycopg.Error as error:
            _refuse(error, backend, finish)
            raise
        _check_committed(cursor)
    return True


def _committing(
    backend: PostgresBackend, finish: Finish
) -> list[tuple[bytes, tuple[Any, ...] | None]]:
    """Return the statements that record and commit: as a rule a single message.

    All in one text, since what has no parameters goes by the simple protocol: there an
    error ends the message, and what follows is not done.
    """
    arguments = _arguments(backend, finish)
    function = f"SELECT {backend.schema}.record_or_fail_1"
    if len(finish.record) > _IN_TEXT:
        text = f"{function}({_placeholders(lambda _: '%s')})"
        return [(text.encode(), arguments), (_COMMIT, None)]
    literals = ", ".join(
        f"CAST({_literal(value)} AS {name})" for value, name in zip(arguments, _TYPES, strict=True)
    )
    return [(f"{function}({literals}); COMMIT".encode(), None)]


def _literal(value: str | bytes | int) -> str:
    """Return a value as SQL has it, whatever the session's settings for text are.

    The texts are digits of ours; what a peer chose is bytes.
    """
    if isinstance(value, bytes):
        return f"decode('{value.hex()}', 'hex')"
    return f"'{value}'"


def _check_committed(cursor: psycopg.Cursor[Any] | psycopg.AsyncCursor[Any]) -> None:
    while cursor.nextset():
        pass
    # To a COMMIT of what has failed the answer is ROLLBACK, which is no error.
    if cursor.statusmessage != "COMMIT":
        raise psycopg.InternalError(f"COMMIT was answered with {cursor.statusmessage}")


def _is_pipelined(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    return connection.pgconn.pipeline_status != PipelineStatus.OFF


def _check_own(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    """Raise ``WrongDatabase`` where it is not for the handler to commit here."""
    _check(connection)
    # What psycopg's own commit() looks at; nothing says so in public.
    if connection._num_transactions or connection._tpc:
        raise WrongDatabase(
            "the transaction is committed at the end of its block: rifl.record there"
        )


def _refuse(error: psycopg.Error, backend: PostgresBackend, finish: Finish) -> None:
    """Raise what an error of the record means, if it means something of ours."""
    if error.sqlstate == _REFUSED:
        _judge((error.diag.message_primary,), backend, finish)
    if error.sqlstate in _NOT_OURS:
        raise WrongDatabase(_elsewhere(backend)) from error


def _write_by_name(transaction: DbApiTransaction, backend: PostgresBackend, finish: Finish) -> None:
    transaction.check()
    where = f"{backend.schema}.record_1"
    try:
        # In autocommit each statement has a transaction of its own, and another number.
        numbers = [transaction.fetch(_NUMBER, ())[0] for _ in range(2)]
        if numbers[0] != numbers[1]:
            raise WrongDatabase("the connection is in autocommit mode: begin a transaction first")
        row = transaction.fetch(
            f"SELECT {where}({_placeholders(transaction.placeholder)})",
            _arguments(backend, finish),
        )
    except Exception as error:
        raise _translated(error, transaction.sqlstate(error), backend) from error
    _judge(row, backend, finish)


def _check(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    if connection.autocommit and connection.info.transaction_status == TransactionStatus.IDLE:
        raise WrongDatabase(
            "the connection is in autocommit mode: begin a transaction before rifl.record"
        )


def _placeholders(placeholder: Any) -> str:
    return ", ".join(f"CAST({placeholder(n)} AS {name})" for n, name in enumerate(_TYPES, 1))


def _text(backend: PostgresBackend) -> bytes:
    text = f"SELECT {backend.schema}.record_1({_placeholders(lambda _: '%s')})"
    return text.encode()


def _arguments(backend: PostgresBackend, finish: Finish) -> tuple[Any, ...]:
    token = finish.token.decode()
    identity = identity_of(finish.call)
    fingerprint = finish.call.fingerprint or b""
    return (backend.store_id, *identity, token, finish.record, fingerprint, backend.durable)


def _judge(row: Any, backend: PostgresBackend, finish: Finish) -> None:
    result = row[0] if row else ""
    rpc_id = finish.call.rpc_id
    if result == "wrong":
        raise WrongDatabase(_elsewhere(backend))
    if result == "gone":
        raise LeaseExpired(f"client id {finish.call.client_id} expired while the call ran")
    if result != "done":
        raise StaleRpc(f"{rpc_id} is recorded, acknowledged, or taken over by another replica")


def _translated(error: Exception, sqlstate: str | None, backend: PostgresBackend) -> Exception:
    return WrongDatabase(_elsewhere(backend)) if sqlstate in _NOT_OURS else error


def _elsewhere(backend: PostgresBackend) -> str:
    return (
        f"the method's records live in {backend.place}, and the transaction is in another "
        "database, or its role may not use the schema: recovery could not find this record"
    )


def _unknown(connection: Any) -> str:
    return (
        f"a psycopg connection or cursor, or SQLAlchemy's over psycopg, is wanted, not a "
        f"{type(connection)!r}; name any other DB-API connection by rifl.DbApiTransaction"
    )
