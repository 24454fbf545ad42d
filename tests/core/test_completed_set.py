"""The set of completed seqs against plain sets (RIFL §3.3; DESIGN §4, head-of-line)."""

from __future__ import annotations

import copy
import tracemalloc

from hypothesis import given, settings
from hypothesis import strategies as st

from rifl.core import CompletedSet

_NEAR = 4096
# Around the borders between bits and ranges, where mistakes would be.
_PLACES = st.one_of(
    st.integers(0, 24),
    *(st.integers(k * _NEAR - 12, k * _NEAR + 12) for k in (1, 2, 3)),
)
_ADD = st.tuples(st.just("add"), _PLACES, _PLACES)
_NARROW = st.builds(lambda at, width: ("add", at, at + width), _PLACES, st.integers(0, 3))
_ADVANCE = st.tuples(st.just("advance"), _PLACES, st.just(0))
_STEPS = st.lists(st.one_of(_NARROW, _NARROW, _ADD, _ADVANCE), max_size=25)


def runs(members: set[int]) -> list[tuple[int, int]]:
    """The maximal inclusive runs of a set of numbers, sorted."""
    found: list[tuple[int, int]] = []
    for member in sorted(members):
        if found and found[-1][1] + 1 == member:
            found[-1] = (found[-1][0], member)
        else:
            found.append((member, member))
    return found


def merged(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for first, last in sorted(spans):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return found


@settings(max_examples=150, deadline=None)
@given(_STEPS)
def test_it_is_the_set_of_what_was_added(steps: list[tuple[str, int, int]]) -> None:
    """Membership, first incomplete and ranges are those of a Python set (RIFL §3.3)."""
    completed, model = CompletedSet(), {0}
    spans = [(0, 0)]
    for step, first, last in steps:
        if step == "add":
            completed.add(first, last)
        else:
            completed.advance_to(first)
            first, last = 1, first - 1
        model.update(range(first, last + 1))
        if first <= last:
            spans = merged([*spans, (first, last)])
        assert [(0, completed.first_incomplete - 1), *completed.ranges()] == spans
    assert runs(model) == spans
    for seq in [seq for place in range(4) for seq in range(place * _NEAR - 40, place * _NEAR + 40)]:
        assert (seq in completed) == (seq in model or seq < 0)


_BIG = st.one_of(st.integers(1, 2**63 - 1), st.integers(9000, 9040))


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.booleans(), _BIG, st.integers(0, 3) | st.integers(0, 2**62)), max_size=30)
)
def test_distances_do_not_matter(steps: list[tuple[bool, int, int]]) -> None:
    """Anywhere in 63 bits the ranges are the union of what was added (DESIGN §4)."""
    completed = CompletedSet()
    spans = [(0, 0)]
    for advance, first, width in steps:
        if advance:
            completed.advance_to(first >> 20)
            spans.append((0, max(0, (first >> 20) - 1)))
        else:
            completed.add(first, first + width)
            spans.append((first, first + width))
        union = merged(spans)
        assert [(0, completed.first_incomplete - 1), *completed.ranges()] == union
        # Else as many ranges are counted as there were additions.
        far = list(zip(completed._far_starts, completed._far_ends, strict=True))
        assert far == merged(far)
        for seq in (first - 1, first, first + width, first + width + 1):
            assert (seq in completed) == any(low <= seq <= high for low, high in union)


@settings(deadline=None)
@given(st.lists(_NARROW, max_size=40), st.integers(1, 3))
def test_a_full_set_makes_nothing_up_and_forgets_nothing(
    steps: list[tuple[str, int, int]], max_ranges: int
) -> None:
    """Beyond max_ranges an addition may be ignored; what is in stays in (DESIGN §9)."""
    completed, model = CompletedSet(max_ranges=max_ranges), {0}
    members: set[int] = set()
    for _, first, last in steps:
        completed.add(first, last)
        model.update(range(first, last + 1))
        before, members = members, {seq for seq in model if seq in completed}
        assert before <= members
        spans = runs(members)
        assert [(0, completed.first_incomplete - 1), *completed.ranges()] == spans
        assert len(completed._far_starts) <= max_ranges


def test_far_ranges_are_bounded_whatever_comes() -> None:
    """A hundred thousand ranges with gaps keep at most max_ranges of them (DESIGN §9)."""
    completed = CompletedSet(max_ranges=100)
    for at in range(100_000):
        completed.add(_NEAR * 2 + 2 * at)
    assert len(completed.ranges()) == 100
    assert completed.first_incomplete == 1


def _bytes_of(made: object) -> int:
    """What an object and all it holds take in memory."""
    tracemalloc.start()
    try:
        copied = copy.deepcopy(made)
        size = tracemalloc.get_traced_memory()[0]
        del copied
    finally:
        tracemalloc.stop()
    return size


def test_a_jump_costs_no_memory() -> None:
    """First incomplete 10^9, and a range up to it, take a few KiB."""
    advanced, ranged = CompletedSet(), CompletedSet()
    tracemalloc.start()
    try:
        advanced.advance_to(10**9)
        ranged.add(2, 10**9 - 1)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (advanced.first_incomplete, advanced.ranges()) == (10**9, [])
    assert (ranged.first_incomplete, ranged.ranges()) == (1, [(2, 10**9 - 1)])
    ranged.add(1)
    assert (ranged.first_incomplete, ranged.ranges()) == (10**9, [])
    assert peak < 16_384


def test_a_stuck_call_costs_no_memory() -> None:
    """A million seqs completed behind an incomplete one take a few KiB (DESIGN §4)."""
    completed = CompletedSet()
    for at in range(20_000):
        completed.add(2 + at * 50, 51 + at * 50)
    assert (completed.first_incomplete, completed.ranges()) == (1, [(2, 1_000_001)])
    assert _bytes_of(completed) < 16_384
