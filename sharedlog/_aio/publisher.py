"""Publishing from any task: the messages of tasks that meet travel in one append."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from _rifl_ground.owned_lock import WITHIN, OwnedWork
from sharedlog._aio.threads import Threads
from sharedlog._core.errors import InvalidRequest, LogStopped, ReentrantUse
from sharedlog._core.position import Position
from sharedlog._core.publishing import Placed
from sharedlog._log.appender import Appender, Publication
from sharedlog._log.place import Place

_T = TypeVar("_T")


class _Waiting:
    """A message of a task that waits."""

    __slots__ = ("begun", "publication", "told")

    def __init__(self, publication: Publication, told: asyncio.Future[None]) -> None:
        self.publication = publication
        self.told = told
        # Set by the thread that appends it, and never does so again.
        self.begun = False


class Publisher:
    """As ``_log.publisher.Publisher``, for the tasks of one event loop."""

    def __init__(self, place: Place, threads: Threads) -> None:
        """Nothing is asked of the log before the first message."""
        self._appender = Appender(place)
        self._threads = threads
        self._queue: deque[_Waiting] = deque()
        # Those of the append that is made.
        self._group: list[_Waiting] = []
        # What the appender calls, logging handlers say, must not wait for it.
        self._appending = OwnedWork()
        self._working: asyncio.Task[None] | None = None
        # One thread at a time uses the appender.
        self._turn = threading.Lock()

    async def publish(self, message: Placed) -> Position:
        """Append a message, and return its position; raises as the other one.

        Cancelled before it is sent it is not; afterwards its outcome is not known to who
        cancelled it, and known before anything else is sent.
        """
        if message.size > self._appender.most_bytes:
            raise InvalidRequest(
                f"a message of {message.size} bytes; this log takes {self._appender.most_bytes}"
            )
        if self._appending.within:
            raise ReentrantUse(WITHIN)
        loop = asyncio.get_running_loop()
        mine = _Waiting(Publication(message), loop.create_future())
        try:
            self._queue.append(mine)
            if self._working is None:
                self._begin(loop)
            await mine.told
        except BaseException:
            if mine in self._queue:
                self._queue.remove(mine)
            raise
        return mine.publication.outcome()

    async def settle(self, ticket: str) -> Position:
        """Return where a message is whose outcome was unknown, or raise why it is not there."""
        publication = self._appender.unsettled(ticket)
        if self._appending.within:
            raise ReentrantUse(WITHIN)
        await asyncio.shield(self._threads.begin(self._run, self._appender.settle, publication))
        return publication.outcome()

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        work = loop.create_task(self._work())
        work.add_done_callback(self._ended)
        self._working = work

    def _ended(self, work: asyncio.Task[None]) -> None:
        """Have the work go on that an interrupt ended, as long as a task waits for it."""
        if self._working is work:
            self._working = None
        waits = any(not each.told.done() for each in (*self._group, *self._queue))
        if waits and self._working is None:
            self._begin(work.get_loop())

    async def _work(self) -> None:
        """Append what has gathered, until nothing has."""
        while self._group or self._queue:
            # What is still there was left by an interrupt: a thread knows whether it was begun.
            group = self._group or self._gathered()
            try:
                await self._threads.run(self._append, group)
            except RuntimeError:
                if not self._threads.closed:
                    raise
                for each in group:
                    each.publication.error = LogStopped("the log was closed")
            for each in group:
                if not each.told.done():
                    each.told.set_result(None)
            self._group = []
            # The answered tasks can publish again now; their messages join those that wait.
            await asyncio.sleep(0)
        # In one step with the last look at the queue, so that the next message begins anew.
        self._working = None

    def _gathered(self) -> list[_Waiting]:
        """Take from the queue what fits one append."""
        group, queue = self._group, self._queue
        bytes_left = self._appender.most_bytes
        while queue and len(group) < self._appender.most:
            first = queue[0]
            size = first.publication.message.size
            if group and size > bytes_left:
                break
            bytes_left -= size
            # Never in neither: an interrupt may come in between.
            if not group or group[-1] is not first:
                group.append(first)
            queue.popleft()
        return group

    # In threads:

    def _append(self, group: list[_Waiting]) -> None:
        with self._turn:
            waiting = [each for each in group if not each.begun]
            for each in waiting:
                each.begun = True
            if waiting:
                self._appending.run(self._appender.append, [each.publication for each in waiting])

    def _run(self, act: Callable[[_T], None], argument: _T) -> None:
        with self._turn:
            self._appending.run(act, argument)
