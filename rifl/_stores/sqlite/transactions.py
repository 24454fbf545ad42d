"""Handlers' transactions over SQLite, with the completion record in them (DESIGN §6)."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from _rifl_ground.counting import all_of, by_sqlite, noted
from _rifl_ground.drivers import driver_connection, driver_connection_async
from _rifl_ground.sqlite.owned import LentState, Owned, keep, kept
from _rifl_ground.threads import begin_in_thread, in_thread
from rifl._stores.alchemy import TransactionWatch, watch
from rifl._stores.drivers import DbApiTransaction, check_blocking, holder
from rifl._stores.errors import TransactionEnded, WrongDatabase
from rifl._stores.sqlite.attempt import SqliteAttempt, of_sqlite
from rifl._stores.sqlite.blocks import AioSharedBlock, SharedBlock, check_no_block
from rifl._stores.sqlite.connection_proxy import ConnectionProxy, proxy_of
from rifl._stores.sqlite.database import Database
from rifl._stores.sqlite.record_row import (
    MovedRows,
    RecordRow,
    write_record,
    write_record_async,
    write_row,
)
from rifl._stores.sqlite.shared_transactions import BlockTurn, SharedTransactions
from rifl._stores.transactions import RecordingTransactions
from rifl.core._serving.client_entry import Attempt
from rifl.core._serving.policy import Kind
from rifl.core._shared.errors import StaleRpc
from rifl.core._shared.record import CompletionRecord

_ENDED = {
    LentState.UNDONE: "the transaction of the rifl.transaction was rolled back within its block, "
    "by a statement (OR ROLLBACK, ON CONFLICT ROLLBACK, RAISE(ROLLBACK)), an interrupt, a full "
    "disk or SQLAlchemy's rollback(): nothing of it is there. Let what failed leave the block",
    LentState.UNKNOWN: "something was written within the rifl.transaction that is no part of its "
    "transaction, and is committed: by a statement before which sqlite3 begins none "
    "(executescript, WITH ... INSERT), in autocommit (isolation_level = None) after a statement "
    "had rolled everything back, or on a connection that was closed. Execute an INSERT, UPDATE or "
    "DELETE first, or begin by hand; see guarantees.md",
}


_ATOMIC, _OPEN, _UNKNOWN = Kind.ATOMIC, LentState.OPEN, LentState.UNKNOWN
# How often, and for how long each time, a statement of a handler that is given up is interrupted.
_INTERRUPTS, _INTERRUPTS_S = 40, 0.05


class SqliteTransactions(RecordingTransactions):
    """Records in transactions of sqlite3, aiosqlite and SQLAlchemy, and in shared blocks.

    Invariant: a record is committed only of an attempt that was not sealed when its row
    was written, under the file's lock (``_check_not_sealed``).
    """

    def __init__(
        self,
        database_of: Callable[[Attempt], Database],
        row_of: Callable[[SqliteAttempt, CompletionRecord], RecordRow | MovedRows],
    ) -> None:
        """``row_of``: an attempt's row; raises where it may not be recorded any more."""
        self._database_of = database_of
        self._row_of = row_of
        # By the id of what holds it.
        self._begun: dict[int, _Begun] = {}

    def record(self, attempt: Attempt, record: CompletionRecord, transaction: Any) -> None:
        """Write the record in the handler's sqlite3 transaction; raises to undo it."""
        mine = of_sqlite(attempt)
        if (proxy := proxy_of(transaction)) is not None:
            self._record_in_block(mine, record, proxy)
            return
        check_no_block(mine)
        connection = transaction
        if not isinstance(connection, sqlite3.Connection):
            connection = _plain(driver_connection(connection))
        if not isinstance(connection, sqlite3.Connection):
            check_blocking(connection, "await rifl.aio.record(...)")
            raise WrongDatabase(
                f"a sqlite3.Connection, or SQLAlchemy's over sqlite3, is wanted, not a "
                f"{type(connection)!r}"
            )
        row = self._row_of(mine, record)
        # Noted first: if a record stands already, that is what will be answered, whatever
        # became of one it shared before.
        mine.recorded, mine.shared = record, None
        mine.unsynced = not write_record(connection, row)
        _check_not_sealed(mine)

    async def record_async(
        self, attempt: Attempt, record: CompletionRecord, transaction: Any
    ) -> None:
        """The same for an asynchronous connection (aiosqlite, or SQLAlchemy's over it)."""
        mine = of_sqlite(attempt)
        if (proxy := proxy_of(transaction)) is not None:
            self._record_in_block(mine, record, proxy)
            return
        check_no_block(mine)
        connection = _plain(await driver_connection_async(transaction))
        if isinstance(connection, sqlite3.Connection):
            self.record(attempt, record, connection)
            return
        if not (hasattr(connection, "in_transaction") and hasattr(connection, "isolation_level")):
            raise WrongDatabase(f"an aiosqlite connection is wanted, not a {type(connection)!r}")
        row = self._row_of(mine, record)
        mine.recorded, mine.shared = record, None
        mine.unsynced = not await write_record_async(connection, row)
        _check_not_sealed(mine)

    def begin(self, transaction: Any) -> None:
        """Begin the transaction that ``commit`` ends, or have its driver do so."""
        super().begin(transaction)
        connection = _plain(driver_connection(transaction))
        if isinstance(connection, sqlite3.Connection):
            self._lend(transaction, kept(connection) or keep(connection), connection)

    async def begin_async(self, transaction: Any) -> None:
        """The same for an asynchronous connection."""
        await super().begin_async(transaction)
        connection = _plain(await driver_connection_async(transaction))
        if isinstance(connection, sqlite3.Connection):
            self._lend(transaction, kept(connection) or keep(connection), connection)
        elif isinstance(raw := getattr(connection, "_conn", None), sqlite3.Connection):
            # aiosqlite's, which is its thread's.
            owned = kept(raw) or await connection._execute(keep, raw)
            self._lend(transaction, owned, raw, connection)

    def _lend(
        self, transaction: Any, owned: Owned, connection: sqlite3.Connection, worker: Any = None
    ) -> None:
        watched = watch(transaction)
        owned.lend(connection, may_roll_back=watched is not None)
        self._begun[id(holder(transaction))] = _Begun(owned, watched, worker)

    def rollback(self, transaction: Any) -> bool:
        """Roll back what ``begin`` began."""
        begun = self._begun.pop(id(holder(transaction)), None)
        state = LentState.UNDONE if begun is None else begun.take_back()
        super().rollback(transaction)
        if begun is not None:
            begun.end(state)
        return True

    async def rollback_async(self, transaction: Any) -> bool:
        """The same for an asynchronous connection."""
        begun = self._begun.pop(id(holder(transaction)), None)
        state = LentState.UNDONE if begun is None else begun.take_back()
        await super().rollback_async(transaction)
        if begun is not None:
            begun.end(state)
        return True

    def commit(self, attempt: Attempt, record: CompletionRecord, transaction: Any) -> None:
        """Write the record in the handler's own transaction, then commit that."""
        with self._ours(transaction):
            super().commit(attempt, record, transaction)

    async def commit_async(
        self, attempt: Attempt, record: CompletionRecord, transaction: Any
    ) -> None:
        """The same for an asynchronous connection."""
        with self._ours(transaction):
            await super().commit_async(attempt, record, transaction)

    @contextlib.contextmanager
    def _ours(self, transaction: Any) -> Iterator[None]:
        """Commit what was begun within; raises ``TransactionEnded`` where it is not that."""
        begun = self._begun.get(id(holder(transaction)))
        if begun is None:
            yield
            return
        state = begun.take_back()
        if state is not _OPEN:
            raise TransactionEnded(_ENDED[state])
        yield
        del self._begun[id(holder(transaction))]
        begun.end(state)

    def revoke(self, attempt: Attempt) -> bool:
        """Roll back what a handler that does not end is in, and have it commit nothing more."""
        mine = of_sqlite(attempt)
        # Who begins a transaction looks at this after it has begun.
        mine.revoked = mine.sealed = True
        if isinstance(mine.shared, BlockTurn):
            return mine.shared.revoke()
        begun = self._begun.get(id(holder(mine.lent)))
        if begun is None:
            return True
        ended = begin_in_thread(begun.owned.revoke)
        for _ in range(_INTERRUPTS):
            try:
                return ended.result(_INTERRUPTS_S)
            except TimeoutError:
                begun.owned.interrupt()
        return False

    async def revoke_async(self, attempt: Attempt) -> bool:
        """The same on an event loop."""
        begun = self._begun.get(id(holder(attempt.lent)))
        if begun is None or begun.worker is None:
            return await in_thread(self.revoke, attempt)
        attempt.revoked = of_sqlite(attempt).sealed = True
        ended = asyncio.ensure_future(begun.worker._execute(begun.owned.revoke))
        for _ in range(_INTERRUPTS):
            if (await asyncio.wait([ended], timeout=_INTERRUPTS_S))[0]:
                return ended.exception() is None and bool(ended.result())
            begun.owned.interrupt()
        return False

    def block(self, attempt: Attempt, remaining_s: float | None) -> SharedBlock:
        """Return the call's turn in the transaction that calls of its database share."""
        return SharedBlock(self._shared(attempt), of_sqlite(attempt), remaining_s)

    def block_async(self, attempt: Attempt, remaining_s: float | None) -> AioSharedBlock:
        """The same for a coroutine."""
        return AioSharedBlock(self._shared(attempt), of_sqlite(attempt), remaining_s)

    def has_block(self, attempt: Attempt) -> bool:
        """Whether the call has a block that has not ended, or waits for one."""
        return of_sqlite(attempt).sharing

    def _shared(self, attempt: Attempt) -> SharedTransactions:
        if attempt.policy.kind is not _ATOMIC:
            raise WrongDatabase(f"{attempt.call.method} is not declared atomic")
        return self._database_of(attempt).shared

    def _record_in_block(
        self, attempt: SqliteAttempt, record: CompletionRecord, transaction: ConnectionProxy
    ) -> None:
        turn = attempt.shared
        if not isinstance(turn, BlockTurn) or turn.connection is not transaction:
            raise WrongDatabase("the connection is lent to another call")
        if turn.record is not None:
            raise WrongDatabase("rifl.record is called once in a transaction")
        row = self._row_of(attempt, record)

        def write(connection: sqlite3.Connection) -> None:
            try:
                write_row(connection.cursor(), row)
            except StaleRpc:
                turn.met = True
                raise
            _check_not_sealed(attempt)

        def hold(_: sqlite3.Connection) -> None:
            turn.write, turn.record, attempt.recorded = write, record, record

        transaction.within(hold)


