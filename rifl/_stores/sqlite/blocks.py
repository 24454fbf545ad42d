"""Blocks of handlers in a shared transaction, for threads and for coroutines."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from types import TracebackType
from typing import Any

from rifl._stores.errors import WrongDatabase
from rifl._stores.pending import Pending
from rifl._stores.rows import RowCall
from rifl._stores.sqlite.attempt import SqliteAttempt
from rifl._stores.sqlite.connection_proxy import ConnectionProxy
from rifl._stores.sqlite.shared_transactions import BlockTurn, SharedTransactions
from rifl._stores.sqlite.write_queue import LONGEST_WAIT_S, Next
from rifl.core._shared.errors import NotRecorded, StaleRpc, StoreUnavailable
from rifl.core._shared.record import CompletionRecord

_GATHER = Next.GATHER


class _Block:
    """What entering and leaving a shared transaction means to the call."""

    _turn: BlockTurn

    def __init__(
        self, of: SharedTransactions, attempt: SqliteAttempt, remaining_s: float | None
    ) -> None:
        self._of = of
        self._attempt = attempt
        left_s = LONGEST_WAIT_S if remaining_s is None else max(0.0, remaining_s)
        self._limit_s = min(left_s, LONGEST_WAIT_S)

    def _begin(self) -> None:
        attempt = self._attempt
        with self._of.blocks:
            check_no_block(attempt)
            attempt.sharing = True
        if attempt.recorded is not None:
            attempt.sharing = False
            # Of a transaction that may be committed: what becomes of this one must not be
            # all that is known of the call.
            raise StaleRpc("the call has put its record into a transaction already")

    def _entered(self, run: Callable[..., Any]) -> ConnectionProxy:
        attempt = self._attempt
        self._turn = attempt.shared = self._of.enter(attempt, run)
        # Looked at after ``shared`` was set. Who seals an attempt looks at ``shared`` after it
        # sealed: whichever comes second, the block is cut off.
        if attempt.sealed:
            self._turn.cut_off()
            raise StaleRpc("the call ended before its block began")
        return self._turn.connection

    def _late(self) -> StoreUnavailable:
        return StoreUnavailable(
            f"the call's turn in the shared transaction did not come in {self._limit_s:.3g} s"
        )

    def _refused(self, error: Exception) -> None:
        """Have the call answered so, if its handler does nothing else about it."""
        self._attempt.shared = Pending()
        self._attempt.shared.fail(error)

    def _not_entered(self, error: BaseException) -> None:
        self._attempt.sharing = False
        if isinstance(error, StoreUnavailable):
            self._refused(error)

    def _writes(self, exc: BaseException | None) -> Exception | None:
        """Write the record; returns why the turn is undone, if it cannot be written."""
        turn = self._turn
        write = turn.write
        if exc is not None or write is None or not turn.connection.in_transaction:
            return None
        try:
            turn.connection.within(write)
        except (StaleRpc, sqlite3.Error) as error:
            return error
        return None

    def _leaves_none(self) -> bool:
        """Whether its handler left no record, as the call has to have one."""
        return self._turn.record is None

    def _leaves_early(
        self, exc: BaseException | None, *, missing: bool, task: object = None
    ) -> bool:
        """End the turn of a run whose commit its starter waits for; false: it is no such run.

        ``task``: where the next one is begun, if that is known.
        """
        call = self._attempt.call
        if exc is not None or missing or not (isinstance(call, RowCall) and call.more):
            return False
        of = self._of
        after = of.exit(self._turn, of.in_background, undo=False, more=True, of=task)
        self._left(after, exc)
        if after is _GATHER:
            of.in_background(of.gather, self._turn.group)
        elif after is Next.KEPT:
            # Once the task waits for anything, it is others' turn.
            asyncio.get_running_loop().call_soon(of.pass_on, task, of.in_background)
        return True

    def _left(self, after: Next | None, exc: BaseException | None) -> None:
        self._attempt.sharing = False
        if after is None and exc is None:
            raise StaleRpc("the call ended before its block, which was rolled back")

    def _ended(self, record: CompletionRecord | None, *, undone: bool) -> None:
        if undone:
            self._attempt.recorded = None
        else:
            self._attempt.committed = record

    def _failed(self) -> None:
        """Note that nothing was committed: the handler may try again."""
        self._attempt.recorded = None

    def _not_recorded(self) -> NotRecorded:
        error = NotRecorded(
            "the handler left the shared transaction without rifl.record: it was rolled back"
        )
        if not self._turn.met:
            self._refused(error)
        return error


class SharedBlock(_Block):
    """A turn in the shared transaction, for a thread: ``with``.

    Entering waits for the turn, leaving for the commit.
    """

    def __enter__(self) -> ConnectionProxy:
        """Wait for the turn; raises ``StoreUnavailable`` if it does not come in time."""
        self._begin()
        of = self._of
        try:
            waiter = of.arrive()
            if waiter is not None:
                self._attempt.waits = True
                came = waiter.wait_for(self._limit_s)
                self._attempt.waits = False
                if not came:
                    of.leave(waiter, _at_once)
                    raise self._late()
            if not of.is_open:
                of.open(self._limit_s)
            return self._entered(_at_once)
        except BaseException as error:
            self._not_entered(error)
            raise

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Keep what the handler did, or undo it, and wait for the commit.

        Also if it is rolled back: what the handler saw of others' stands only then.
        Raises ``StoreUnavailable`` if the transaction was not committed,
        ``RecordPending`` if that is unknown, ``NotRecorded`` if it left no record.
        """
        missing = exc is None and self._leaves_none()
        failed = self._writes(exc)
        if self._leaves_early(exc or failed, missing=missing):
            return
        undone = exc is not None or missing or failed is not None
        after = self._of.exit(self._turn, _at_once, undo=undone)
        self._left(after, exc)
        if after is _GATHER:
            self._of.gather(self._turn.group)
        try:
            # Others in it may take long.
            self._attempt.waits = True
            found = self._turn.wait()
            self._attempt.waits = False
            self._ended(found, undone=undone)
        except StoreUnavailable:
            self._attempt.waits = False
            self._failed()
            raise
        if failed is not None:
            raise failed
        if missing:
            raise self._not_recorded()


