"""Publishing from any task: the messages of tasks that meet travel in one append."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from _rifl_ground.owned_lock import WITHIN, OwnedWork
from sharedlog._aio.threads import Threads
from sharedlog._core.errors import InvalidRequest, ReentrantCall
from sharedlog._core.position import Position
from sharedlog._core.publishing import Placed
from sharedlog._log.appender import Appender, Publication
from sharedlog._log.place import Place

_T = TypeVar("_T")


class _Waiting(NamedTuple):
    publication: Publication
    told: asyncio.Future[None]


class Publisher:
    """As ``_log.publisher.Publisher``, for the tasks of one event loop."""

    def __init__(self, place: Place, threads: Threads) -> None:
        """Nothing is asked of the log before the first message."""
        self._appender = Appender(place)
        self._threads = threads
        self._queue: deque[_Waiting] = deque()
        # What the appender calls, logging handlers say, must not wait for it.
        self._appending = OwnedWork()
        self._working: asyncio.Task[None] | None = None
        # One at a time uses the appender.
        self._turn = asyncio.Lock()

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
            raise ReentrantCall(WITHIN)
        loop = asyncio.get_running_loop()
        mine = _Waiting(Publication(message), loop.create_future())
        self._queue.append(mine)
        if self._working is None:
            self._working = loop.create_task(self._work())
        try:
            await mine.told
        except asyncio.CancelledError:
            if mine in self._queue:
                self._queue.remove(mine)
            raise
        return mine.publication.outcome()

    async def settle(self, ticket: str) -> Position:
        """Return where a message is whose outcome was unknown, or raise why it is not there."""
        publication = self._appender.unsettled(ticket)
        if self._appending.within:
            raise ReentrantCall(WITHIN)
        await asyncio.shield(asyncio.ensure_future(self._settle(publication)))
        return publication.outcome()

    async def _settle(self, publication: Publication) -> None:
        async with self._turn:
            await self._run(self._appender.settle, publication)

    async def _run(self, act: Callable[[_T], None], argument: _T) -> None:
        await self._threads.run(self._appending.run, act, argument)

    async def _work(self) -> None:
        """Append what has gathered, until nothing has."""
        group: list[_Waiting] = []
        try:
            while self._queue:
                async with self._turn:
                    group = self._gathered()
                    if group:
                        publications = [each.publication for each in group]
                        await self._run(self._appender.append, publications)
                self._tell(group)
                group = []
                # Whoever was told publishes the next one now, and travels with those who wait.
                await asyncio.sleep(0)
        finally:
            self._tell(group)
            self._working = None

    def _gathered(self) -> list[_Waiting]:
        """Take from the queue what fits one append."""
        group: list[_Waiting] = []
        bytes_left = self._appender.most_bytes
        while self._queue and len(group) < self._appender.most:
            size = self._queue[0].publication.message.size
            if group and size > bytes_left:
                break
            bytes_left -= size
            group.append(self._queue.popleft())
        return group

    def _tell(self, group: list[_Waiting]) -> None:
        for each in group:
            if not each.told.done():
                each.told.set_result(None)
