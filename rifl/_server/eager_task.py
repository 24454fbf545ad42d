"""Tasks that begin at once: a handler that awaits nothing costs no turn of the loop.

``asyncio.create_task`` runs its coroutine at the loop's next turn, and its waiting
task goes on two turns later. Python 3.12 has eager tasks; for 3.11 here is one.
Either is a task of its own, with a ``current_task`` of its own: timeouts and task
groups inside the coroutine cancel it, and a cancellation of the caller does not.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Coroutine
from typing import Any


async def take_cancellation(task: asyncio.Task[Any]) -> None:
    """Take a cancellation of ``task``, which runs this, that its handler has not awaited, if any.

    The rest of the call is none of the handler's, and goes on. That the task was cancelled stays
    to be seen: a loop that ends is known by it.
    """
    with contextlib.suppress(asyncio.CancelledError, RuntimeError):
        # Not so where a collector closes the coroutine, without a loop or within another task.
        if asyncio.current_task() is task:
            await asyncio.sleep(0)


if sys.version_info >= (3, 12):

    def start_task(coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine up to its first wait, in a new task; done if there was none."""
        loop = asyncio.get_running_loop()
        return asyncio.Task(coroutine, loop=loop, eager_start=True)

else:
    import contextvars
    from asyncio import tasks

    _finished = asyncio.base_futures._FINISHED

    class _EagerTask(tasks._PyTask):  # type: ignore[name-defined,misc]
        """A task of the Python implementation, which can be stepped from outside.

        What ``Task.__init__`` of 3.11 does, but for the first step: that is taken
        in the caller's turn, as 3.12 does it (gh-97696). A coroutine that returns in it
        is done; of any other, ``Task.__step`` is shown what it yielded or raised.
        """

        def __init__(
            self, coroutine: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop
        ) -> None:
            # What ``Future.__init__`` does, but for where it was made (in debug mode).
            self._loop = loop
            self._callbacks: list[Any] = []
            self._name = "rifl-call"
            self._num_cancels_requested = 0
            self._must_cancel = False
            self._fut_waiter = None
            self._coro: Any = coroutine
            self._context = contextvars.copy_context()
            outer = tasks.current_task(loop)
            # Documented for those who make their own tasks ("Extending").
            tasks._leave_task(loop, outer)  # type: ignore[arg-type]
            tasks._enter_task(loop, self)
            shown: Any = None
            try:
                shown = _Shown(self, self._context.run(coroutine.send, None), None)
            except StopIteration as stop:
                if self._must_cancel:
                    shown = _Shown(self, None, stop)
                else:
                    self.set_result_now(stop.value)
            except BaseException as error:  # noqa: BLE001 - for ``__step`` to take
                shown = _Shown(self, None, error)
            finally:
                tasks._leave_task(loop, self)
                try:
                    if shown is not None:
                        self._coro = shown
                        self._context.run(self._Task__step)
                finally:
                    self._coro = coroutine
                    tasks._enter_task(loop, outer)  # type: ignore[arg-type]
            if shown is not None and not self.done():
                tasks._register_task(self)

        def set_result_now(self, result: Any) -> None:
            """End with a result, as a task does for itself."""
            super(tasks._PyTask, self).set_result(result)  # type: ignore[attr-defined]

        def __del__(self) -> None:
            # Most have nothing to complain of.
            if self._state != _finished or self._exception is not None:
                super().__del__()

    class _Shown:
        """In a coroutine's place for one step: what its first one came to, once more."""

        __slots__ = ("error", "must_cancel", "task", "yielded")

        def __init__(self, task: _EagerTask, yielded: Any, error: BaseException | None) -> None:
            self.task = task
            self.yielded = yielded
            self.error = error
            # That it was cancelled in the step is not for its beginning to see.
            self.must_cancel, task._must_cancel = task._must_cancel, False

        def send(self, _: None) -> Any:
            """Yield or raise what was."""
            self.task._must_cancel = self.must_cancel
            error, self.error = self.error, None
            if error is None:
                return self.yielded
            try:
                raise error
            finally:
                # Else the error's traceback holds the error.
                del error

    def start_task(coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine up to its first wait, in a new task; done if there was none."""
        task: asyncio.Task[Any] = _EagerTask(coroutine, asyncio.get_running_loop())
        return task
