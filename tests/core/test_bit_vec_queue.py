"""The bit queue against a plain list (DESIGN §9: bounds)."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from rifl.core import BitVecQueue


class QueueAgainstList(RuleBasedStateMachine):
    """A list of booleans says what the queue has to be."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = BitVecQueue()
        self.model: list[bool] = []

    @rule(count=st.integers(0, 9000), bit=st.booleans())
    def extend(self, count: int, bit: bool) -> None:
        self.queue.extend(count, bit)
        self.model.extend([bit] * count)

    @rule(data=st.data(), bit=st.booleans())
    def set_range(self, data: st.DataObject, bit: bool) -> None:
        start = data.draw(st.integers(-1, len(self.model) + 1))
        stop = data.draw(st.integers(-1, len(self.model) + 1))
        if 0 <= start <= stop <= len(self.model):
            self.queue.set_range(start, stop, bit)
            self.model[start:stop] = [bit] * (stop - start)
        else:
            with pytest.raises(IndexError):
                self.queue.set_range(start, stop, bit)

    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(-1, len(self.model) + 1))
        if 0 <= count <= len(self.model):
            self.queue.drop(count)
            del self.model[:count]
        else:
            with pytest.raises(IndexError):
                self.queue.drop(count)

    @rule()
    def clear(self) -> None:
        self.queue.clear()
        self.model.clear()

    @rule(data=st.data(), bit=st.booleans())
    def find(self, data: st.DataObject, bit: bool) -> None:
        start = data.draw(st.integers(0, len(self.model) + 3))
        try:
            expected = self.model.index(bit, start)
        except ValueError:
            expected = -1
        assert self.queue.find(bit, start) == expected

    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(-3, len(self.model) + 3))
        if 0 <= offset < len(self.model):
            assert self.queue[offset] is self.model[offset]
        else:
            with pytest.raises(IndexError):
                self.queue[offset]

    @invariant()
    def equal(self) -> None:
        assert len(self.queue) == len(self.model)
        assert repr(self.queue) == "BitVecQueue('" + "".join("01"[b] for b in self.model) + "')"


QueueAgainstList.TestCase.settings = settings(
    max_examples=50, stateful_step_count=30, deadline=None
)


class TestAgainstAList(QueueAgainstList.TestCase):  # type: ignore[misc,name-defined]
    """Every operation does what it would do to a list of booleans."""


def test_dropping_a_million_bits_one_by_one_moves_each_bit_a_bounded_number_of_times() -> None:
    """Dropping costs time in proportion to what is dropped, amortised."""
    count = 1_000_000
    queue = BitVecQueue()
    queue.extend(count, True)
    moved, held = 0, len(queue._bits)
    for _ in range(count):
        queue.drop(1)
        if len(queue._bits) != held:
            held = len(queue._bits)
            moved += held
    assert len(queue) == 0
    assert moved <= count


def test_a_queue_that_stays_short_keeps_no_memory_of_what_went_through() -> None:
    """Dropped bits are freed while others are appended (DESIGN §9, bounds on everything)."""
    queue = BitVecQueue("1" * 100)
    longest = 0
    for _ in range(100_000):
        queue.extend(1, True)
        queue.drop(1)
        longest = max(longest, len(queue._bits))
    assert longest <= 2 * 4096 + 200


def test_a_negative_start_finds_nothing_that_was_dropped() -> None:
    """Dropped bits are out of reach of every method (BitVecQueue's contract)."""
    queue = BitVecQueue("1" * 100 + "0" * 10)
    queue.drop(50)
    with pytest.raises(IndexError):
        queue.find(True, -5)


def test_extending_by_less_than_nothing_is_refused() -> None:
    """A negative count is an error and changes nothing (BitVecQueue's contract)."""
    queue = BitVecQueue("101")
    with pytest.raises(ValueError, match="negative"):
        queue.extend(-1)
    assert repr(queue) == "BitVecQueue('101')"
