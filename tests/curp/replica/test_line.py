"""Calls in line for their turns (CURP §3.1)."""

from __future__ import annotations

from curp._core.turns import Turn
from curp._replica.line import Line

A, B, EVERYTHING = frozenset({1}), frozenset({2}), frozenset[int]()


def test_who_conflicts_waits_and_is_woken_when_the_turn_has_come() -> None:
    """In the order of asking; nobody is woken twice, or for another key."""
    line = Line()
    first, second, third, other = Turn(A), Turn(A), Turn(A), Turn(B)
    assert line.stand(first) is None
    waiting = line.stand(second)
    behind = line.stand(third)
    assert line.stand(other) is None
    assert line.waiting() == [waiting, behind]
    assert line.leave(other) == []
    assert line.leave(first) == [waiting]
    assert line.leave(second) == [behind]
    assert line.leave(third) == []
    assert len(line) == 0


def test_one_that_leaves_before_its_turn_is_not_woken() -> None:
    """Those behind it do not overtake by that what it waited for; then they come."""
    line = Line()
    first, everything, behind = Turn(A), Turn(EVERYTHING), Turn(B)
    line.stand(first)
    line.stand(everything)
    waiting = line.stand(behind)
    assert line.leave(everything) == []
    assert everything not in line
    assert line.waiting() == [waiting]
    assert line.leave(first) == [waiting]
