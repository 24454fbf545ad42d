"""Blocks of deliveries in a transaction that they share, in PostgreSQL (DESIGN §6, DESIGN-LOG §15).

Runs of handlers without a gRPC caller, of which each moves the same row on from where the one
before left it, are one transaction while another run is at hand. Each is in a savepoint. The row
is moved once, from where the first found it to where the last left it, with the commit. The
thread that waits for the outcome of any of them commits.
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any

import psycopg
import psycopg_pool
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from _rifl_ground.counting import all_of
from _rifl_ground.loans import Loan
from _rifl_ground.postgres.address import PostgresAddress
from _rifl_ground.postgres.connections import Pools
from _rifl_ground.postgres.lent import (
    LentAsyncConnection,
    LentAsyncCursor,
    LentConnection,
    LentCursor,
    take_back,
    take_back_async,
)
from _rifl_ground.threads import in_thread
from rifl._stores.drivers import holder
from rifl._stores.errors import WrongDatabase
from rifl._stores.pending import Pending
from rifl._stores.postgres.backend import PostgresBackend
from rifl._stores.postgres.commits import begin, begin_async
from rifl._stores.postgres.shared_group import Group, Part
from rifl._stores.postgres.telling import Teller
from rifl._stores.rows import Move, RowCall
from rifl._stores.shared.attempts import SharedAttempt
from rifl._stores.shared.backend import BackendError
from rifl._stores.shared.transactions import FinishOf
from rifl.core._serving.client_entry import Attempt
from rifl.core._shared.errors import NotRecorded, StaleRpc, StoreUnavailable
from rifl.core._shared.record import CompletionRecord

# So many runs share a transaction, at most.
_MOST = 100
# Errors that pass when others release their locks: serialization, deadlock, no lock.
_CROWDED = {"40001", "40P01", "55P03"}
_OVER = (
    "the rifl.transaction that lent this connection has ended: nothing of this was done. Await all "
    "tasks and join all threads within the block"
)
_RUNS_ON = (
    "a statement that the handler had left running neither ended nor was cancelled: its connection "
    "was closed, and nothing of the block is there"
)
_GIVEN_UP = "the handler did not end, and its message was passed over: nothing of it is committed"
_NONE = "the store has no transactions that calls share: give a connection"


class _Cursor(LentCursor):
    """What handlers execute by."""

    refused = WrongDatabase
    lender = "rifl.transaction"


class _AsyncCursor(LentAsyncCursor):
    """The same for a coroutine's."""

    refused = WrongDatabase
    lender = "rifl.transaction"


class _Block:
    """One run's part of a transaction."""

    def __init__(self, of: PostgresBlocks, attempt: SharedAttempt, call: RowCall) -> None:
        self._of = of
        self._attempt = attempt
        self._call = call
        (self._move,) = call.moves
        self._group: Group
        self._loan = Loan(lambda: WrongDatabase(_OVER))
        self._lent: Any = None
        self._record: CompletionRecord | None = None
        self._ending = threading.Lock()
        self._ended = False

    def hold(self, record: CompletionRecord, transaction: Any) -> None:
        """Keep the answer for the end of the block."""
        if holder(transaction) is not self._lent:
            raise WrongDatabase("rifl.record is given another connection than rifl.transaction")
        if self._record is not None:
            raise WrongDatabase("rifl.record is called once in a transaction")
        self._record = record

    def _claims(self) -> bool:
        """Whether it is the caller's to end: not where a handler was given up, and ends later."""
        with self._ending:
            ended, self._ended = self._ended, True
            return not ended

    def _begins(self) -> None:
        if self._attempt.block is not None:
            raise WrongDatabase("rifl.transaction cannot be nested")
        if self._attempt.recorded is not None:
            raise StaleRpc("the call has put its record into a transaction already")

    def _unavailable(self, error: Exception) -> StoreUnavailable:
        """Have it be no handler's failure that no transaction could begin."""
        found = StoreUnavailable(f"no transaction could be begun: {error}")
        self._attempt.shared = refused = Pending()
        refused.fail(found)
        return found

    def _crowded(self, error: BaseException | None) -> None:
        """Note that it failed for what others hold, maybe those before it in its transaction."""
        found = () if error is None else all_of(error)
        if any(isinstance(each, psycopg.Error) and each.sqlstate in _CROWDED for each in found):
            self._attempt.crowded = self._group.runs > 0

    def _missing(self) -> NotRecorded:
        return NotRecorded(
            f"{self._call.method} left its rifl.transaction without rifl.record: it was rolled back"
        )

    def _joins(self, record: CompletionRecord) -> bool:
        """Have what was done stand with the others'; whether their transaction goes on."""
        attempt, group = self._attempt, self._group
        self._of.finish_of(attempt, record)
        attempt.recorded = record
        group.value = self._move.value
        group.runs += 1
        if not self._call.more or group.runs >= _MOST:
            return False
        attempt.shared = Part(group, record)
        return True


