"""Marked transactions on psycopg's connections: begun, held against other code, and undone."""

from __future__ import annotations

import functools
from typing import Any

import psycopg
from psycopg.generators import execute
from psycopg.pq import ExecStatus, TransactionStatus

from _rifl_ground.counting import noted
from _rifl_ground.postgres.owned import READ_COMMITTED, READ_MARK, Fate, TransactionMark

_Any = psycopg.Connection[Any] | psycopg.AsyncConnection[Any]
_DONE = (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK)
_INTRANS, _IDLE, _INERROR = (
    TransactionStatus.INTRANS,
    TransactionStatus.IDLE,
    TransactionStatus.INERROR,
)
# In the dictionary of a connection on which psycopg refuses commit() and rollback() for us.
_HELD = "_rifl_held"


def mark_open(
    connection: psycopg.Connection[Any], mark: TransactionMark | None = None
) -> TransactionMark:
    """Mark the transaction of a connection, which is begun if there is none; return the mark.

    ``mark``: one that knows already what settings are put back.
    """
    mark = mark or TransactionMark.new()
    results = send(connection, _beginning(connection) + mark.message)
    return mark.begun(results)


async def mark_open_async(connection: psycopg.AsyncConnection[Any]) -> TransactionMark:
    """The same for an asynchronous connection."""
    mark = TransactionMark.new()
    results = await send_async(connection, _beginning(connection) + mark.message)
    return mark.begun(results)


def _beginning(connection: _Any) -> bytes:
    """Return what begins a transaction as the connection says; nothing if one is open."""
    if connection.pgconn.transaction_status == _INTRANS:
        return b""
    return _begun_as(connection.isolation_level, connection.read_only, connection.deferrable)


@functools.cache
def _begun_as(
    isolation: psycopg.IsolationLevel | None, read_only: bool | None, deferrable: bool | None
) -> bytes:
    parts = ["BEGIN"]
    if isolation is not None:
        parts.append(f"ISOLATION LEVEL {isolation.name.replace('_', ' ')}")
    if read_only is not None:
        parts.append("READ ONLY" if read_only else "READ WRITE")
    if deferrable is not None:
        parts.append("DEFERRABLE" if deferrable else "NOT DEFERRABLE")
    return " ".join(parts).encode() + b"; "


def send(connection: psycopg.Connection[Any], message: bytes) -> list[Any]:
    """Send statements without parameters in one message; returns libpq's results."""
    with connection.lock:
        connection.pgconn.send_query(message)
        return answered(connection.wait(execute(connection.pgconn)))


async def send_async(connection: psycopg.AsyncConnection[Any], message: bytes) -> list[Any]:
    """The same for an asynchronous connection."""
    async with connection.lock:
        connection.pgconn.send_query(message)
        return answered(await connection.wait(execute(connection.pgconn)))


def answered(results: list[Any]) -> list[Any]:
    """Return what the commands of a message were answered; raises what one failed with."""
    # No command follows one that failed.
    if results[-1].status not in _DONE:
        raise psycopg.errors.error_from_result(results[-1])
    return results


def check_committed(results: list[Any]) -> None:
    """Raise ``psycopg.InternalError`` unless the last command of a message was a COMMIT."""
    # To a COMMIT of what has failed the answer is ROLLBACK, which is no error.
    answer = results[-1].command_status
    if answer != b"COMMIT":
        raise psycopg.InternalError(f"COMMIT was answered with {answer!r}")


def commits_by_itself(connection: _Any) -> bool:
    """Whether each statement on a connection is committed by itself."""
    return connection.autocommit and (connection.info.transaction_status == _IDLE)


def note_errors(connection: _Any) -> None:
    """Have errors that a connection raises be marked, until ``forget_errors`` (``counting``)."""
    # All that it sends waits there.
    wait: Any = connection.wait

    def waiting(*given: Any, **named: Any) -> Any:
        try:
            return wait(*given, **named)
        except psycopg.Error as error:
            noted(error)
            raise

    async def waiting_async(*given: Any, **named: Any) -> Any:
        try:
            return await wait(*given, **named)
        except psycopg.Error as error:
            noted(error)
            raise

    is_async = isinstance(connection, psycopg.AsyncConnection)
    connection.wait = waiting_async if is_async else waiting  # type: ignore[method-assign]


def forget_errors(connection: _Any) -> None:
    """Have them be marked no more; idempotent."""
    connection.__dict__.pop("wait", None)


def hold(connection: _Any) -> None:
    """Have psycopg refuse commit() and rollback(), as it does within its own blocks."""
    # What those look at; nothing says so in public.
    connection._num_transactions += 1
    connection.__dict__[_HELD] = True


def is_held(connection: _Any) -> bool:
    """Whether psycopg refuses them for us."""
    return _HELD in connection.__dict__


def let_go(connection: _Any) -> None:
    """Have it refuse them no more; idempotent."""
    if connection.__dict__.pop(_HELD, False):
        connection._num_transactions -= 1


def undo(connection: psycopg.Connection[Any], mark: TransactionMark | None) -> Fate:
    """Roll back what is open on a connection; returns what became of the marked transaction."""
    try:
        if mark is None:
            connection.rollback()
            return Fate.UNDONE
        if connection.closed:
            return _closed(connection)
        status = connection.info.transaction_status
        return _fate(mark, status, send(connection, _undoing(status)))
    except psycopg.Error:
        connection.close()
        return Fate.UNDONE if mark is None else Fate.CUT_OFF


async def undo_async(
    connection: psycopg.AsyncConnection[Any], mark: TransactionMark | None
) -> Fate:
    """The same for an asynchronous connection."""
    try:
        if mark is None:
            await connection.rollback()
            return Fate.UNDONE
        if connection.closed:
            return _closed(connection)
        status = connection.info.transaction_status
        return _fate(mark, status, await send_async(connection, _undoing(status)))
    except psycopg.Error:
        await connection.close()
        return Fate.UNDONE if mark is None else Fate.CUT_OFF


def _closed(connection: _Any) -> Fate:
    # Lost with the server, or by the network, it was not ended by anybody's mistake.
    return Fate.CUT_OFF if connection.broken else Fate.CLOSED


def _undoing(status: TransactionStatus) -> bytes:
    """Return what rolls a transaction back, and reads what tells whose it was."""
    parts = [READ_COMMITTED]
    if status != _IDLE:
        parts.insert(0, "ROLLBACK")
    if status == _INTRANS:
        parts.insert(0, READ_MARK)
    return "; ".join(parts).encode()


def _fate(mark: TransactionMark, status: TransactionStatus, results: list[Any]) -> Fate:
    read = [each.get_value(0, 0) for each in (results[0], results[-1])]
    first, committed = [None if each is None else each.decode() for each in read]
    failed = status == _INERROR
    return mark.fate(first if status == _INTRANS else None, committed, failed=failed)
