"""Handlers' transactions over SQLite, with the completion record in them (DESIGN §6)."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

from rifl._stores.drivers import DbApiTransaction, driver_connection, driver_connection_async
from rifl._stores.errors import WrongDatabase
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
        if attempt.policy.kind is not Kind.ATOMIC:
            raise WrongDatabase(f"{attempt.call.method} is not declared atomic")
        return self._database_of(attempt).shared

    def _record_in_block(
        self, attempt: SqliteAttempt, record: CompletionRecord, transaction: ConnectionProxy
    ) -> None:
        turn = attempt.shared
        if not isinstance(turn, BlockTurn) or turn.connection is not transaction:
            raise WrongDatabase("the connection is lent to another call")
        row = self._row_of(attempt, record)

        def write(connection: sqlite3.Connection) -> None:
            try:
                write_row(connection.cursor(), row)
            except StaleRpc:
                turn.met = True
                raise
            _check_not_sealed(attempt)
            turn.record = attempt.recorded = record

        # All of it: nobody else ends the turn in between.
        transaction.within(write)


def _plain(transaction: Any) -> Any:
    """Return the connection of a cursor, and of one that was named."""
    if isinstance(transaction, sqlite3.Cursor):
        return transaction.connection
    return transaction.connection if isinstance(transaction, DbApiTransaction) else transaction


def _check_not_sealed(attempt: SqliteAttempt) -> None:
    """Raise ``StaleRpc`` where the handler has ended.

    To be asked with the file's lock, which the row that was written has taken: whoever
    looks what the handler left seals the attempt first, then writes to the file, then reads.
    """
    if attempt.sealed:
        raise StaleRpc(f"the handler of {attempt.call.rpc_id} has ended")
