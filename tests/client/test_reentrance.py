"""A call from within another one of its channel, in one thread: refused at once, or done."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Callable
from typing import Any

import grpc
import pytest

import rifl
import rifl.aio
from rifl.core import Outcome, ReentrantCall
from tests.calls.services import Kinds, serving
from tests.helpers.at_a_line import at_a_line, bounded

UNARY = "/t.Kinds/Unary"


class Within:
    """Calls, from within a call; keeps what is done, and what is refused."""

    def __init__(self, call: Callable[[bytes], Any]) -> None:
        self._call = call
        self.done: list[bytes] = []
        self.refused: list[ReentrantCall] = []

    def __call__(self, *_: object) -> None:
        text = b"within %d" % (len(self.done) + len(self.refused))
        try:
            self._call(text)
        except ReentrantCall as error:
            self.refused.append(error)
        else:
            self.done.append(text)

    def check_refusals(self) -> None:
        assert {each.outcome for each in self.refused} == {Outcome.NOT_EXECUTED}
        assert all(isinstance(each, ReentrantCall) for each in self.refused)
        assert {each.code() for each in self.refused} == {grpc.StatusCode.FAILED_PRECONDITION}


def _finalized(act: Callable[[], None]) -> Callable[[], None]:
    def drop() -> None:
        class Dropped:
            def __del__(self) -> None:
                act()

        dropped: Any = Dropped()
        dropped.itself = dropped
        del dropped
        # The youngest alone: a whole process is much.
        gc.collect(0)

    return drop


@pytest.mark.parametrize("by", ["call", "finalizer"])
@pytest.mark.parametrize("several", [False, True])
def test_a_call_at_any_line_of_a_call(by: str, several: bool) -> None:
    """Not executed, with nothing sent, or done; the channel goes on (DESIGN §3)."""
    kinds = Kinds()
    with serving("sync", kinds) as service:
        target = (
            f"{service.address},localhost:{service.address.rpartition(':')[2]}"
            if several
            else service.address
        )
        with rifl.connect(target) as channel:
            call = channel.unary_unary(UNARY)
            within = Within(lambda text: call(text, timeout=10))
            act: Callable[[], None] = within if by == "call" else _finalized(within)

            def walk() -> list[bytes]:
                done: list[bytes] = []
                while True:
                    with at_a_line(len(done) + 1, act) as line:
                        call(b"outer %d" % len(done), timeout=10)
                    done.append(b"outer %d" % len(done))
                    if not line.came:
                        return done

            call(b"first", timeout=10)
            done = bounded(walk, 60)
            bounded(lambda: call(b"another thread's", timeout=10))
            within.check_refusals()
            assert within.done
            expected = [b"first", *done, *within.done, b"another thread's"]
            assert sorted(kinds.effects) == sorted(expected)
            # No seq is left that nobody waits for: the window stays whole.
            assert channel._client.session.lease is not None
            assert channel._client.session.lease.tracker.incomplete == 0


def test_a_signals_handler_that_calls_during_a_call() -> None:
    """At each line of ours in the main thread, which signals reach (DESIGN §3)."""
    kinds = Kinds()
    with serving("sync", kinds) as service, rifl.connect(service.address) as channel:
        call = channel.unary_unary(UNARY)
        call(b"first", timeout=10)
        within = Within(lambda text: call(text, timeout=10))
        before = signal.signal(signal.SIGUSR1, within)
        done = []
        try:
            while True:
                with at_a_line(len(done) + 1, lambda: signal.raise_signal(signal.SIGUSR1)) as line:
                    call(b"outer %d" % len(done), timeout=10)
                done.append(b"outer %d" % len(done))
                if not line.came:
                    break
        finally:
            signal.signal(signal.SIGUSR1, before)
        within.check_refusals()
        assert sorted(kinds.effects) == sorted([b"first", *done, *within.done])


def test_the_first_call_of_a_channel_and_one_within_it() -> None:
    """While it gets its client id: done, or refused; nothing hangs (DESIGN §5)."""
    kinds = Kinds()
    with serving("sync", kinds) as service:

        def walk() -> None:
            number = 0
            while True:
                number += 4
                with rifl.connect(service.address) as channel:
                    call = channel.unary_unary(UNARY)
                    within = Within(lambda text, call=call: call(text, timeout=10))  # type: ignore[misc]
                    with at_a_line(number, within) as line:
                        call(b"outer", timeout=10)
                    call(b"after", timeout=10)
                    effects, kinds.effects = kinds.effects, []
                    expected = [b"outer", b"after", *within.done]
                    assert sorted(effects) == sorted(expected), line
                if not line.came:
                    return

        bounded(walk, 90)


async def test_a_call_at_any_line_of_a_call_on_an_event_loop() -> None:
    """A handler begins it, and the task waits for it later (DESIGN §3)."""
    kinds = Kinds()
    with serving("aio", kinds) as service:
        async with rifl.aio.connect(service.address) as channel:
            call = channel.unary_unary(UNARY)
            begun: list[Any] = []
            within = Within(lambda text: begun.append(call(text, timeout=10)))
            async with asyncio.timeout(60):
                await call(b"first", timeout=10)
                done: list[bytes] = []
                while True:
                    with at_a_line(len(done) + 1, within) as line:
                        await call(b"outer %d" % len(done), timeout=10)
                    done.append(b"outer %d" % len(done))
                    if not line.came:
                        break
                for each in begun:
                    await each
            within.check_refusals()
            assert sorted(kinds.effects) == sorted([b"first", *done, *within.done])
