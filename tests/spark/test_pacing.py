"""Pacing of batched calls: their size, and their time (DESIGN §8)."""

from __future__ import annotations

import itertools

import pytest

from rifl.spark._delivery import Flights, Pace


def _settled(per_row_s: float, *, max_rows: int = 500, target_s: float = 1.0) -> list[int]:
    pace = Pace(max_rows, target_s)
    sizes = []
    for _ in range(20):
        sizes.append(pace.rows)
        pace.answered(pace.rows, pace.rows * per_row_s)
    return sizes


def test_calls_grow_while_they_are_quick_and_shrink_when_they_are_slow() -> None:
    """They settle where one takes about the time it should, whatever a row takes (DESIGN §8)."""
    assert _settled(0.0001)[-1] == 500
    slow = _settled(0.1)
    assert slow[0] == 8
    assert slow[-1] == 8
    for per_row_s in (0.001, 0.004, 0.02, 0.3):
        assert 0.25 <= _settled(per_row_s)[-1] * per_row_s <= 2
    assert _settled(60.0)[-1] == 1
    assert max(_settled(0.0001, max_rows=7)) == 7
    # A last, short call says nothing about larger ones.
    pace = Pace(500, 1.0)
    pace.answered(3, 0.001)
    assert pace.rows == 8


def test_what_timed_out_is_sent_in_parts_down_to_a_row_alone() -> None:
    """So a row has the whole timeout; where a row alone times out, and nobody answers, the
    others are not tried one by one (DESIGN §8)."""
    pace = Pace(500, 1.0)
    assert [pace.timed_out(rows) for rows in (500, 31, 1)] == [31, 1, None]
    assert pace.rows == 1
    assert pace.hopeless
    assert pace.timed_out(500) is None
    pace.answered(1, 0.1)
    assert not pace.hopeless
    assert pace.timed_out(500) == 31


def test_rows_a_second_are_bounded() -> None:
    """A task sends no more than it may, and a second's worth at once at most (DESIGN §8)."""
    pace = Pace(500, 1.0, 5.0)
    assert pace.rows == 5
    now, sent = 100.0, []
    for _ in range(50):
        now += pace.pause_s(pace.rows, now)
        sent.append((now, pace.rows))
    for (first, rows), (second, _) in itertools.pairwise(sent):
        assert second - first >= rows / 5 - 1e-9
    assert Pace(500, 1.0, 0.5).rows == 1
    assert Pace(500, 1.0).pause_s(10**9, now) == 0


def _in_flight(side_by_side: int, *, slow: bool = True, fixed: int | None = None) -> int:
    """Return how many calls a task settles at, if the server runs so many at once."""
    flights, now = Flights(fixed), 0.0
    for _ in range(200):
        # Of calls of a second that many end in one.
        now += 1 / min(flights.most, side_by_side)
        flights.answered(10, now, slow=slow)
    return flights.most


@pytest.mark.parametrize(("side_by_side", "found"), [(1, 4), (4, 4), (8, 8), (16, 16), (100, 16)])
def test_more_calls_are_in_flight_while_that_is_quicker(side_by_side: int, found: int) -> None:
    """As many as the server runs side by side, 16 at most; quick calls, or fixed ones, no more."""
    assert _in_flight(side_by_side) == found
    assert _in_flight(side_by_side, slow=False) == 4
    assert _in_flight(side_by_side, fixed=2) == 2
