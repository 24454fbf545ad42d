"""An interrupt at any line of ours, in each kind of call: no seq is lost, and nothing hangs.

``make test`` tries some lines, and ``make test-long`` all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

import rifl
import rifl.aio
from rifl.core._calling.client_session import ClientSession
from tests.calls.services import Kinds, serving
from tests.helpers.at_a_line import Interrupted, Line, at_a_line, bounded, interrupting
from tests.helpers.waiting import until

# Of an interrupt within a finalizer, which Python tells of.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
UNARY, COUNT, COLLECT = "/t.Kinds/Unary", "/t.Kinds/Count", "/t.Kinds/Collect"
Call = Callable[[rifl.Channel], Any]
CALLS: dict[str, Call] = {
    "call": lambda channel: channel.unary_unary(UNARY)(b"mine", timeout=10),
    "future": lambda channel: channel.unary_unary(UNARY).future(b"mine", timeout=10).result(60),
    "responses": lambda channel: list(channel.unary_stream(COUNT)(b"3", timeout=10)),
    "requests": lambda channel: channel.stream_unary(COLLECT)(iter([b"mine"]), timeout=10),
    "batch": lambda channel: channel.batch(UNARY, [(b"mine", None), (b"mine 2", None)], timeout=10),
    "open": lambda channel: channel.session.open(10),
}
# Every so many lines, of a channel that has a client id, and of a new one.
STEPS = (5, 13)


def _all_known(session: ClientSession) -> bool:
    """Whether each incomplete seq is one that can be asked about, or waits for late attempts."""
    lease = session.lease
    assert lease is not None
    return lease.tracker.incomplete <= len(session._unresolved) + len(session._lingering)


class _Waits:
    """One that waits for room in the window, from the moment at which a call arrives."""

    # No time of its own at which it ends.
    ends_at: float | None = None

    def __init__(self, waiters: dict[Any, None]) -> None:
        self._waiters = waiters
        self.waits = self.woken = False

    def __call__(self) -> None:
        self.waits = True
        self._waiters[self] = None

    def wake(self) -> None:
        """Be told that there is some."""
        self.woken = True

    def close(self) -> None:
        """Be told that the channel was closed."""
        self.woken = True


class _Told(Kinds):
    """Says that a call arrives."""

    arrived: Callable[[], None] = staticmethod(lambda: None)

    def unary(self, request: bytes, context: Any) -> bytes:
        if request.startswith(b"mine"):
            self.arrived()
        return super().unary(request, context)

    def collect(self, requests: Iterator[bytes], context: Any) -> bytes:
        self.arrived()
        return super().collect(requests, context)

    def count(self, request: bytes, context: Any) -> Iterator[bytes]:
        self.arrived()
        return super().count(request, context)


def _interrupted(channel: rifl.Channel, call: Call, number: int) -> Line:
    with at_a_line(number, interrupting) as line, suppress(Interrupted):
        call(channel)
    return line


def _check(channel: rifl.Channel, kinds: _Told, line: Line) -> None:
    call = channel.unary_unary(UNARY)
    bounded(lambda: call(b"another thread's", timeout=10))
    call(b"after", timeout=10)
    effects, kinds.effects = kinds.effects, []
    for request in (b"mine", b"mine 2", b"3"):
        assert effects.count(request) <= 1, line
    assert effects.count(b"another thread's") == effects.count(b"after") == 1, line
    client = channel._client
    until(lambda: _all_known(client.session), f"every seq is known: {line}")
    assert not client.window_waiters, line
    assert not client.lease_waiters, line
    if isinstance(waits := kinds.arrived, _Waits):
        assert waits.woken or not waits.waits, line


def _walk(name: str, steps: tuple[int, int]) -> int:
    kinds, call, lines = _Told(), CALLS[name], 0
    with serving("sync", kinds) as service:
        for fresh, step in zip((False, True), steps, strict=True):
            number, line = 1, None
            # Streams are deduplicated where their server says so, which their client id tells.
            channel = rifl.connect(service.address)
            while line is None or line.came:
                if fresh:
                    channel.close()
                    channel = rifl.connect(service.address)
                else:
                    channel.unary_unary(UNARY)(b"before", timeout=10)
                kinds.arrived = _Waits(channel._client.window_waiters)
                line = _interrupted(channel, call, number)
                _check(channel, kinds, line)
                number += step
                lines += 1
            channel.close()
    return lines


@pytest.mark.parametrize("name", CALLS)
def test_an_interrupt_at_some_lines(name: str) -> None:
    """Its effect is there once or not at all, and others' calls go on (DESIGN §3)."""
    assert bounded(lambda: _walk(name, STEPS), 100) > 2


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", CALLS)
def test_an_interrupt_at_every_line(name: str) -> None:
    """Its effect is there once or not at all, and others' calls go on (DESIGN §3)."""
    bounded(lambda: _walk(name, (1, 1)), 800)


@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.long)])
async def test_an_interrupt_on_an_event_loop(step: int) -> None:
    """Of the task that calls, at each line before it waits (DESIGN §3)."""
    kinds = Kinds()
    with serving("aio", kinds) as service:
        async with rifl.aio.connect(service.address) as channel:
            call = channel.unary_unary(UNARY)
            await call(b"before", timeout=10)
            number, line = 1, None
            while line is None or line.came:
                # Others' names: what was sent before it was interrupted may arrive late.
                mine, after = b"mine %d" % number, b"after %d" % number
                with at_a_line(number, interrupting) as line:
                    begun = None
                    with suppress(Interrupted):
                        begun = call(mine, timeout=10)
                async with asyncio.timeout(20):
                    if begun is not None:
                        await begun
                    await call(after, timeout=10)
                assert kinds.effects.count(after) == 1, line
                async with asyncio.timeout(20):
                    while not _all_known(channel._client.session):
                        await asyncio.sleep(0.005)
                number += step
    assert len(set(kinds.effects)) == len(kinds.effects)
