"""Model of the world: an event loop of ``asyncio`` for one life of a process, in virtual time."""

from __future__ import annotations

import asyncio
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from contextvars import Context, copy_context
from typing import Any

from chaos.sim.loop import Process, Timer

__all__ = ["EventLoop"]

# Callbacks of one moment: more are a loop that never waits.
_MOST_AT_ONCE = 100_000
# How long a call takes that is made in a thread.
_THREAD_S = 0.0005
# What a player that leads does for as long as it leads, and others that may not fail.
_LASTING = (
    "Leading._operate",
    "Leading._keep",
    "Leading._watched",
    "MainStream.run",
    "ClientBatch._run",
)


class EventLoop(asyncio.AbstractEventLoop):
    """Its time is the process's clock; it ends with the process, and waits while that is stopped.

    ``broken`` is told what a callback raised that no task waits for.
    """

    def __init__(self, process: Process, broken: Callable[[str], None]) -> None:
        self.process = process
        self._broken = broken
        self._ready: deque[_Handle] = deque()
        self._woken = False
        # What a task is about dies with its process, and not when it is collected.
        self._tasks: list[asyncio.Task[Any]] = []

    # What asyncio asks of a loop.

    def time(self) -> float:
        """Return the process's clock."""
        return self.process.clock()

    def get_debug(self) -> bool:
        """Never."""
        return False

    def is_running(self) -> bool:
        """Whether the process lives."""
        return self.process.alive

    def is_closed(self) -> bool:
        """Whether it does not."""
        return not self.process.alive

    def create_future(self) -> asyncio.Future[Any]:
        """Return a future of this loop."""
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]  # the stubs' own differs between versions
        self,
        coro: Coroutine[Any, Any, Any],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[Any]:
        """Return a task of this loop."""
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks.append(task)
        if getattr(coro, "__qualname__", "") in _LASTING:
            task.add_done_callback(self._judge)
        return task

    def call_soon(  # type: ignore[override]  # as above
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> _Handle:
        """Have something happen in this moment."""
        handle = _Handle(callback, args, context)
        self._ready.append(handle)
        if not self._woken:
            self._woken = True
            self.process.after(0.0, self._turn)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]  # there are no threads

    def call_later(  # type: ignore[override]  # as above
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> _Handle:
        """Have something happen after so many seconds."""
        return self.call_at(self.time() + max(delay, 0.0), callback, *args, context=context)

    def call_at(  # type: ignore[override]  # as above
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> _Handle:
        """Have something happen at a time."""
        handle = _Handle(callback, args, context)
        handle.timer = self.process.at(when, self._due, handle)
        return handle

    async def run_in_executor(  # type: ignore[override]  # as above
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> Any:
        """Call it in a while: there are no threads."""
        await asyncio.sleep(_THREAD_S)
        return func(*args)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Tell an error that no task waited for."""
        error, message = context.get("exception"), str(context.get("message"))
        # An error that no task retrieved is told when it is collected: at any time.
        if error is not None and "never retrieved" not in message:
            self._broken(f"{message}: {type(error).__name__}: {error}")

    # What the simulator does.

    @contextmanager
    def running(self) -> Iterator[None]:
        """Be the loop that runs, for a block of ``with``."""
        before = events._get_running_loop()
        events._set_running_loop(self)
        try:
            yield
        finally:
            events._set_running_loop(before)

    def forget(self) -> None:
        """End what its process left, when the run is over and judged."""
        self.process.alive = False
        for task in self._tasks:
            if task.done():
                continue
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            for _ in range(3):
                # One that waits in a ``finally`` is asked again.
                with suppress(RuntimeError, StopIteration):
                    task.get_coro().close()
        self._tasks.clear()

    def _judge(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            name = getattr(task.get_coro(), "__qualname__", "")
            self._broken(f"{name} has ended: {type(error).__name__}: {error}")

    def _due(self, handle: _Handle) -> None:
        self._ready.append(handle)
        self._turn()

    def _turn(self) -> None:
        """Do what is ready, until nothing is."""
        self._woken = True
        ready, process = self._ready, self.process
        try:
            with self.running():
                for _ in range(_MOST_AT_ONCE):
                    if not ready or not process.alive:
                        return
                    handle = ready.popleft()
                    if handle.callback is not None:
                        try:
                            handle.context.run(handle.callback, *handle.args)
                        except (SystemExit, KeyboardInterrupt):
                            raise
                        except BaseException as error:  # noqa: BLE001 - for the run's judge
                            self._broken(f"a callback raised {type(error).__name__}: {error}")
            raise AssertionError(f"{self.process.name} never waits")
        finally:
            self._woken = False


class _Handle:
    """What ``asyncio.Handle`` and ``TimerHandle`` are to who cancels one; half of their cost."""

    __slots__ = ("args", "callback", "context", "timer")

    def __init__(
        self, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None
    ) -> None:
        self.callback: Callable[..., object] | None = callback
        self.args = args
        self.context = copy_context() if context is None else context
        self.timer: Timer | None = None

    def cancel(self) -> None:
        """Have it not happen."""
        self.callback = None
        if self.timer is not None:
            self.timer.cancel()
