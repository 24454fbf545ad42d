"""Letting a leadership go: DESIGN §7, invariant 10."""

from __future__ import annotations

from typing import Any

from curp._core.handover import (
    ChangesUnderWay,
    CountRunning,
    EndLease,
    EndNumber,
    RefuseCalls,
    StepDown,
    hand_over,
)
from curp._core.steps import Sync, VisibleWait


def _drive(
    running: list[int], seconds_a_look: float = 0.01, changing: tuple[bool, ...] = (False,)
) -> list[Any]:
    now = 100.0
    rule = hand_over(lambda: now)
    steps: list[Any] = []
    answer: Any = None
    while True:
        try:
            step = rule.send(answer)
        except StopIteration:
            return steps
        steps.append(step)
        answer = None
        if isinstance(step, ChangesUnderWay):
            answer, changing = changing[0], changing[1:] or changing
        elif isinstance(step, CountRunning):
            answer = running.pop(0) if len(running) > 1 else running[0]
        elif isinstance(step, VisibleWait):
            now += seconds_a_look


def test_the_lease_ends_when_nothing_is_answered_any_more() -> None:
    """Refused, ended, synced, stepped down, and only then let go (invariant 10)."""
    found = _drive([2, 1, 0], changing=(True, True, False))
    # By their types: steps without fields are all equal.
    steps = [type(step) for step in found if not isinstance(step, (CountRunning, VisibleWait))]
    assert steps == [
        *[ChangesUnderWay] * 3,
        RefuseCalls,
        Sync,
        StepDown,
        EndNumber,
        EndLease,
    ]
    assert Sync(timeout_s=5.0) in found


def test_what_does_not_end_is_not_waited_for_for_ever() -> None:
    """Five seconds of calls that run, and the leadership goes all the same."""
    steps = _drive([1], seconds_a_look=1.0)
    assert sum(isinstance(step, VisibleWait) for step in steps) == 5
    assert type(steps[-1]) is EndLease


def test_the_number_does_not_end_while_its_list_is_changed() -> None:
    """A change that does not end may answer first again: its witnesses are asked (5, 11)."""
    steps = _drive([0], seconds_a_look=1.0, changing=(True,))
    assert EndNumber not in map(type, steps)
    assert type(steps[-1]) is EndLease
