"""A recorded call on an event loop: one attempt, at the leader and at all witnesses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any, Protocol

import grpc
import grpc.aio

from curp._core.group_call import AttemptStep
from curp.client._attempt import GroupAttempt
from curp.client._attempt_ends import AttemptError
from curp.client._leader_call import aio_error
from curp.client._record import Record, give_up
from rifl._client.aio_status import at_hand, finished_status
from rifl._client.answers import FinalStatus


class SendingPath(Protocol):
    """The path: its ways to the witnesses and for a sync request, and its loop's tasks."""

    sync: Any

    def record(self, address: str, request: bytes) -> Record:
        """Send a record."""

    def start(self, coroutine: Any) -> asyncio.Task[None]:
        """Run a coroutine in the background."""


class AioRecordedCall:
    """What gRPC's call is to a rifl channel, which is all that uses it."""

    def __init__(
        self, path: SendingPath, attempt: GroupAttempt, leader: Any, target: int = 0
    ) -> None:
        """Record the call on all witnesses; ``leader``: as it was sent there.

        ``target``: the place of the one that it was sent to.
        """
        self._target = target
        self._path = path
        self._attempt = attempt
        self._leader = leader
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[None] = self._loop.create_future()
        # The leader's, once it answered.
        self._status: FinalStatus | None = None
        self._error: AttemptError | None = None
        self._patience: asyncio.TimerHandle | None = None
        self._unheard = set(attempt.view.witnesses)
        self._callbacks: list[Callable[[Any], None]] = []
        self._records = [path.record(at, attempt.record) for at in attempt.view.witnesses]
        for address, record in zip(attempt.view.witnesses, self._records, strict=True):
            record.on_end(lambda done, at=address: self._recorded(at, done))  # type: ignore[misc]
        leader.add_done_callback(self._leader_done)

    # Events.

    def _recorded(self, address: str, record: Record) -> None:
        self._unheard.discard(address)
        if self._over.done():
            return
        step = self._attempt.recorded(address, record)
        self._attempt.look()
        self._take(step)

    def _leader_done(self, leader: Any) -> None:
        if self._over.done():
            return
        self._status = finished_status(leader)
        step = self._attempt.leader_answered(self._status)
        if step is AttemptStep.WAIT:
            self._patience = self._loop.call_later(self._attempt.patience_s(), self._patience_over)
        self._take(step)

    def _patience_over(self) -> None:
        if not self._over.done():
            self._take(self._attempt.patience_over(self._unheard))

    async def _sync(self) -> None:
        request, left_s = self._attempt.ask()
        try:
            reply = await self._path.sync(request, timeout=left_s)
        except (grpc.RpcError, grpc.aio.UsageError, ValueError):
            reply = None
        if not self._over.done():
            self._take(self._attempt.sync_answered(reply))

    def _take(self, step: AttemptStep) -> None:
        if step is AttemptStep.SYNC:
            self._path.start(self._sync())
        elif step is not AttemptStep.WAIT:
            self._error = self._attempt.error(step, self._status)
            self._end(step)

    def _end(self, step: AttemptStep) -> None:
        if self._patience is not None:
            self._patience.cancel()
        give_up(self._records)
        self._attempt.end(step)
        self._over.set_result(None)
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)

    # What the rifl channel asks of a call.

    def __await__(self) -> Generator[Any, None, Any]:
        if not self._over.done():
            try:
                yield from asyncio.shield(self._over).__await__()
            except asyncio.CancelledError:
                self.cancel()
                raise
        if self._error is not None:
            raise aio_error(self._error)
        return (yield from self._leader.__await__())

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Call back at the end; now if it is over."""
        if self._over.done():
            callback(self)
        else:
            self._callbacks.append(callback)

    def cancel(self) -> bool:
        """Give the call up: its outcome is unknown."""
        if self._over.done():
            return False
        if not self._leader.cancel():
            # Its answer is here, but nothing else is any more.
            self._take(AttemptStep.AGAIN)
        return True

    def leave(self, leader: int, number: int) -> None:
        """Give it up if it went to another replica than ``leader``, under ``number`` or before."""
        if self._over.done() or leader == self._target or number < self._attempt.view.number:
            return
        self._take(AttemptStep.AGAIN)
        self._leader.cancel()

    def done(self) -> bool:
        """Whether it is over."""
        return self._over.done()

    async def wait_for_connection(self) -> None:
        """Wait until the leader is reached."""
        await self._leader.wait_for_connection()

    async def code(self) -> Any:
        """Return its code, at the end."""
        await self._finished()
        return at_hand(self._leader.code()) if self._error is None else self._error.code()

    async def details(self) -> Any:
        """Return its text."""
        await self._finished()
        return at_hand(self._leader.details()) if self._error is None else self._error.details()

    async def initial_metadata(self) -> Any:
        """Return what came in front of the answer."""
        await self._finished()
        return at_hand(self._leader.initial_metadata()) if self._error is None else ()

    async def trailing_metadata(self) -> Any:
        """Return what came behind it."""
        await self._finished()
        if self._error is not None:
            return self._error.trailing_metadata()
        return at_hand(self._leader.trailing_metadata())

    async def debug_error_string(self) -> Any:
        """Return gRPC's text."""
        await self._finished()
        if self._error is not None:
            return self._error.debug_error_string()
        return at_hand(self._leader.debug_error_string())

    async def _finished(self) -> None:
        if not self._over.done():
            await asyncio.shield(self._over)
