"""A transaction of the handler's that begins, records and commits by us (DESIGN §6)."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg.generators import execute
from psycopg.pq import PipelineStatus, TransactionStatus

from _rifl_ground.postgres.marked import (
    answered,
    check_committed,
    hold,
    is_held,
    let_go,
    mark_open,
    mark_open_async,
    undo,
    undo_async,
)
from _rifl_ground.postgres.owned import Fate, TransactionMark, is_ended
from _rifl_ground.postgres.riders import Begun, begins, ends, last_statements, meaning_of
from rifl._stores.errors import TransactionEnded, WrongDatabase
from rifl._stores.postgres.backend import PostgresBackend
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
_NONE_OPEN = (TransactionStatus.IDLE, TransactionStatus.UNKNOWN)
_INERROR, _IDLE, _OFF = TransactionStatus.INERROR, TransactionStatus.IDLE, PipelineStatus.OFF
# A larger record is sent on its own, in binary.
_IN_TEXT = 16 * 1024


def begin(transaction: Any) -> bool:
    """Begin a transaction on a psycopg connection or cursor; false: it is none.

    One round trip, as psycopg's own first statement has it. Raises ``WrongDatabase`` if a
    transaction is open already, or in pipeline mode, where no answer is waited for.
    """
    connection = _connection(transaction)
    if not isinstance(connection, psycopg.Connection):
        return False
    _check_idle(connection)
    begins(connection, Begun(mark_open(connection), []))
    hold(connection)
    return True


async def begin_async(transaction: Any) -> bool:
    """The same for psycopg's asynchronous ones."""
    connection = _connection(transaction)
    if not isinstance(connection, psycopg.AsyncConnection):
        return False
    _check_idle(connection)
    begins(connection, Begun(await mark_open_async(connection), []))
    hold(connection)
    return True


def commit_record(transaction: Any, backend: PostgresBackend, finish: Written) -> bool:
    """Write the record and commit, in one round trip; false: it is none of psycopg's.

    True: the commit was answered. Raises as ``write_record`` does, and then nothing is
    committed; or psycopg's error if the outcome is unknown.
    """
    connection = _connection(transaction)
    if not isinstance(connection, psycopg.Connection):
        return False
    _check_open(connection)
    begun = _let_go(connection)
    try:
        with connection.lock:
            alone = len(finish.record) > _IN_TEXT
            if alone:
                if begun.mark is not None:
                    connection.pgconn.send_query(begun.mark.put_back)
                    answered(connection.wait(execute(connection.pgconn)))
                _send_alone(connection, backend, finish, begun.mark)
                answered(connection.wait(execute(connection.pgconn)))
            _send_commit(connection, backend, None if alone else finish, begun)
            check_committed(answered(connection.wait(execute(connection.pgconn))))
    except psycopg.Error as error:
        _refuse(error, connection, backend, finish, begun)
        raise
    return True


async def commit_record_async(transaction: Any, backend: PostgresBackend, finish: Written) -> bool:
    """The same for psycopg's asynchronous ones."""
    connection = _connection(transaction)
    if not isinstance(connection, psycopg.AsyncConnection):
        return False
    _check_open(connection)
    begun = _let_go(connection)
    try:
        async with connection.lock:
            alone = len(finish.record) > _IN_TEXT
            if alone:
                if begun.mark is not None:
                    connection.pgconn.send_query(begun.mark.put_back)
                    answered(await connection.wait(execute(connection.pgconn)))
                _send_alone(connection, backend, finish, begun.mark)
                answered(await connection.wait(execute(connection.pgconn)))
            _send_commit(connection, backend, None if alone else finish, begun)
            check_committed(answered(await connection.wait(execute(connection.pgconn))))
    except psycopg.Error as error:
        _refuse(error, connection, backend, finish, begun)
        raise
    return True


def was_answered(transaction: Any) -> bool:
    """Whether the server has answered what was sent: after an error, nothing was committed."""
    connection = _connection(transaction)
    if not isinstance(connection, _CONNECTIONS):
        return False
    status = connection.info.transaction_status
    return status in (_IDLE, _INERROR)


def rollback(transaction: Any) -> Fate | None:
    """Roll back what ``begin`` began, and what runs in its place; None: it is none of psycopg's.

    A connection that cannot is closed. Raises nothing.
    """
    connection = _connection(transaction)
    if not isinstance(connection, psycopg.Connection):
        return None
    return undo(connection, _let_go(connection).mark)


