"""A group's client: a call, or an interrupt, at any line of a call; nothing hangs or is doubled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

import rifl
from rifl.core import Outcome, ReentrantCall
from rifl.core._calling.retry import RetryPolicy
from tests.curp.client.scripted import METHOD, ScriptedGroup, field
from tests.helpers.at_a_line import Interrupted, at_a_line, bounded, interrupting
from tests.helpers.waiting import until

# Of an interrupt within a finalizer, which Python tells of.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
RETRY = RetryPolicy(initial_backoff_s=0.01, max_backoff_s=0.05)
CALLS: dict[str, Callable[[Any, bytes], Any]] = {
    "call": lambda stub, request: stub(request, timeout=10),
    "future": lambda stub, request: stub.future(request, timeout=10).result(60),
}


@pytest.fixture(scope="module")
def group() -> Iterator[ScriptedGroup]:
    """One for all: each value commutes with all others."""
    with ScriptedGroup() as made:
        yield made


def _connected(group: ScriptedGroup, group_path: str, *, several: bool) -> rifl.Channel:
    target = f"{group.target},localhost:{group.target.rpartition(':')[2]}"
    channel = rifl.connect(target if several else group.target, group_path=group_path, retry=RETRY)
    channel.unary_unary(METHOD)(field(b"first"), timeout=10)
    until(lambda: channel._client.path.knowledge.view is not None, "it knows the group")
    group.executed.clear()
    return channel


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("group_path", ["fast", "adaptive"])
@pytest.mark.parametrize("several", [False, True])
def test_a_call_at_any_line_of_a_call(
    group: ScriptedGroup, name: str, group_path: str, several: bool
) -> None:
    """As a signal's handler makes it: refused, not executed, or done once (DESIGN §7)."""
    call, step = CALLS[name], 3
    with _connected(group, group_path, several=several) as channel:
        stub = channel.unary_unary(METHOD)
        within: list[bytes] = []
        refused: list[Outcome] = []

        def act() -> None:
            request = field(b"within %d" % len(within))
            try:
                call(stub, request)
            except ReentrantCall as error:
                refused.append(error.outcome)
            else:
                within.append(request)

        def walk() -> list[bytes]:
            done: list[bytes] = []
            while True:
                request = field(b"outer %d" % len(done))
                with at_a_line(step * len(done) + 1, act) as line:
                    call(stub, request)
                done.append(request)
                if not line.came:
                    return done

        done = bounded(walk, 60)
        other = field(b"another thread's")
        bounded(lambda: call(stub, other))
        assert within
        assert set(refused) <= {Outcome.NOT_EXECUTED}
        assert sorted(group.executed) == sorted([*done, *within, other])


def _walk(group: ScriptedGroup, name: str, group_path: str, step: int) -> None:
    call, number, line = CALLS[name], 1, None
    with _connected(group, group_path, several=True) as channel:
        stub = channel.unary_unary(METHOD)
        while line is None or line.came:
            mine, other = field(b"mine %d" % number), field(b"other %d" % number)
            with at_a_line(number, interrupting) as line, suppress(Interrupted):
                call(stub, mine)
            bounded(lambda: call(stub, other))  # noqa: B023 - at once
            assert group.executed.count(other) == 1, line
            assert group.executed.count(mine) <= 1, line
            group.executed.clear()
            number += step


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("group_path", ["fast", "adaptive"])
@pytest.mark.parametrize(
    "step", [17, pytest.param(1, marks=[pytest.mark.long, pytest.mark.timeout(900)])]
)
def test_an_interrupt_at_a_line(
    group: ScriptedGroup, name: str, group_path: str, step: int
) -> None:
    """Others' calls go on, and its effect is there once or not at all (DESIGN §7)."""
    bounded(lambda: _walk(group, name, group_path, step), 800 if step == 1 else 100)
