"""Calls in queue for their turns (CURP §3.1)."""

from __future__ import annotations

from curp._core.key_locks import KeyLock
from curp._replica.waiting import LockQueue

A, B, EVERYTHING = frozenset({1}), frozenset({2}), frozenset[int]()


def test_who_conflicts_waits_and_is_woken_when_the_turn_has_come() -> None:
    """In the order of asking; nobody is woken twice, or for another key."""
    queue = LockQueue()
    first, second, third, other = KeyLock(A), KeyLock(A), KeyLock(A), KeyLock(B)
    assert queue.stand(first) is None
    waiting = queue.stand(second)
    behind = queue.stand(third)
    assert queue.stand(other) is None
    assert queue.waiting() == [waiting, behind]
    assert queue.leave(other) == []
    assert queue.leave(first) == [waiting]
    assert queue.leave(second) == [behind]
    assert queue.leave(third) == []
    assert len(queue) == 0


def test_one_that_leaves_before_its_turn_is_not_woken() -> None:
    """Those behind it do not overtake by that what it waited for; then they come."""
    queue = LockQueue()
    first, everything, behind = KeyLock(A), KeyLock(EVERYTHING), KeyLock(B)
    queue.stand(first)
    queue.stand(everything)
    waiting = queue.stand(behind)
    assert queue.leave(everything) == []
    assert everything not in queue
    assert queue.waiting() == [waiting]
    assert queue.leave(first) == [waiting]