async def rollback_async(transaction: Any) -> Fate | None:
    """The same for psycopg's asynchronous ones."""
    connection = _connection(transaction)
    if not isinstance(connection, psycopg.AsyncConnection):
        return None
    return await undo_async(connection, _let_go(connection).mark)


def _let_go(connection: _Any) -> Begun:
    let_go(connection)
    return ends(connection)


def _connection(transaction: Any) -> Any:
    if isinstance(transaction, _CURSORS):
        return transaction.connection
    return transaction


def or_fail(
    backend: PostgresBackend, finish: Written, mark: TransactionMark | None
) -> tuple[str, tuple[str, ...], tuple[Any, ...]]:
    """Return the function that writes it or fails, its types, and what it is told."""
    kind: Any = type(finish)
    function, types = _shape(kind)
    token = "" if mark is None else mark.token
    return function, types, (*arguments_of(backend, finish), token)


@functools.cache
def _shape(kind: type[Written]) -> tuple[str, tuple[str, ...]]:
    function, types = SHAPES[kind]
    return f"{function}_or_fail_2", (*types, "text")


def _send_alone(
    connection: _Any, backend: PostgresBackend, finish: Written, mark: TransactionMark | None
) -> None:
    """Send a large record by itself."""
    function, types, arguments = or_fail(backend, finish, mark)
    parameter_list = placeholders(lambda at: f"${at}", types)
    called = f"SELECT {backend.schema}.{function}({parameter_list})".encode()
    connection.pgconn.send_query_params(called, *parameters(types, arguments))


def _send_commit(
    connection: _Any, backend: PostgresBackend, finish: Written | None, begun: Begun
) -> None:
    """Send the record, unless that was done, what rides, and the commit, in a single message.

    All in one text, since what has no parameters goes by the simple protocol: there an
    error ends the message, and what follows is not done.
    """
    mark, riders = begun
    message = b"COMMIT"
    if riders:
        message = b"%b; %b" % (last_statements(riders).encode(), message)
    if finish is not None:
        called = with_literals(backend.schema, *or_fail(backend, finish, mark))
        message = b"%b; %b" % (called.encode(), message)
        if mark is not None:
            message = b"%b; %b" % (mark.put_back, message)
    connection.pgconn.send_query(message)


def with_literals(
    schema: str, function: str, types: tuple[str, ...], arguments: Sequence[Any]
) -> str:
    """Return a function's call with its arguments as SQL has them.

    The session's settings for text do not matter: the texts are digits that rifl writes, and
    what a peer chose is bytes. The function gives them their types: casts would cost more.
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
    check_mode(connection)
    if connection.pgconn.transaction_status not in _NONE_OPEN:
        raise WrongDatabase("a transaction is open on the connection already")


def _check_open(connection: _Any) -> None:
    """Raise ``WrongDatabase`` unless there is a transaction, and it is ours to commit."""
    check_mode(connection)
    status = connection.pgconn.transaction_status
    if status == TransactionStatus.UNKNOWN:
        raise psycopg.OperationalError("the connection is closed")
    if status == _INERROR:
        raise psycopg.errors.InFailedSqlTransaction(
            "a statement of the transaction has failed: it cannot be committed"
        )
    if status == _IDLE:
        raise WrongDatabase(
            "the connection is in autocommit mode, or its transaction was ended before its block"
        )
    if connection._num_transactions > is_held(connection) or connection._tpc:
        raise WrongDatabase("the transaction is within a block of psycopg's, which commits it")


def check_mode(connection: _Any) -> None:
    """Raise ``WrongDatabase`` in pipeline mode, where no answer is waited for."""
    if connection.pgconn.pipeline_status != _OFF:
        raise WrongDatabase("in pipeline mode there is rifl.record only")


def _refuse(
    error: psycopg.Error,
    connection: _Any,
    backend: PostgresBackend,
    finish: Written,
    begun: Begun,
) -> None:
    """Raise the rifl error that an error of the record, or of what rides, means, if any."""
    if begun.mark is not None and is_ended(error.sqlstate, error.diag.message_primary):
        # What became of it tells who rolls back.
        begins(connection, Begun(begun.mark._replace(is_lost=True), []))
        raise TransactionEnded("the transaction was ended before its block") from error
    if error.sqlstate == _REFUSED:
        judge((error.diag.message_primary,), backend, finish)
    meaning = meaning_of(error, begun.riders)
    if meaning is not None:
        raise meaning from error
    if error.sqlstate in NOT_OURS:
        raise WrongDatabase(elsewhere(backend)) from error