class _Begun(NamedTuple):
    """A ``rifl.transaction`` over a connection of the handler's.

    ``worker``: aiosqlite's connection, whose thread has sqlite3's.
    """

    owned: Owned
    watched: TransactionWatch | None
    worker: Any = None

    def take_back(self) -> LentState:
        """Have it be ours to end; returns what became of it."""
        owned = self.owned
        state = owned.take_back()
        if self.watched is not None:
            self.watched.end()
            if state is _OPEN and self.watched.is_over:
                # What SQLAlchemy began then, it cannot have committed.
                return LentState.UNDONE
        return state

    def end(self, state: LentState) -> None:
        """It has ended; raises ``TransactionEnded`` where that did not undo all of it."""
        error = sys.exc_info()[1]
        if self.owned.refused and error is not None:
            error.add_note(
                f"rifl.transaction refused {self.owned.refused}: it begins the transaction, and "
                "commits it at the end of its block (a savepoint is yours)"
            )
        if error is not None and not self.owned.has_written:
            # Of which connection an error of sqlite3's is, it does not say. Who has written waits
            # for no lock.
            for each in all_of(error):
                if isinstance(each, sqlite3.Error) and by_sqlite(each) is False:
                    noted(each)
        self.owned.free()
        if state is _UNKNOWN:
            raise TransactionEnded(_ENDED[state])


def _plain(transaction: Any) -> Any:
    """Return the connection of a cursor, and of one that was named."""
    if isinstance(transaction, sqlite3.Cursor):
        return transaction.connection
    return transaction.connection if isinstance(transaction, DbApiTransaction) else transaction


def _check_not_sealed(attempt: SqliteAttempt) -> None:
    """Raise ``StaleRpc`` where the handler has ended.

    The caller holds the file's lock, which the written row has taken. A reader of what the
    handler left seals the attempt first, then writes to the file, then reads.
    """
    if attempt.sealed:
        raise StaleRpc(f"the handler of {attempt.call.rpc_id} has ended")
