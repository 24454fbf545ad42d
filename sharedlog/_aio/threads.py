"""The threads of a log in which calls block, so that the event loop does not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from _rifl_ground.forks import refuse_in_children
from sharedlog._log.place import forked

_P = ParamSpec("_P")
_T = TypeVar("_T")
# Appends of one log are one at a time; others read, or wait for their transactions.
_MOST = 8


class Threads:
    """A few threads of one log's own: no other library's calls are in front.

    A forked child has none of them, and is refused.
    """

    def __init__(self, most: int = _MOST) -> None:
        """They begin when they are needed."""
        self._pool = ThreadPoolExecutor(most, thread_name_prefix="sharedlog-aio")
        self.closed = False
        refuse_in_children(self, forked)

    async def run(self, called: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Call it in a thread. Cancelled, it goes on there: what it does is done to its end."""
        return await self.begin(called, *args, **kwargs)

    def begin(
        self, called: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs
    ) -> asyncio.Future[_T]:
        """Have it called in a thread, and return what tells of it."""
        loop = asyncio.get_running_loop()
        return loop.run_in_executor(self._pool, partial(called, *args, **kwargs))

    def close(self) -> None:
        """Begin nothing more; what runs is not waited for."""
        self.closed = True
        self._pool.shutdown(wait=False)
