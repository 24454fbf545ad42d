"""Results that a store has yet to produce, and that threads or event loops wait for."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import threading
from collections.abc import Callable, Generator, Iterator
from typing import Any

from _rifl_ground.loops import tell_loop
from rifl.core._serving.later import Later


class Pending(Later):
    """Done once, by ``succeed`` or ``fail``; safe in any thread.

    Lighter than a ``concurrent.futures.Future``: one is made for every commit a
    call waits for.
    """

    # Whether it has succeeded or failed. These are set on the class, not for every one.
    done = False
    error: Exception | None = None
    # What waiting gives; set before it succeeds, if at all.
    result: Any = None

    def __init__(self) -> None:
        self._lock = lock = threading.Lock()
        lock.acquire()
        self._callbacks: list[Callable[[Pending], object]] = []

    def succeed(self) -> None:
        """Wake everyone who waits."""
        self.done = True
        self._lock.release()
        if self._callbacks:
            self._run_callbacks()

    def fail(self, error: Exception) -> None:
        """Wake everyone who waits; they see ``error`` raised."""
        self.error = error
        self.succeed()

    def wait(self) -> Any:
        """Block until it is done and return the result; raises the error it failed with."""
        if not self.done:
            self._lock.acquire()
            self._lock.release()
        if self.error is not None:
            raise self.error
        return self.result

    def wait_for(self, limit_s: float) -> bool:
        """Block until it is done, at most so long (-1: no limit); return whether it is done."""
        if not self.done and self._lock.acquire(timeout=limit_s):
            self._lock.release()
        return self.done

    def __await__(self) -> Generator[Any, None, Any]:
        """Await it on an event loop; returns and raises as ``wait`` does."""
        if not self.done:
            waker = loop_waker()
            future = waker.loop.create_future()
            self.add_callback(lambda _: waker.wake(future))
            yield from future.__await__()
        if self.error is not None:
            raise self.error
        return self.result

    def add_callback(self, callback: Callable[[Pending], object]) -> None:
        """Call back when it is done, in the thread that does it; now if it is."""
        self._callbacks.append(callback)
        if self.done:
            self._run_callbacks()

    def _run_callbacks(self) -> None:
        # Two threads may get here; each callback is popped by one of them.
        while self._callbacks:
            try:
                callback = self._callbacks.pop()
            except IndexError:
                return
            callback(self)


class LoopWaker:
    """Resolves futures of one loop from any thread, many of them in one turn.

    Waking a loop is a write to a pipe: a caller that finds others waiting to be
    resolved leaves it to the turn that is coming for them.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._due: collections.deque[asyncio.Future[None]] = collections.deque()
        self._lock = threading.Lock()
        self._coming = False

    def wake(self, future: asyncio.Future[None]) -> None:
        """Resolve a future."""
        with self._lock:
            self._due.append(future)
            if self._coming:
                return
            together: set[LoopWaker] | None = getattr(_of_thread, "together", None)
            if together is not None:
                together.add(self)
                return
            self._coming = True
        tell_loop(self.loop, self._resolve)

    def tell(self) -> None:
        """Have the loop resolve what is due, if it is not about to."""
        with self._lock:
            if self._coming or not self._due:
                return
            self._coming = True
        tell_loop(self.loop, self._resolve)

    def _resolve(self) -> None:
        with self._lock:
            due, self._due = self._due, collections.deque()
            self._coming = False
        for future in due:
            _resolve(future)


_of_thread = threading.local()


def loop_waker() -> LoopWaker:
    """Return the waker of the loop that runs in this thread."""
    loop = asyncio.get_running_loop()
    waker: LoopWaker | None = getattr(_of_thread, "waker", None)
    if waker is None or waker.loop is not loop:
        waker = _of_thread.waker = LoopWaker(loop)
    return waker


@contextlib.contextmanager
def waking_together() -> Iterator[None]:
    """Tell each loop only at the end of the block of what this thread resolves in it.

    A loop that is told of the first takes the interpreter's lock, and the others come singly.
    Not nested.
    """
    together: set[LoopWaker] = set()
    _of_thread.together = together
    try:
        yield
    finally:
        _of_thread.together = None
        for waker in together:
            waker.tell()


def wake_on_loop(loop: asyncio.AbstractEventLoop, future: asyncio.Future[None]) -> None:
    """Resolve a future of a loop from any thread."""
    tell_loop(loop, _resolve, future)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
