"""Tasks that begin at once: a handler that awaits nothing costs no turn of the loop.

``asyncio.create_task`` runs its coroutine at the loop's next turn, and whoever waits
for it goes on two turns later. Python 3.12 has eager tasks; for 3.11 here is one.
Either is a task of its own, with a ``current_task`` of its own: timeouts and task
groups inside the coroutine cancel it, and a cancellation of the caller does not.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from typing import Any

__all__ = ["start_task"]

if sys.version_info >= (3, 12):

    def start_task(coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine up to its first wait, in a new task; done if there was none."""
        loop = asyncio.get_running_loop()
        return asyncio.Task(coroutine, loop=loop, eager_start=True)

else:
    import contextvars
    from asyncio import tasks

    class _EagerTask(tasks._PyTask):  # type: ignore[name-defined,misc]
        """A task of the Python implementation, which can be stepped from outside.

        What ``Task.__init__`` of 3.11 does, but for the first step: that is taken
        in the caller's turn, as 3.12 does it (gh-97696).
        """

        def __init__(
            self, coroutine: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop
        ) -> None:
            asyncio.futures._PyFuture.__init__(self, loop=loop)  # type: ignore[attr-defined]
            self._name = "rifl-call"
            self._num_cancels_requested = 0
            self._must_cancel = False
            self._fut_waiter = None
            self._coro = coroutine
            self._context = contextvars.copy_context()
            outer = tasks.current_task(loop)
            # Documented for those who make their own tasks ("Extending").
            tasks._leave_task(loop, outer)  # type: ignore[arg-type]
            try:
                self._context.run(self._Task__step)
            finally:
                tasks._enter_task(loop, outer)  # type: ignore[arg-type]
            if not self.done():
                tasks._register_task(self)

    def start_task(coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine up to its first wait, in a new task; done if there was none."""
        task: asyncio.Task[Any] = _EagerTask(coroutine, asyncio.get_running_loop())
        return task