class AioSharedBlock(_Block):
    """The same for a coroutine: ``async with``.

    The event loop waits neither for a turn nor for the disk; the handler's statements
    run on it.
    """

    async def __aenter__(self) -> ConnectionProxy:
        """Await the turn; raises ``StoreUnavailable`` if it does not come in time."""
        self._begin()
        of = self._of
        try:
            waiter = of.arrive(asyncio.current_task())
            if waiter is not None:
                try:
                    self._attempt.waits = True
                    async with asyncio.timeout(self._limit_s):
                        await waiter
                    self._attempt.waits = False
                except BaseException as error:
                    self._attempt.waits = False
                    of.leave(waiter, of.in_background)
                    if isinstance(error, TimeoutError):
                        raise self._late() from None
                    raise
            if not of.is_open and not of.open_at_once():
                opening = of.in_background(of.open, self._limit_s)
                try:
                    await asyncio.shield(asyncio.wrap_future(opening))
                except asyncio.CancelledError:
                    opening.add_done_callback(self._unwanted)
                    raise
            return self._entered(of.in_background)
        except BaseException as error:
            self._not_entered(error)
            raise

    def _unwanted(self, opened: Any) -> None:
        if opened.exception() is None:
            self._of.hand_on(self._of.in_background)

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Keep what the handler did, or undo it, and await the commit; raises as the sync one.

        Cancelled here the transaction is committed all the same, and what the call left
        in it stands.
        """
        self._attempt.committing = True
        of = self._of
        missing = exc is None and self._leaves_none()
        failed = self._writes(exc)
        if self._leaves_early(exc or failed, missing=missing, task=asyncio.current_task()):
            return
        undone = exc is not None or missing or failed is not None
        after = of.exit(self._turn, of.in_background, undo=undone)
        self._left(after, exc)
        if after is _GATHER:
            of.in_background(of.gather, self._turn.group)
        try:
            self._attempt.waits = True
            found = await self._turn
            self._attempt.waits = False
            self._ended(found, undone=undone)
        except StoreUnavailable:
            self._attempt.waits = False
            self._failed()
            raise
        if failed is not None:
            raise failed
        if missing:
            raise self._not_recorded()


def _at_once(work: Callable[..., Any], *arguments: Any) -> None:
    work(*arguments)


def check_no_block(attempt: SqliteAttempt) -> None:
    """Raise ``WrongDatabase`` while the call has a block: of two, one would be lost sight of."""
    if attempt.sharing:
        raise WrongDatabase("the call has its turn in the shared transaction, or waits for it")
