"""``postgresql://``: one database, many server replicas (DESIGN §6)."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

import psycopg

from _rifl_ground.counting import Counts, all_of, by_sqlstate, is_noted, noted
from _rifl_ground.postgres.lent import cut_off
from _rifl_ground.postgres.marked import forget_errors, note_errors
from _rifl_ground.postgres.owned import Fate
from _rifl_ground.threads import in_thread
from rifl._stores.codec import RecordCodec
from rifl._stores.drivers import DbApiTransaction, committer, holder
from rifl._stores.errors import TransactionEnded
from rifl._stores.postgres.asyncpg_blocks import AsyncpgBlock
from rifl._stores.postgres.backend import PostgresBackend
from rifl._stores.postgres.commits import (
    begin,
    begin_async,
    commit_record,
    commit_record_async,
    rollback,
    rollback_async,
    was_answered,
)
from rifl._stores.postgres.lease_storage import PostgresLeaseStorage
from rifl._stores.postgres.opening import open_backend, store_id_at
from rifl._stores.postgres.others import Other
from rifl._stores.postgres.shared_blocks import PostgresBlocks
from rifl._stores.postgres.store_address import store_address
from rifl._stores.postgres.telling import Teller
from rifl._stores.postgres.transaction import write_record, write_record_async
from rifl._stores.rows import RowCall
from rifl._stores.shared.attempts import SharedAttempt, of_shared
from rifl._stores.shared.requests import Written
from rifl._stores.shared.store import SharedStore
from rifl._stores.shared.transactions import FencedTransactions, FinishOf
from rifl.core._serving.client_entry import Attempt
from rifl.core._serving.later import Later
from rifl.core._serving.unclaimed import BY_COMMIT, BY_RECORD
from rifl.core._shared.record import CompletionRecord


class PostgresTransactions(FencedTransactions):
    """Records in transactions of psycopg, asyncpg, SQLAlchemy, or named DB-API connections."""

    def __init__(
        self,
        backend: PostgresBackend,
        finish_of: FinishOf,
        always: Callable[[str, str], None],
        teller: Teller,
        blocks: PostgresBlocks,
    ) -> None:
        super().__init__(finish_of, always)
        self._backend = backend
        self._blocks = blocks
        self._teller = teller
        # Of other drivers than psycopg, by the id of what holds them.
        self._others: dict[int, Any] = {}

    def record(self, attempt: Attempt, record: CompletionRecord, transaction: Any) -> None:
        """Write the record inside the handler's own transaction, or keep it for a block's end."""
        if isinstance(attempt, SharedAttempt) and attempt.block is not None:
            attempt.block.hold(record, transaction)
        else:
            super().record(attempt, record, transaction)

    async def record_async(
        self, attempt: Attempt, record: CompletionRecord, transaction: Any
    ) -> None:
        """The same for an asynchronous connection."""
        if isinstance(attempt, SharedAttempt) and attempt.block is not None:
            attempt.block.hold(record, transaction)
        else:
            await super().record_async(attempt, record, transaction)

    def _write(self, transaction: Any, finish: Written) -> None:
        write_record(transaction, self._backend, finish)

    async def _write_async(self, transaction: Any, finish: Written) -> None:
        await write_record_async(transaction, self._backend, finish)

    def begin(self, transaction: Any) -> None:
        """Begin the transaction that ``commit`` ends."""
        if not begin(transaction):
            super().begin(transaction)
            self._others[id(holder(transaction))] = Other.begin(transaction)

    async def begin_async(self, transaction: Any) -> None:
        """The same for an asynchronous connection."""
        if not await begin_async(transaction):
            await super().begin_async(transaction)
            self._others[id(holder(transaction))] = await Other.begin_async(transaction)

    def rollback(self, transaction: Any) -> bool:
        """Roll back what ``begin`` began."""
        self._forget_errors(transaction)
        fate = rollback(transaction)
        if fate is None:
            other = self._others.pop(id(holder(transaction)), None)
            fate = Fate.UNDONE if other is None else other.rollback(transaction)
            super().rollback(transaction)
        return _is_undone(fate)

    async def rollback_async(self, transaction: Any) -> bool:
        """The same for an asynchronous connection."""
        self._forget_errors(transaction)
        fate = await rollback_async(transaction)
        if fate is None:
            other = self._others.pop(id(holder(transaction)), None)
            fate = Fate.UNDONE if other is None else await other.rollback_async(transaction)
            await super().rollback_async(transaction)
        return _is_undone(fate)

    def commit(self, attempt: Attempt, record: CompletionRecord, transaction: Any) -> None:
        """Write the record and commit: one round trip on a psycopg connection."""
        if isinstance(attempt.call, RowCall):
            self._forget_errors(transaction)
        finish = self._noted(attempt, record)
        began = self._teller.begun()
        try:
            if commit_record(transaction, self._backend, finish):
                # Only now: an error leaves it to be read back.
                attempt.committed = record
            else:
                commit = committer(transaction)
                other = self._others.get(id(holder(transaction)))
                if other is not None:
                    other.check(transaction)
                with self._noting(attempt):
                    write_record(transaction, self._backend, finish, checked=other is not None)
                if other is not None:
                    other.send_riders()
                commit()
                self._others.pop(id(holder(transaction)), None)
        except BaseException as error:
            self._note_failure(attempt, transaction, began, error)
            raise
        self._teller.done(began)

    async def commit_async(
        self, attempt: Attempt, record: CompletionRecord, transaction: Any
    ) -> None:
        """The same for an asynchronous connection."""
        if isinstance(attempt.call, RowCall):
            self._forget_errors(transaction)
        finish = self._noted(attempt, record)
        began = self._teller.begun()
        try:
            if await commit_record_async(transaction, self._backend, finish):
                attempt.committed = record
            else:
                commit = committer(transaction)
                other = self._others.get(id(holder(transaction)))
                if other is not None:
                    await other.check_async(transaction)
                with self._noting(attempt):
                    await write_record_async(
                        transaction, self._backend, finish, checked=other is not None
                    )
                if other is not None:
                    await other.send_riders_async()
                if isinstance(other, AsyncpgBlock) and other.own is not None:
                    commit = other.own.commit
                if inspect.isawaitable(done := commit()):
                    await done
                self._others.pop(id(holder(transaction)), None)
        except BaseException as error:
            self._note_failure(attempt, transaction, began, error)
            raise
        self._teller.done(began)

    def revoke(self, attempt: Attempt) -> bool:
        """Roll back what a handler that does not end is in, and have it commit nothing more."""
        mine = of_shared(attempt)
        # Who begins a transaction looks at this after it has begun.
        mine.revoked = True
        self._blocks.revoke(mine)
        self._cut_off(mine.lent)
        return True

    async def revoke_async(self, attempt: Attempt) -> bool:
        """The same on the event loop."""
        mine = of_shared(attempt)
        mine.revoked = True
        await self._blocks.revoke_async(mine)
        await in_thread(self._cut_off, mine.lent)
        return True

    def _cut_off(self, transaction: Any) -> None:
        """End the session of a handler's own connection; of other drivers' none is known."""
        if (connection := self._psycopg(transaction)) is not None:
            cut_off(connection)

    def _psycopg(self, transaction: Any) -> Any:
        """Return psycopg's connection that was begun on, if it is one."""
        other = self._others.get(id(holder(transaction)))
        connection = holder(transaction) if other is None else other.connection
        known = isinstance(connection, psycopg.Connection | psycopg.AsyncConnection)
        return connection if known else None

    def note_errors(self, transaction: Any) -> None:
        """Have errors of the handler's connection be known as its."""
        if (connection := self._psycopg(transaction)) is not None:
            note_errors(connection)

    def _forget_errors(self, transaction: Any) -> None:
        """Have that end; of other drivers what says an SQLSTATE is taken for the connection's."""
        if (connection := self._psycopg(transaction)) is not None:
            forget_errors(connection)
        elif (error := sys.exc_info()[1]) is not None:
            for each in all_of(error):
                if _sqlstate(each) is not None and not isinstance(each, psycopg.Error):
                    noted(each)

    def _note_failure(
        self, attempt: Attempt, transaction: Any, began: float, error: BaseException
    ) -> None:
        """Note on the attempt what is known of it where a commit failed."""
        answered = was_answered(transaction)
        if attempt.unclaimed and answered:
            # Nothing was committed.
            attempt.recorded = None
        self._note_refusal(attempt, error)
        if not answered:
            self._teller.unanswered(began, error)