class _SyncBlock(_Block):
    """For a thread: ``with``."""

    def __enter__(self) -> Any:
        """Begin, or go on after the run before; raises ``StoreUnavailable``."""
        self._begins()
        try:
            group = self._of.open(self._move.key, self._move.expected)
            if group is None:
                group = self._of.begin(self._call, self._move)
            elif saving := group.save():
                group.connection.execute(saving)
        except (psycopg.Error, psycopg_pool.PoolTimeout, BackendError, OSError) as error:
            raise self._unavailable(error) from error
        self._group, self._attempt.block = group, self
        self._lent = LentConnection(group.connection, self._loan)
        # Who revokes looks at the block after it has noted that.
        if self._attempt.revoked:
            self.revoke()
            raise StaleRpc(_GIVEN_UP)
        return self._lent

    def revoke(self) -> None:
        """End it from outside, its part undone, and commit those before it."""
        if self._claims():
            take_back(self._group.connection, self._loan, 0.0)
            self._group.undo()
            self._group.end()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Keep what the handler did, or undo it; commit where no other run is at hand."""
        attempt, group, record = self._attempt, self._group, self._record
        attempt.block = None
        if not self._claims():
            if exc is None:
                raise StaleRpc(_GIVEN_UP)
            return
        try:
            ended = take_back(group.connection, self._loan)
        except BaseException:
            group.undo()
            raise
        if exc is not None or record is None or not ended:
            self._crowded(exc)
            group.undo()
            if exc is None:
                raise self._missing() if ended else WrongDatabase(_RUNS_ON)
            return
        try:
            if self._joins(record):
                return
        except BaseException:
            group.undo()
            raise
        group.commit()
        attempt.committed = record


class _AsyncBlock(_Block):
    """For a coroutine: ``async with``."""

    async def __aenter__(self) -> Any:
        """Begin, or go on after the run before; raises ``StoreUnavailable``."""
        self._begins()
        try:
            group = await self._of.open_async(self._move.key, self._move.expected)
            if group is None:
                group = await self._of.begin_async(self._call, self._move)
            elif saving := group.save():
                await group.connection.execute(saving)
        except (psycopg.Error, psycopg_pool.PoolTimeout, BackendError, OSError) as error:
            raise self._unavailable(error) from error
        self._group, self._attempt.block = group, self
        self._lent = LentAsyncConnection(group.connection, self._loan)
        if self._attempt.revoked:
            await self.revoke_async()
            raise StaleRpc(_GIVEN_UP)
        return self._lent

    async def revoke_async(self) -> None:
        """End it from outside, its part undone, and commit those before it."""
        if self._claims():
            await take_back_async(self._group.connection, self._loan, 0.0)
            await self._group.undo_async()
            await self._group.end_async()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Keep what the handler did, or undo it; commit where no other run is at hand."""
        attempt, group, record = self._attempt, self._group, self._record
        attempt.block = None
        if not self._claims():
            if exc is None:
                raise StaleRpc(_GIVEN_UP)
            return
        try:
            ended = await take_back_async(group.connection, self._loan)
        except BaseException:
            await group.undo_async()
            raise
        if exc is not None or record is None or not ended:
            self._crowded(exc)
            await group.undo_async()
            if exc is None:
                raise self._missing() if ended else WrongDatabase(_RUNS_ON)
            return
        try:
            if self._joins(record):
                return
        except BaseException:
            await group.undo_async()
            raise
        await group.commit_async()
        attempt.committed = record


