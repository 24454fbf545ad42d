"""Following on an event loop: an asynchronous iterator over ``_log.following``."""

from __future__ import annotations

import asyncio
import threading
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

# How long a thread waits at most before it checks whether the iterator is still in use.
_SLICE_S = 1.0


class Following:
    """An asynchronous ``sharedlog.Following``, for one task; ``log.follow`` returns it.

    It begins when it is entered or first iterated. A task that is cancelled while it waits loses
    no message: the next one that iterates gets it.
    """

    def __init__(self, begin: Callable[[], sync.Following]) -> None:
        """Use ``Log.follow``."""
        self._begin = begin
        # Threads of its own: a follower that waits here does not block publishers.
        self._threads = Threads(2)
        self._ready: deque[Message] = deque()
        # Whether it may have begun, which a thread does.
        self._begins = False
        self._inner: sync.Following | None = None
        # Of the threads that begin and poll.
        self._working = threading.Lock()
        self._polling: asyncio.Future[None] | None = None
        self._ending: asyncio.Future[None] | None = None
        self._closed = False
        refuse_in_children(self, forked, _forget)

    def __aiter__(self) -> Following:
        """Return itself."""
        return self

    async def __anext__(self) -> Message:
        """Wait for the next message and return it. Ends once it is closed."""
        ready = self._ready
        while not ready:
            if self._closed:
                raise StopAsyncIteration
            inner = await self._begun()
            if self._polling is None or self._polling.done():
                self._polling = self._threads.begin(self._poll, inner)
            await asyncio.shield(self._polling)
        message = ready[0]
        try:
            ready.popleft()
            return message
        except BaseException:
            # A signal's, maybe: who called has no message, and gets this one next.
            if not ready or ready[0] is not message:
                ready.appendleft(message)
            raise

    async def done(self, place: Message | Position) -> None:
        """Say that this message, and all that were delivered before it, are done."""
        await self._threads.run((await self._begun()).done, place)

    async def close(self) -> None:
        """End, and move the hold after what is done; idempotent."""
        self._closed = True
        if self._ending is None:
            if self._threads.closed:
                return
            if not self._begins:
                self._threads.close()
                return
            self._ending = self._threads.begin(self._end)
        elif self._ending.done():
            return
        await asyncio.shield(self._ending)

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
        if self._inner is not None:
            return self._inner
        self._begins = True
        return await asyncio.shield(self._threads.begin(self._open))

    # In threads: what they find is kept before a task gets it, so that no cancellation loses it.

    def _open(self) -> sync.Following:
        with self._working:
            if self._inner is None:
                self._inner = self._begin()
            return self._inner

    def _poll(self, inner: sync.Following) -> None:
        with self._working:
            self._ready.extend(inner.poll(_SLICE_S))

    def _end(self) -> None:
        try:
            if self._inner is None:
                # Maybe it is just beginning.
                with self._working:
                    pass
            if self._inner is not None:
                self._inner.close()
        finally:
            self._threads.close()


def _forget(inherited: Following) -> None:
    # The parent's loop delivers what was read ahead. An iteration here begins with a thread, which
    # raises the error.
    inherited._ready = deque()
    inherited._inner = inherited._polling = None
    inherited._begins = False
