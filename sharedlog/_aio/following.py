"""Following on an event loop: an asynchronous iterator over ``_log.following``."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from types import TracebackType

from _rifl_ground.forks import refuse_in_children
from sharedlog._aio.threads import Threads
from sharedlog._core.errors import LogError
from sharedlog._core.message import Message
from sharedlog._core.position import Position
from sharedlog._log import following as sync
from sharedlog._log.place import forked

# How long a thread waits at most before it looks whether somebody still iterates.
_SLICE_S = 1.0


class Following:
    """What ``log.follow`` returns: as ``sharedlog.Following``, for one task.

    It begins when it is entered or first iterated. A task that is cancelled while it waits loses
    no message: the next one that iterates gets it.
    """

    def __init__(self, begin: Callable[[], sync.Following]) -> None:
        """Use ``Log.follow``."""
        self._begin = begin
        # Its own: who waits here keeps nobody from publishing.
        self._threads = Threads(2)
        self._ready: deque[Message] = deque()
        self._beginning: asyncio.Future[sync.Following] | None = None
        self._polling: asyncio.Future[list[Message]] | None = None
        self._closed = False
        refuse_in_children(self, forked, _forget)

    def __aiter__(self) -> Following:
        """Return itself."""
        return self

    async def __anext__(self) -> Message:
        """Return the next message; waits for it. Ends once it is closed."""
        while not self._ready:
            inner = await self._begun()
            if self._closed:
                raise StopAsyncIteration
            if self._polling is None:
                self._polling = asyncio.ensure_future(self._threads.run(inner.poll, _SLICE_S))
            polling = self._polling
            try:
                await asyncio.shield(polling)
            finally:
                # Of tasks that wait for the same messages one takes them.
                if polling.done() and self._polling is polling:
                    # Also where this task is cancelled in the moment in which they came.
                    there = not polling.cancelled() and polling.exception() is None
                    # In one step: a signal's exception may come before or after it.
                    self._ready, self._polling = deque(polling.result() if there else ()), None
        return self._ready.popleft()

    async def done(self, place: Message | Position) -> None:
        """Say that this message, and all that were delivered before it, are not wanted again."""
        await self._threads.run((await self._begun()).done, place)

    async def close(self) -> None:
        """End, with the hold moved behind what was done; idempotent."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._beginning is not None:
                try:
                    inner = await self._begun()
                except LogError:
                    # It was told: what never began has nothing to end.
                    return
                await self._threads.run(inner.close)
        finally:
            self._threads.close()

    async def __aenter__(self) -> Following:
        """Begin: its hold, if it has a name, is there."""
        await self._begun()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close; of two errors the first is raised."""
        try:
            await self.close()
        except LogError:
            if kind is None:
                raise

    async def _begun(self) -> sync.Following:
        if self._beginning is None:
            self._beginning = asyncio.ensure_future(self._threads.run(self._begin))
        return await asyncio.shield(self._beginning)


def _forget(inherited: Following) -> None:
    # What was read ahead is delivered to the parent, by its loop; whoever iterates here begins by
    # a thread, and is told.
    inherited._ready = deque()
    inherited._beginning = inherited._polling = None
