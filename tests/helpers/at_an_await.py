"""A task that is struck at one place: cancelled at an await, or its loop interrupted at a line."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from typing import Any

from tests.helpers.at_a_line import Line, at_a_line

__all__ = ["WAYS", "strike"]

# Ctrl-C where no handler of asyncio's is; a cancellation while the task waits, and one in the
# moment in which that comes for which it waits.
WAYS = ("interrupted", "cancelled", "cancelled-late")


class _Await(Line):
    """The await with a number, at which the task that awaits this is cancelled."""

    def __init__(self, number: int, act: Coroutine[Any, Any, Any], *, late: bool) -> None:
        super().__init__(number)
        self._act = act
        self._late = late

    def __await__(self) -> Generator[Any, Any, Any]:
        """Do what is to be done, and count for what it waits."""
        steps, task = self._act.__await__(), asyncio.current_task()
        assert task is not None
        try:
            waits = steps.send(None)
        except StopIteration as end:
            # It waits for nothing.
            return end.value
        while True:
            self.seen += 1
            if self.seen == self.number:
                self.came = True
                self.where = f"await of {waits!r:.200}"
                if self._late and waits is not None:
                    # Called before the task is woken by the same future.
                    waits.add_done_callback(lambda _: task.cancel())
                else:
                    asyncio.get_running_loop().call_soon(task.cancel)
            try:
                got = yield waits
            except BaseException as error:  # noqa: BLE001 - the awaiting coroutine's
                thrown: BaseException | None = error
            else:
                thrown = None
            try:
                waits = steps.throw(thrown) if thrown else steps.send(got)
            except StopIteration as end:
                return end.value


def strike(
    loop: asyncio.AbstractEventLoop,
    act: Coroutine[Any, Any, Any],
    number: int,
    way: str,
    expected: tuple[type[BaseException], ...],
    only: Callable[[str, str], bool] | None = None,
) -> tuple[Line, Any]:
    """Do it in a task that is struck; what it returns, None where it raised what is expected.

    ``only``: as of ``at_a_line``.

    After an interrupt every second task is cancelled, the others go on, as the loop does.
    """
    raised = (asyncio.CancelledError, KeyboardInterrupt, *expected)
    if way == "interrupted":
        task = loop.create_task(act)
        with at_a_line(number, _interrupt, only) as line, suppress(*raised):
            loop.run_until_complete(task)
        if line.came and number % 2:
            task.cancel()
    else:
        line = _Await(number, act, late=way == "cancelled-late")
        task = loop.create_task(_awaiting(line))
    loop.call_later(20, task.cancel, "it hangs")
    whole = False
    while not whole:
        # A task that waited for what was interrupted raises that again. And an interrupt that came
        # after the loop was told to stop left that for its next run.
        with suppress(KeyboardInterrupt, RuntimeError):
            loop.run_until_complete(asyncio.wait([task]))
            whole = True
    try:
        return line, task.result()
    except raised as error:
        if error.args == ("it hangs",) or not line.came:
            raise AssertionError(f"{error!r} of a task that was not struck, or hung") from error
        return line, None


def _interrupt() -> None:
    raise KeyboardInterrupt


async def _awaiting(line: _Await) -> Any:
    return await line
