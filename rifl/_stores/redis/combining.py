"""Combiners of requests that meet on their way to Redis: one pipeline for all of them.

Redis syncs its file once for what it read at once, and most of a command's cost is in
system calls, locks and wake-ups on this side. A caller that finds the way free goes at once,
alone: a single caller never waits. Other callers wait until the way is free, and one of
them carries the requests of all.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from rifl._stores.shared.backend import BackendError, NotCarriedOut, patience

# As long as a pipeline of so many takes, others wait.
_MOST = 64
# A longer wait than any turn takes, and no longer one than a lock can wait.
_MOST_S = 3600.0


class _Waiting:
    """A thread's request, until it has its reply or is told to carry all of ``batch``."""

    __slots__ = ("batch", "reply", "request", "woken")

    def __init__(self, request: Any) -> None:
        self.request = request
        self.reply: Any = None
        self.batch: list[_Waiting] | None = None
        self.woken = threading.Lock()
        self.woken.acquire()


class RequestCombiner:
    """For threads. ``ask`` carries out one request, ``ask_all`` many; see ``Backend``."""

    def __init__(
        self,
        ask: Callable[[Any, float | None], Any],
        ask_all: Callable[[Sequence[Any], float | None], list[Any]],
    ) -> None:
        self._one = ask
        self._all = ask_all
        self._lock = threading.Lock()
        self._taken = False
        self._waiting: list[_Waiting] = []

    def ask(self, request: Any, within_s: float | None = None) -> Any:
        """Carry out a request, blocking; raises ``BackendError``.

        ``within_s``: how long to wait for others' requests, then nothing was carried out; and
        for the reply (see ``patience``).
        """
        with self._lock:
            mine = None
            if self._taken:
                mine = _Waiting(request)
                self._waiting.append(mine)
            self._taken = True
        if mine is None:
            try:
                return self._one(request, within_s)
            finally:
                self._pass_on()
        if not mine.woken.acquire(timeout=_turn_s(within_s)):
            self._give_up(mine)
        if mine.batch is not None:
            self._carry(mine.batch, within_s)
        if isinstance(mine.reply, BackendError):
            # One error may be that of many: each has a traceback of its own.
            raise type(mine.reply)(*mine.reply.args) from mine.reply
        return mine.reply

    def _give_up(self, mine: _Waiting) -> None:
        """Wait no longer, but for who has to carry others' requests; raises ``BackendError``."""
        with self._lock:
            if mine in self._waiting:
                self._waiting.remove(mine)
                raise NotCarriedOut("the call's time was over before the store was asked")
            if mine.batch is None and not mine.woken.acquire(blocking=False):
                raise BackendError("the store did not reply in the call's time")

    def _carry(self, batch: list[_Waiting], within_s: float | None) -> None:
        replies: list[Any] = [BackendError("the sender of the request was interrupted")]
        replies *= len(batch)
        try:
            replies = self._all([each.request for each in batch], within_s)
        finally:
            self._pass_on()
            for each, reply in zip(batch, replies, strict=True):
                each.reply = reply
                if each is not batch[0]:
                    each.woken.release()

    def _pass_on(self) -> None:
        with self._lock:
            if not self._waiting:
                self._taken = False
                return
            batch, self._waiting = self._waiting[:_MOST], self._waiting[_MOST:]
            batch[0].batch = batch
        batch[0].woken.release()


def _turn_s(within_s: float | None) -> float:
    # As for a reply: what ran after its call's time is recorded all the same.
    return -1 if within_s is None else patience(within_s, _MOST_S)


class AioRequestCombiner:
    """The same for one event loop's tasks."""

    def __init__(
        self,
        ask: Callable[[Any], Awaitable[Any]],
        ask_all: Callable[[Sequence[Any]], Awaitable[list[Any]]],
    ) -> None:
        self._one = ask
        self._all = ask_all
        self._taken = False
        self._waiting: list[tuple[Any, asyncio.Future[Any]]] = []
        self._carrying: asyncio.Task[None] | None = None

    async def ask(self, request: Any) -> Any:
        """Carry out a request; raises ``BackendError``."""
        if self._taken:
            future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            self._waiting.append((request, future))
            reply = await future
            if isinstance(reply, BackendError):
                raise type(reply)(*reply.args) from reply
            return reply
        self._taken = True
        try:
            return await self._one(request)
        finally:
            self._pass_on()

    async def _carry(self, batch: list[tuple[Any, asyncio.Future[Any]]]) -> None:
        replies: list[Any] = [BackendError("the sender of the request was interrupted")]
        replies *= len(batch)
        try:
            replies = await self._all([request for request, _ in batch])
        finally:
            self._pass_on()
            for (_, future), reply in zip(batch, replies, strict=True):
                if not future.done():
                    future.set_result(reply)

    def _pass_on(self) -> None:
        # A task that was cancelled while it waited has asked for nothing yet.
        waiting = [each for each in self._waiting if not each[1].done()]
        batch, self._waiting = waiting[:_MOST], waiting[_MOST:]
        self._taken = bool(batch)
        if batch:
            loop = asyncio.get_running_loop()
            self._carrying = loop.create_task(self._carry(batch))
