"""A transaction of the handler's that begins, records and commits by us (DESIGN §6)."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import psycopg
from psycopg import generators
from psycopg.pq import ExecStatus, PipelineStatus, TransactionStatus

from rifl._stores.errors import WrongDatabase
from rifl._stores.postgres.backend import PostgresBackend
from rifl._stores.postgres.riders import (
    Rider,
    begins,
    ends,
    last_statements,
    meaning_of,
    takes_riders,
)
from rifl._stores.postgres.statements import parameters
from rifl._stores.postgres.transaction import (
    NOT_OURS,
    arguments_of,
    elsewhere,
    function_of,
    judge,
    placeholders,
    types_of,
)
from rifl._stores.shared.requests import Written

_Any = psycopg.Connection[Any] | psycopg.AsyncConnection[Any]
# What our function says by an error, which keeps the COMMIT behind it from being done.
_REFUSED = "RIFL1"
# A larger record is sent on its own, in binary.
_IN_TEXT = 16 * 1024
_DONE = (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK)


def begin(transaction: Any) -> bool:
    """Begin a transaction on a psycopg connection or cursor; false: it is none.

    One round trip, as psycopg's own first statement has it. Raises ``WrongDatabase`` if a
    transaction is open already, or in pipeline mode, where no answer is waited for.
    """
    connection = _connection(transaction)
    if not isinstance(connection, psycopg.Connection):
        return False
    _check_idle(connection)
    with connection.lock:
        connection.wait(_beginning(connection))
    _hold(connection)
    return True


async def begin_async(transaction: Any) -> bool:
    """The same for psycopg's asynchronous ones."""
    connection = _connection(transaction)
    if not isinstance(connection, psycopg.AsyncConnection):
        return False
    _check_idle(connection)
    async with connection.lock:
        await connection.wait(_beginning(connection))
    _hold(connection)
    return True


def commit_record(transaction: Any, backend: PostgresBackend, finish: Written) -> bool:
    """Write the record and commit, in one round trip; false: it is none of psycopg's.

    True: the commit was answered. Raises as ``write_record`` does, and then nothing is
    committed; or psycopg's error where nobody can tell.
    """
    connection = _connection(transaction)
    if not isinstance(connection, psycopg.Connection):
        return False
    _check_open(connection)
    riders = _let_go(connection)
    try:
        with connection.lock:
            connection.wait(_committing(connection, backend, finish, riders))
    except psycopg.Error as error:
        _refuse(error, backend, finish, riders)
        raise
    return True


async def commit_record_async(transaction: Any, backend: PostgresBackend, finish: Written) -> bool:
    """The same for psycopg's asynchronous ones."""
    connection = _connection(transaction)
    if not isinstance(connection, psycopg.AsyncConnection):
        return False
    _check_open(connection)
    riders = _let_go(connection)
    try:
        async with connection.lock:
            await connection.wait(_committing(connection, backend, finish, riders))
    except psycopg.Error as error:
        _refuse(error, backend, finish, riders)
        raise
    return True


def was_answered(transaction: Any) -> bool:
    """Whether the server has answered what was sent: after an error, nothing was committed."""
    connection = _connection(transaction)
    if not isinstance(connection, psycopg.Connection | psycopg.AsyncConnection):
        return False
    status = connection.info.transaction_status
    return status in (TransactionStatus.IDLE, TransactionStatus.INERROR)


def rollback(transaction: Any) -> bool:
    """Roll back what ``begin`` began; false: it is none of psycopg's."""
    connection = _connection(transaction)
    if not isinstance(connection, psycopg.Connection):
        return False
    _let_go(connection)
    connection.rollback()
    return True


async def rollback_async(transaction: Any) -> bool:
    """The same for psycopg's asynchronous ones."""
    connection = _connection(transaction)
    if not isinstance(connection, psycopg.AsyncConnection):
        return False
    _let_go(connection)
    await connection.rollback()
    return True


def _hold(connection: _Any) -> None:
    """Have psycopg refuse commit() and rollback(), as it does within its own blocks."""
    # What those look at; nothing says so in public.
    connection._num_transactions += 1
    begins(connection)


def _let_go(connection: _Any) -> list[Rider]:
    if not takes_riders(connection):
        return []
    connection._num_transactions -= 1
    return ends(connection)


