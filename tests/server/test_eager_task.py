"""Tasks that begin at once, which shield handlers on a grpc.aio.server (DESIGN §4, step 6)."""

from __future__ import annotations

import asyncio
import contextvars

import pytest

from rifl._server.eager_task import start_task

_VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="outside")


async def test_what_waits_for_nothing_is_done_at_once() -> None:
    """A coroutine that never suspends has run, its result at hand, when start_task returns."""

    async def work() -> str:
        return "done"

    task = start_task(work())
    assert task.done()
    assert task.result() == "done"


async def test_what_it_raises_is_kept_for_who_asks() -> None:
    """An exception before the first wait is the task's, not start_task's."""

    async def work() -> None:
        raise LookupError("inside")

    task = start_task(work())
    with pytest.raises(LookupError, match="inside"):
        task.result()


async def test_it_is_a_task_of_its_own_before_and_after_it_waits() -> None:
    """current_task is one and the same task inside, another outside, from the first step on."""
    seen: list[object] = []

    async def work() -> None:
        seen.append(asyncio.current_task())
        await asyncio.sleep(0)
        seen.append(asyncio.current_task())

    outer = asyncio.current_task()
    task = start_task(work())
    assert asyncio.current_task() is outer
    assert task in asyncio.all_tasks()
    await task
    assert seen == [task, task]
    assert task is not outer


async def test_its_context_is_a_copy() -> None:
    """A context variable set inside stays inside (as in any task)."""

    async def work() -> str:
        _VARIABLE.set("inside")
        await asyncio.sleep(0)
        return _VARIABLE.get()

    assert await start_task(work()) == "inside"
    assert _VARIABLE.get() == "outside"


async def test_a_timeout_inside_ends_the_wait_inside() -> None:
    """asyncio.timeout, entered before the first wait, cancels this task and not its caller."""

    async def work() -> str:
        try:
            async with asyncio.timeout(0.01):
                await asyncio.Event().wait()
        except TimeoutError:
            return "timed out"
        return "not reached"

    assert await asyncio.shield(start_task(work())) == "timed out"


async def test_a_task_group_inside_works() -> None:
    """A task group entered before the first wait collects its tasks' errors."""

    async def fail() -> None:
        raise LookupError

    async def work() -> str:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(fail())
                await asyncio.Event().wait()
        except ExceptionGroup:
            return "collected"
        return "not reached"

    assert await start_task(work()) == "collected"


async def test_cancelling_who_waits_leaves_it_running() -> None:
    """Behind a shield it outlives the caller that a deadline cancelled (DESIGN §4, step 6)."""
    gate, ran = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        await gate.wait()
        ran.set()

    async def caller() -> None:
        await asyncio.shield(start_task(work()))

    waiting = asyncio.create_task(caller())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not ran.is_set()
    gate.set()
    await ran.wait()


async def test_it_can_be_cancelled_itself() -> None:
    """cancel reaches what it waits for."""
    task = start_task(asyncio.Event().wait())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def test_a_cancellation_asked_for_in_the_first_step_comes_at_its_first_wait() -> None:
    """A task that cancels itself is cancelled where it next waits, and can catch it there."""

    async def work() -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            task.uncancel()
            return "caught"
        return "not reached"

    assert await asyncio.shield(start_task(work())) == "caught"


async def test_a_cancellation_asked_for_just_before_the_end_ends_it_as_cancelled() -> None:
    """As any task's: what cancels itself and then returns was cancelled."""

    async def work() -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return "too late"

    task = start_task(work())
    await asyncio.sleep(0)
    assert task.cancelled()


async def test_it_ends_as_cancelled_where_its_first_step_raises_that() -> None:
    """A CancelledError of the coroutine's own cancels the task and not who started it."""

    async def work() -> None:
        raise asyncio.CancelledError

    task = start_task(work())
    assert task.cancelled()
    assert asyncio.current_task() is not task


async def test_what_ends_the_process_goes_through_and_is_kept() -> None:
    """A SystemExit of the first step is raised at once, with the caller's task in its place."""
    started: list[asyncio.Task[None]] = []

    async def work() -> None:
        task = asyncio.current_task()
        assert task is not None
        started.append(task)
        raise SystemExit(3)

    outer = asyncio.current_task()
    with pytest.raises(SystemExit):
        start_task(work())
    assert asyncio.current_task() is outer
    assert isinstance(started[0].exception(), SystemExit)


async def test_who_asked_in_the_first_step_is_told_of_the_end() -> None:
    """A callback added from inside is called, whether or not the coroutine waited."""
    told: list[str] = []

    async def work(wait: bool) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.add_done_callback(lambda _: told.append(f"waited {wait}"))
        if wait:
            await asyncio.sleep(0)

    await asyncio.gather(start_task(work(False)), start_task(work(True)))
    await asyncio.sleep(0)
    assert sorted(told) == ["waited False", "waited True"]
