"""The client's tracker against its contract (RIFL §3.2)."""

from __future__ import annotations

import copy
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rifl.core import RequestTracker


def seq_of(tracker: RequestTracker) -> int:
    begun = tracker.begin()
    assert begun is not None
    return begun[0]


class Naive:
    """The contract, in the simplest words: who was issued, who is complete."""

    def __init__(self, window: int) -> None:
        self.window = window
        self.issued = 0
        self.complete: set[int] = set()

    def begin(self) -> int | None:
        if self.issued - len(self.complete) >= self.window:
            return None
        self.issued += 1
        return self.issued

    @property
    def first_incomplete(self) -> int:
        return next(seq for seq in range(1, self.issued + 2) if seq not in self.complete)

    def ranges(self) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        for seq in sorted(seq for seq in self.complete if seq > self.first_incomplete):
            if found and found[-1][1] == seq - 1:
                found[-1] = (found[-1][0], seq)
            else:
                found.append((seq, seq))
        return found


@settings(deadline=None)
@given(
    window=st.integers(1, 12),
    steps=st.lists(st.one_of(st.none(), st.none(), st.integers(-4, 45)), max_size=120),
)
def test_it_keeps_the_contract(window: int, steps: list[int | None]) -> None:
    """begin, complete, first_incomplete and completed_ranges are the contract's (RIFL §3.2)."""
    tracker, naive = RequestTracker(window), Naive(window)
    for seq in steps:
        if seq is None:
            expected = naive.begin()
            if expected is None:
                assert tracker.begin() is None
            else:
                assert seq_of(tracker) == expected
        else:
            tracker.complete(seq)
            if 1 <= seq <= naive.issued:
                naive.complete.add(seq)
        assert tracker.first_incomplete == naive.first_incomplete
        assert tracker.completed_ranges() == naive.ranges()
        assert tracker.incomplete == naive.issued - len(naive.complete)


def test_the_window_counts_calls_and_not_distance() -> None:
    """With one call stuck, any number of others go through the window (DESIGN §4)."""
    tracker = RequestTracker(window=2)
    stuck = seq_of(tracker)
    for _ in range(20_000):
        tracker.complete(seq_of(tracker))
    assert tracker.first_incomplete == stuck
    assert tracker.completed_ranges() == [(2, 20_001)]
    seq_of(tracker)
    assert tracker.begin() is None


def test_a_full_window_of_scattered_calls_loses_no_completion() -> None:
    """No far range is ignored with the oldest 512 calls thousands of seqs apart (DESIGN §4)."""
    window, apart = 512, 100
    tracker = RequestTracker(window)
    for _ in range(window - 1):
        seq_of(tracker)
        for _ in range(apart - 1):
            tracker.complete(seq_of(tracker))
    ranges = tracker.completed_ranges()
    assert ranges == [(k * apart + 2, (k + 1) * apart) for k in range(window - 1)]
    for stuck in range(1, (window - 1) * apart, apart):
        tracker.complete(stuck)
    assert tracker.first_incomplete == (window - 1) * apart + 1
    assert (tracker.incomplete, tracker.completed_ranges()) == (0, [])


def test_completing_twice_frees_one_place() -> None:
    """A call completed again does not count again, below or above the oldest."""
    tracker = RequestTracker(window=3)
    first, second, _ = seq_of(tracker), seq_of(tracker), seq_of(tracker)
    for _ in range(3):
        tracker.complete(second)
        tracker.complete(first)
    assert tracker.incomplete == 1
    assert (seq_of(tracker), seq_of(tracker)) == (4, 5)
    assert tracker.begin() is None


def test_a_refused_call_takes_no_seq() -> None:
    """A full window leaves nothing begun: the next seq has no hole before it."""
    tracker = RequestTracker(window=1)
    seq_of(tracker)
    for _ in range(5):
        assert tracker.begin() is None
    tracker.complete(1)
    assert (seq_of(tracker), tracker.first_incomplete) == (2, 2)


def test_a_million_calls_behind_a_stuck_one_cost_no_memory() -> None:
    """Memory is that of the incomplete calls, not of the distance."""
    tracker = RequestTracker()
    seq_of(tracker)
    for _ in range(1_000_000):
        tracker.complete(seq_of(tracker))
    tracemalloc.start()
    try:
        copied = copy.deepcopy(tracker)
        size = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert copied.completed_ranges() == [(2, 1_000_001)]
    assert size < 16_384


@pytest.mark.parametrize("window", [0, -1])
def test_a_window_without_room_is_refused(window: int) -> None:
    """A window under 1 is an error when the tracker is made (DESIGN §9, configuration)."""
    with pytest.raises(ValueError, match="window"):
        RequestTracker(window)
