"""A task that calls, cancelled at any await or interrupted at any line of its loop: others go on.

``make test`` tries some lines, and ``make test-long`` all; all awaits are few.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest

import rifl
import rifl.aio
from rifl.core._calling.client_session import ClientSession
from tests.calls.services import Kinds, serving
from tests.helpers.at_a_line import OURS, bounded
from tests.helpers.at_an_await import WAYS, strike

# Of what a task is told that nobody waits for any more.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
UNARY, COUNT, COLLECT = "/t.Kinds/Unary", "/t.Kinds/Count", "/t.Kinds/Collect"
# What a call that was struck may raise.
EXPECTED = (grpc.RpcError,)
Call = Callable[[Any, bytes], Awaitable[Any]]


# What each sends is a number of the call's own: one that was struck may arrive late.


async def _responses(channel: Any, mine: bytes) -> list[bytes]:
    return [each async for each in channel.unary_stream(COUNT)(mine, timeout=10)]


async def _requests(channel: Any, mine: bytes) -> Any:
    async def requests() -> Any:
        yield mine
        await asyncio.sleep(0)
        yield mine

    return await channel.stream_unary(COLLECT)(requests(), timeout=10)


async def _unary(channel: Any, mine: bytes) -> Any:
    return await channel.unary_unary(UNARY)(mine, timeout=10)


async def _batch(channel: Any, mine: bytes) -> Any:
    return await channel.batch(UNARY, [(mine, None), (mine + b" 2", None)], timeout=10)


async def _opened(channel: Any, mine: bytes) -> Any:
    del mine
    return await channel.session.open(10)


CALLS: dict[str, Call] = {
    "call": _unary,
    "responses": _responses,
    "requests": _requests,
    "batch": _batch,
    "open": _opened,
}


def _all_known(session: ClientSession) -> bool:
    """Whether each incomplete seq is one that can be asked about, or waits for late attempts."""
    lease = session.lease
    assert lease is not None
    return lease.tracker.incomplete <= len(session._unresolved) + len(session._lingering)


def _in_the_end(file: str, function: str) -> bool:
    """Of what the loop calls as gRPC's call ends, and under the locks that this takes."""
    ends = ("_inner_done", "_ended", "complete", "next_waiters", "wake", "_tell", "finish")
    return (file.startswith(OURS[0]) and function in ends) or "owned_lock" in file


def _walk(
    name: str,
    way: str,
    step: int,
    *,
    fresh: bool,
    only: Callable[[str, str], bool] | None = None,
) -> int:
    kinds, call, number, line, times = Kinds(), CALLS[name], 1, None, 1
    loop = asyncio.new_event_loop()

    def run(act: Awaitable[Any]) -> Any:
        async def soon() -> Any:
            async with asyncio.timeout(20):
                return await act

        return loop.run_until_complete(soon())

    async def connected() -> Any:
        return rifl.aio.connect(service.address)

    async def settled(session: ClientSession) -> None:
        while not _all_known(session):
            await asyncio.sleep(0.005)

    with serving("sync", kinds) as service:
        channel = run(connected())
        while line is None or line.came:
            try:
                if fresh:
                    run(channel.close())
                    channel = run(connected())
                else:
                    run(_unary(channel, b"before"))
                began = loop.time()
                # As many responses, with zeros before that.
                mine = b"3".zfill(number)
                line, _ = strike(loop, call(channel, mine), number, way, EXPECTED, only)
                assert loop.time() - began < 8, "it waited for its deadline"
                run(_unary(channel, b"after"))
                run(settled(channel._client.session))
            except BaseException as error:
                raise AssertionError(f"{way} at {line} ({number}): {error!r}") from error
            for each in (mine, mine + b" 2", mine + b"|" + mine):
                assert kinds.effects.count(each) <= 1, line
            assert kinds.effects.count(b"after") == times, line
            times += 1
            number += step
        run(channel.close())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
    return number


@pytest.mark.parametrize("fresh", [False, True], ids=["known", "new"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CALLS)
def test_a_task_that_is_struck_somewhere(name: str, way: str, fresh: bool) -> None:
    """Its effect is there once or not at all, and others' calls go on (DESIGN §3)."""
    step = 11 if way == "interrupted" else 1
    assert bounded(lambda: _walk(name, way, step, fresh=fresh), 100) > 1


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("fresh", [False, True], ids=["known", "new"])
@pytest.mark.parametrize("name", CALLS)
def test_a_task_that_is_interrupted_at_every_line(name: str, fresh: bool) -> None:
    """Its effect is there once or not at all, and others' calls go on (DESIGN §3)."""
    bounded(lambda: _walk(name, "interrupted", 1, fresh=fresh), 800)


def test_an_interrupt_as_a_call_ends() -> None:
    """At each line there: the seq is acknowledged, or set aside (invariant 2 of the session)."""
    walked = bounded(lambda: _walk("call", "interrupted", 1, fresh=False, only=_in_the_end), 100)
    assert walked > 20