def by_postgres(error: BaseException) -> Counts:
    """Say whether an error of a handler is its own; in doubt of another connection's."""
    sqlstate = _sqlstate(error)
    if sqlstate is None and not isinstance(error, psycopg.Error):
        return True
    if not is_noted(error):
        return None
    # A connection that was lost says no SQLSTATE.
    lost = sqlstate is None and isinstance(error, psycopg.OperationalError)
    return False if lost else by_sqlstate(sqlstate)


def _sqlstate(error: BaseException) -> str | None:
    return DbApiTransaction.sqlstate(error) if isinstance(error, Exception) else None


def _is_undone(fate: Fate) -> bool:
    """Whether all of a transaction is undone; raises ``TransactionEnded`` where it was ended."""
    if fate in (Fate.COMMITTED, Fate.LOST, Fate.CLOSED):
        raise TransactionEnded(
            f"the transaction of the rifl.transaction was ended within its block: {fate.value}. "
            "What it wrote may be committed, without the call's record. Let neither the handler "
            "nor the repositories that it calls commit, roll back or RESET ALL; see guarantees.md"
        )
    return fate is Fate.UNDONE


class PostgresStore(SharedStore):
    """Completion records in PostgreSQL 14 or newer; see ``PostgresStoreAddress`` for the URL.

    What is acknowledged survives what the server's settings make it survive: they are
    checked when the store is opened. That raises ``StoreNotDurable``,
    ``StoreUnreachable`` (also for a database that is read-only), ``StoreSchemaTooNew``,
    ``StoreCorrupt`` or ``UnsupportedStore``. A failover to an asynchronous standby may
    lose acknowledged commits whatever the settings: replicas notice a database that is
    behind their own beats, and stop.

    The records of atomic methods go into the transactions of handlers, in the very same
    database: a method that names another is refused, since no server would read them there.
    """

    leases: PostgresLeaseStorage
    unclaimed = (BY_COMMIT, BY_RECORD)

    def __init__(self, url: str, *, codec: RecordCodec | None = None) -> None:
        address = store_address(url)
        self._postgres = open_backend(address)
        super().__init__(
            self._postgres,
            PostgresLeaseStorage(self._postgres),
            beat_s=address.beat_s,
            dead_after_s=address.dead_after_s,
            codec=codec,
            late_after_s=self._postgres.longest_s,
            unresolved=self._postgres.unresolved,
        )
        finish_of = self._settlement.finish_of
        teller = Teller(self._clock, self._observe)
        self._blocks = PostgresBlocks(address, self._postgres, finish_of, teller)
        self.shared_blocks = self._blocks
        self.transactions = PostgresTransactions(
            self._postgres, finish_of, self._unclaimed_runs.always, teller, self._blocks
        )
        self.rows = self._rows(self._postgres.store_id, by_postgres)

    def committed(self, attempt: Attempt) -> CompletionRecord | Later | None:
        """Return what the handler's transaction left, or who waits for one that is shared."""
        if attempt.committed is not None:
            return attempt.committed
        if isinstance(attempt, SharedAttempt) and attempt.shared is not None:
            return attempt.shared
        return super().committed(attempt)

    def close(self) -> None:
        """Close it, and the connections of shared transactions."""
        self._blocks.close()
        super().close()

    def _is_own(self, url: str) -> bool:
        """Whether a URL leads to the store's own tables: its id is asked for there."""
        if not url.startswith(("postgresql://", "postgres://")):
            return False
        return store_id_at(store_address(url)) == self._postgres.store_id