class PostgresBlocks:
    """Blocks of deliveries, on connections of their own: handlers may change their settings."""

    def __init__(
        self,
        address: PostgresAddress,
        backend: PostgresBackend,
        finish_of: FinishOf,
        teller: Teller,
    ) -> None:
        """``finish_of``: raises where a run may not commit; ``teller``: tells of commits."""
        self.backend = backend
        self.finish_of = finish_of
        self.teller = teller
        self._address = address
        self._lock = threading.Lock()
        self._pools: Pools | None = None
        # By the key of the row, the transactions that are open.
        self._groups: dict[str, Group] = {}

    def block(self, attempt: Attempt, remaining_s: float | None) -> _SyncBlock:
        """Return a run's part in a transaction; ``WrongDatabase`` for a call of gRPC's."""
        return _SyncBlock(self, *_run(attempt))

    def block_async(self, attempt: Attempt, remaining_s: float | None) -> _AsyncBlock:
        """The same for a coroutine."""
        return _AsyncBlock(self, *_run(attempt))

    def has_block(self, attempt: Attempt) -> bool:
        """Whether a run has a block that has not ended."""
        return isinstance(attempt, SharedAttempt) and attempt.block is not None

    def revoke(self, attempt: SharedAttempt) -> None:
        """Undo the part of a run that does not end, and commit those before it."""
        if isinstance(block := attempt.block, _SyncBlock):
            block.revoke()
        elif (group := self._group_of(attempt)) is not None:
            group.end()

    async def revoke_async(self, attempt: SharedAttempt) -> None:
        """The same on the event loop."""
        if isinstance(block := attempt.block, _AsyncBlock):
            await block.revoke_async()
        elif block is not None:
            await in_thread(self.revoke, attempt)
        elif (group := self._group_of(attempt)) is not None:
            await group.end_async()

    def _group_of(self, attempt: SharedAttempt) -> Group | None:
        """Return the transaction in which those before a run are, or the run is itself."""
        call = attempt.call
        keys = [each.key for each in call.moves] if isinstance(call, RowCall) else []
        return next((self._groups[key] for key in keys if key in self._groups), None)

    def close(self) -> None:
        """Let connections go."""
        with self._lock:
            pools, self._pools = self._pools, None
        if pools is not None:
            pools.close()

    # -- what blocks do -----------------------------------------------------------------

    def open(self, key: str, expected: bytes | None) -> Group | None:
        """Return the transaction that a run goes on in; None: it begins one."""
        group = self._groups.get(key)
        if group is None or (group.value == expected and group.runs and not group.is_async):
            return group
        # Of a turn without a waiting caller.
        group.end()
        return None

    async def open_async(self, key: str, expected: bytes | None) -> Group | None:
        """The same for a coroutine."""
        group = self._groups.get(key)
        if group is None or (group.value == expected and group.runs and group.is_async):
            return group
        await group.end_async()
        return None

    def begin(self, call: RowCall, move: Move) -> Group:
        """Begin a transaction."""
        self.backend.continuity.check()
        connection = self._opened().blocking.getconn()
        try:
            begin(connection)
        except BaseException:
            self.give_back(connection)
            raise
        connection.cursor_factory = _Cursor
        group = self._groups[move.key] = Group(self, call, move, connection)
        return group

    async def begin_async(self, call: RowCall, move: Move) -> Group:
        """The same for a coroutine."""
        self.backend.continuity.check()
        pool = await self._opened().awaiting()
        connection = await pool.getconn()
        try:
            await begin_async(connection)
        except BaseException:
            await self.give_back_async(connection)
            raise
        connection.cursor_factory = _AsyncCursor
        group = self._groups[move.key] = Group(self, call, move, connection)
        return group

    def forget(self, group: Group) -> None:
        """It takes no further run."""
        if self._groups.get(group.key) is group:
            del self._groups[group.key]

    def give_back(self, connection: Any) -> None:
        """Have a connection be used again, unless it is in doubt."""
        connection.row_factory = tuple_row
        connection.cursor_factory = psycopg.Cursor
        if connection.info.transaction_status is not TransactionStatus.IDLE:
            connection.close()
        pools = self._pools
        if pools is None:
            # It was closed meanwhile.
            connection.close()
        else:
            pools.blocking.putconn(connection)

    async def give_back_async(self, connection: Any) -> None:
        """The same for a coroutine's."""
        connection.row_factory = tuple_row
        connection.cursor_factory = psycopg.AsyncCursor
        if connection.info.transaction_status is not TransactionStatus.IDLE:
            await connection.close()
        pools = self._pools
        if pools is None:
            await connection.close()
        else:
            await (await pools.awaiting()).putconn(connection)

    def _opened(self) -> Pools:
        with self._lock:
            if self._pools is None:
                self._pools = Pools(self._address)
                self._pools.greeting = self.backend.continuity.greeting()
                self._pools.blocking.open()
            return self._pools


def _run(attempt: Attempt) -> tuple[SharedAttempt, RowCall]:
    call = attempt.call
    if not isinstance(attempt, SharedAttempt) or not isinstance(call, RowCall):
        raise WrongDatabase(_NONE)
    if len(call.moves) != 1:
        raise WrongDatabase(f"{call.method} is not declared atomic")
    return attempt, call
