"""A transaction of the handler's that begins, records and commits by us (DESIGN §6)."""

from __future__ import annotations

import functools
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
    SHAPES,
    arguments_of,
    elsewhere,
    judge,
    placeholders,
)
from rifl._stores.shared.requests import Written

_Any = psycopg.Connection[Any] | psycopg.AsyncConnection[Any]
_CURSORS = (psycopg.Cursor, psycopg.AsyncCursor)
_CONNECTIONS = (psycopg.Connection, psycopg.AsyncConnection)
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
        _send_begin(connection)
        connection.wait(_answered(connection))
    _hold(connection)
    return True


async def begin_async(transaction: Any) -> bool:
    """The same for psycopg's asynchronous ones."""
    connection = _connection(transaction)
    if not isinstance(connection, psycopg.AsyncConnection):
        return False
    _check_idle(connection)
    async with connection.lock:
        _send_begin(connection)
        await connection.wait(_answered(connection))
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
            alone = _send_alone(connection, backend, finish)
            if alone:
                connection.wait(_answered(connection))
            _send_commit(connection, backend, None if alone else finish, riders)
            _check_committed(connection.wait(_answered(connection)))
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
            alone = _send_alone(connection, backend, finish)
            if alone:
                await connection.wait(_answered(connection))
            _send_commit(connection, backend, None if alone else finish, riders)
            _check_committed(await connection.wait(_answered(connection)))
    except psycopg.Error as error:
        _refuse(error, backend, finish, riders)
        raise
    return True


def was_answered(transaction: Any) -> bool:
    """Whether the server has answered what was sent: after an error, nothing was committed."""
    connection = _connection(transaction)
    if not isinstance(connection, _CONNECTIONS):
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
    if isinstance(transaction, _CURSORS):
        return transaction.connection
    return transaction


def _send_begin(connection: _Any) -> None:
    begun = _begun(connection.isolation_level, connection.read_only, connection.deferrable)
    connection.pgconn.send_query(begun)


@functools.cache
def _begun(
    isolation: psycopg.IsolationLevel | None, read_only: bool | None, deferrable: bool | None
) -> bytes:
    parts = ["BEGIN"]
    if isolation is not None:
        parts.append(f"ISOLATION LEVEL {isolation.name.replace('_', ' ')}")
    if read_only is not None:
        parts.append("READ ONLY" if read_only else "READ WRITE")
    if deferrable is not None:
        parts.append("DEFERRABLE" if deferrable else "NOT DEFERRABLE")
    return " ".join(parts).encode()


def _send_alone(connection: _Any, backend: PostgresBackend, finish: Written) -> bool:
    """Send a large record by itself; false: it goes with the commit."""
    if len(finish.record) <= _IN_TEXT:
        return False
    function, types = SHAPES[type(finish)]
    parameter_list = placeholders(lambda at: f"${at}", types)
    called = f"SELECT {backend.schema}.{function}_or_fail_1({parameter_list})".encode()
    connection.pgconn.send_query_params(called, *parameters(types, arguments_of(backend, finish)))
    return True


def _send_commit(
    connection: _Any, backend: PostgresBackend, finish: Written | None, riders: Sequence[Rider]
) -> None:
    """Send the record, unless that was done, what rides, and the commit, in a single message.

    All in one text, since what has no parameters goes by the simple protocol: there an
    error ends the message, and what follows is not done.
    """
    message = f"{last_statements(riders)}; COMMIT" if riders else "COMMIT"
    if finish is not None:
        function, types = SHAPES[type(finish)]
        arguments = arguments_of(backend, finish)
        called = with_literals(backend.schema, f"{function}_or_fail_1", types, arguments)
        message = f"{called}; {message}"
    connection.pgconn.send_query(message.encode())


def _check_committed(answer: bytes | None) -> None:
    # To a COMMIT of what has failed the answer is ROLLBACK, which is no error.
    if answer != b"COMMIT":
        raise psycopg.InternalError(f"COMMIT was answered with {answer!r}")


def _answered(connection: _Any) -> Generator[Any, Any, bytes | None]:
    """Return what the last command of a message was answered; raises what one failed with."""
    for result in (yield from generators.execute(connection.pgconn)):
        if result.status not in _DONE:
            raise psycopg.errors.error_from_result(result)
    status: bytes | None = result.command_status
    return status


def with_literals(
    schema: str, function: str, types: tuple[str, ...], arguments: Sequence[Any]
) -> str:
    """Return a function's call with its arguments as SQL has them.

    Whatever the session's settings for text are: the texts are digits of ours, and what a peer
    chose is bytes. The function gives them their types: a cast for each would cost more.
    """
    text, binary = _literals(schema, function, types)
    values = list(arguments)
    for at in binary:
        values[at] = values[at].hex()
    return text % tuple(values)


@functools.cache
def _literals(schema: str, function: str, types: tuple[str, ...]) -> tuple[str, list[int]]:
    """Return such a call with room for the arguments, and which of them are bytes."""
    literals = ", ".join(r"E'\\x%s'" if each == "bytea" else "'%s'" for each in types)
    binary = [at for at, each in enumerate(types) if each == "bytea"]
    return f"SELECT {schema}.{function}({literals})", binary


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
