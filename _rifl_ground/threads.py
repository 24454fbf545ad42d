"""Threads in which our own calls block, so that an event loop does not.

asyncio's default executor is the application's: what it does there (``asyncio.to_thread``) may
block for as long as it likes: our own calls do not wait for it.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from _rifl_ground.forks import Process, this_process

_P = ParamSpec("_P")
_T = TypeVar("_T")
# At once; each begins when it is needed.
_MOST = 64
_pools: dict[Process, ThreadPoolExecutor] = {}


async def in_thread(called: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Call it in a thread, as ``asyncio.to_thread`` does. Cancelled, it goes on there."""
    bound = functools.partial(contextvars.copy_context().run, called, *args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(_pool(), bound)


def begin_in_thread(called: Callable[[], _T]) -> Future[_T]:
    """Call it in one of this module's threads; return its future."""
    return _pool().submit(called)


def _pool() -> ThreadPoolExecutor:
    # A forked child has none of its parent's threads.
    process = this_process()
    found = _pools.get(process)
    if found is None:
        # Without a lock, which a fork could leave taken. One that is not kept has begun no thread.
        found = _pools.setdefault(process, ThreadPoolExecutor(_MOST, "rifl-io"))
    return found
