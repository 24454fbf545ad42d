"""Synced calls that a witness is still to be told of: DESIGN §7, invariant 12."""

from __future__ import annotations

from curp._core.garbage_collection import Collectable, Untold


def _request(seq: int) -> Collectable:
    return Collectable(1, seq, None, frozenset({seq}))


def test_each_witness_is_told_everything_once() -> None:
    """What could not be told comes first the next time (invariant 12)."""
    collection = Untold(["a", "b"])
    for seq in range(1, 6):
        collection.synced(_request(seq))
    first = collection.take("a", 2)
    assert [taken.seq for taken in first] == [1, 2]
    collection.not_told("a", first)
    assert [taken.seq for taken in collection.take("a", 9)] == [1, 2, 3, 4, 5]
    assert collection.waiting("a") == 0
    assert collection.waiting("b") == 5
    assert collection.take("unknown", 5) == []


def test_queues_are_bounded() -> None:
    """For a witness that cannot be told the oldest are dropped: it will report them."""
    collection = Untold(["a"], max_queued=3)
    for seq in range(1, 5):
        collection.synced(_request(seq))
    taken = collection.take("a", 2)
    assert [request.seq for request in taken] == [2, 3]
    for seq in (5, 6):
        collection.synced(_request(seq))
    collection.not_told("a", taken)
    assert [request.seq for request in collection.take("a", 9)] == [4, 5, 6]
