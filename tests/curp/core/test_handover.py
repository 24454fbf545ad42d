"""Letting a leadership go: DESIGN §7, invariant 10."""

from __future__ import annotations

from typing import Any

from curp.core.handover import CountRunning, EndLease, RefuseCalls, StepDown, hand_over
from curp.core.recovery import Wait
from curp.core.steps import Sync


def _drive(running: list[int], seconds_a_look: float = 0.01) -> list[Any]:
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
        if isinstance(step, CountRunning):
            answer = running.pop(0) if len(running) > 1 else running[0]
        elif isinstance(step, Wait):
            now += seconds_a_look


def test_the_lease_ends_when_nothing_is_answered_any_more() -> None:
    """Refused, ended, synced, stepped down, and only then let go (invariant 10)."""
    steps = [step for step in _drive([2, 1, 0]) if not isinstance(step, (CountRunning, Wait))]
    assert steps == [RefuseCalls(), Sync(None), StepDown(), EndLease()]


def test_what_does_not_end_is_not_waited_for_for_ever() -> None:
    """Five seconds of calls that run, and the leadership goes all the same."""
    steps = _drive([1], seconds_a_look=1.0)
    assert sum(isinstance(step, Wait) for step in steps) == 5
    assert steps[-1] == EndLease()
