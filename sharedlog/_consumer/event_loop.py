"""The event loop that async functions of a consumer run on: one, however many run at once."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Coroutine
from typing import Any
from weakref import WeakSet

from _rifl_ground.forks import this_process
from sharedlog._consumer.lending import end_child
from sharedlog._log.place import forked

# The tasks that were begun by the function in whose context a task is made.
_BEGUN: contextvars.ContextVar[WeakSet[asyncio.Task[Any]]] = contextvars.ContextVar("begun")


class EventLoop:
    """Runs coroutines to their end, in the thread that asks; ``apart``: in a thread of its own.

    Apart it runs those of several threads at once.
    """

    def __init__(self, *, apart: bool) -> None:
        """Nothing runs."""
        # Made with a factory, it is not the current one of this thread.
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop if apart else None)
        self._loop = self._runner.get_loop()
        self._loop.set_task_factory(_noting)
        self._process = this_process()
        # What runs apart, and whether that was interrupted.
        self._running: set[asyncio.Task[Any]] = set()
        self._interrupted = self._closing = False
        self._apart = apart
        self._beginning = threading.RLock()
        self._thread: threading.Thread | None = None

    def run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine to its end, in the context of who asks; raises what it raises."""
        if not self._apart:
            self._runner.run(coroutine, context=contextvars.copy_context())
            return
        with self._beginning:
            if self._thread is None:
                name = "sharedlog-handlers"
                self._thread = threading.Thread(target=self._run_apart, name=name, daemon=True)
                self._thread.start()
        outcome = asyncio.run_coroutine_threadsafe(self._outcome(coroutine), self._loop)
        error = outcome.result()
        if self._interrupted and error is not None:
            raise KeyboardInterrupt from error
        if error is not None:
            raise error

    def interrupt(self) -> None:
        """Cancel what runs apart: who waits for it gets ``KeyboardInterrupt``."""
        if self._thread is not None:
            self._interrupted = True
            self._loop.call_soon_threadsafe(self._cancel)

    def close(self) -> None:
        """Cancel what is left, and close the loop; idempotent. In the thread that made it."""
        if self._thread is None:
            self._runner.close()
        elif not self._closing:
            self._closing = True
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def _cancel(self) -> None:
        for each in self._running:
            each.cancel()

    async def _outcome(self, coroutine: Coroutine[Any, Any, None]) -> BaseException | None:
        """Return what a coroutine raises: raised, ``SystemExit`` would end the loop for all."""
        task = asyncio.current_task()
        if task is not None:
            self._running.add(task)
            task.add_done_callback(self._running.discard)
            if self._interrupted:
                task.cancel()
        try:
            await coroutine
        except BaseException as error:  # noqa: BLE001 - who waits raises it
            return error
        finally:
            if this_process() is not self._process:
                end_child(forked())
        return None

    def _run_apart(self) -> None:
        while True:
            # Of a task that a function has begun: it has ended, and who awaits it is told.
            with contextlib.suppress(SystemExit, KeyboardInterrupt):
                self._loop.run_forever()
            if self._closing:
                self._runner.close()
                return


def note_tasks() -> WeakSet[asyncio.Task[Any]]:
    """Return the tasks that are begun from here on, by the task that runs and by those."""
    begun: WeakSet[asyncio.Task[Any]] = WeakSet()
    _BEGUN.set(begun)
    return begun


def _noting(loop: asyncio.AbstractEventLoop, coroutine: Any, **given: Any) -> asyncio.Task[Any]:
    """Make a task; all of them come by here, whatever library makes them."""
    task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, **given)
    context = given.get("context")
    begun = (_BEGUN.get if context is None else lambda _: context.get(_BEGUN))(None)
    if begun is not None:
        begun.add(task)
    return task