def _connection(transaction: Any) -> Any:
    if isinstance(transaction, psycopg.Cursor | psycopg.AsyncCursor):
        return transaction.connection
    return transaction


def _beginning(connection: _Any) -> Generator[Any, Any, None]:
    parts = ["BEGIN"]
    if connection.isolation_level is not None:
        parts.append(f"ISOLATION LEVEL {connection.isolation_level.name.replace('_', ' ')}")
    if connection.read_only is not None:
        parts.append("READ ONLY" if connection.read_only else "READ WRITE")
    if connection.deferrable is not None:
        parts.append("DEFERRABLE" if connection.deferrable else "NOT DEFERRABLE")
    connection.pgconn.send_query(" ".join(parts).encode())
    yield from _answered(connection)


def _committing(
    connection: _Any, backend: PostgresBackend, finish: Written, riders: Sequence[Rider]
) -> Generator[Any, Any, None]:
    """Record, have what rides follow, and commit: as a rule by a single message.

    All in one text, since what has no parameters goes by the simple protocol: there an
    error ends the message, and what follows is not done.
    """
    arguments = arguments_of(backend, finish)
    function = f"SELECT {backend.schema}.{function_of(finish)}_or_fail_1"
    end = f"{last_statements(riders)}; COMMIT" if riders else "COMMIT"
    if len(finish.record) > _IN_TEXT:
        types = types_of(finish)
        called = f"{function}({placeholders(lambda at: f'${at}', types)})".encode()
        connection.pgconn.send_query_params(called, *parameters(types, arguments))
        yield from _answered(connection)
        connection.pgconn.send_query(end.encode())
    else:
        # The function gives the arguments their types: a cast for each would cost more.
        literals = ", ".join(map(literal, arguments))
        connection.pgconn.send_query(f"{function}({literals}); {end}".encode())
    committed = yield from _answered(connection)
    # To a COMMIT of what has failed the answer is ROLLBACK, which is no error.
    if committed != b"COMMIT":
        raise psycopg.InternalError(f"COMMIT was answered with {committed!r}")


def _answered(connection: _Any) -> Generator[Any, Any, bytes | None]:
    """Return what the last command of a message was answered; raises what one failed with."""
    for result in (yield from generators.execute(connection.pgconn)):
        if result.status not in _DONE:
            raise psycopg.errors.error_from_result(result)
    status: bytes | None = result.command_status
    return status


def literal(value: str | bytes | int) -> str:
    """Return a value as SQL has it, whatever the session's settings for text are.

    The texts are digits of ours; what a peer chose is bytes.
    """
    if isinstance(value, bytes):
        return f"E'\\\\x{value.hex()}'"
    return f"'{value}'"


def _check_idle(connection: _Any) -> None:
    _check_mode(connection)
    if connection.info.transaction_status not in (
        TransactionStatus.IDLE,
        TransactionStatus.UNKNOWN,
    ):
        raise WrongDatabase("a transaction is open on the connection already")


def _check_open(connection: _Any) -> None:
    """Raise ``WrongDatabase`` unless there is a transaction, and it is ours to commit."""
    _check_mode(connection)
    if connection.info.transaction_status == TransactionStatus.IDLE:
        raise WrongDatabase(
            "the connection is in autocommit mode, or its transaction was ended before its block"
        )
    if connection._num_transactions > takes_riders(connection) or connection._tpc:
        raise WrongDatabase("the transaction is within a block of psycopg's, which commits it")


def _check_mode(connection: _Any) -> None:
    if connection.pgconn.pipeline_status != PipelineStatus.OFF:
        raise WrongDatabase("in pipeline mode there is rifl.record only")


def _refuse(
    error: psycopg.Error, backend: PostgresBackend, finish: Written, riders: Sequence[Rider]
) -> None:
    """Raise what an error of the record, or of what rides, means, if it means something of ours."""
    if error.sqlstate == _REFUSED:
        judge((error.diag.message_primary,), backend, finish)
    meaning = meaning_of(error, riders)
    if meaning is not None:
        raise meaning from error
    if error.sqlstate in NOT_OURS:
        raise WrongDatabase(elsewhere(backend)) from error
