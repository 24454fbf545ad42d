"""Whether calls are recorded: by what was measured of both ways (DESIGN §7, the client path)."""

from __future__ import annotations

from collections import Counter, deque

import pytest

from curp.core.way_choice import Begun, Way, WayChoice


def _run(
    choice: WayChoice, recorded_s: float, alone_s: float, calls: int, callers: int = 1
) -> Counter[Way]:
    """Make so many calls, ``callers`` at a time, that take so long by each way."""
    went: Counter[Way] = Counter()
    under_way: deque[Begun] = deque()
    for _ in range(calls):
        begun = choice.begin()
        went[begun.way] += 1
        under_way.append(begun)
        if len(under_way) == callers:
            done = under_way.popleft()
            choice.ended(done, recorded_s if done.way is Way.RECORDED else alone_s)
    for done in under_way:
        choice.ended(done, recorded_s if done.way is Way.RECORDED else alone_s)
    return went


@pytest.mark.parametrize("callers", [1, 16, 64])
@pytest.mark.parametrize(
    ("recorded_s", "alone_s", "expected"),
    [(0.010, 0.020, Way.RECORDED), (0.010, 0.0102, Way.RECORDED), (0.0015, 0.001, Way.ALONE)],
)
def test_the_faster_way_is_chosen(
    recorded_s: float, alone_s: float, expected: Way, callers: int
) -> None:
    """A far witness and a farther log, about the same, and an append faster than a record."""
    choice = WayChoice()
    _run(choice, recorded_s, alone_s, 100 * callers + 200, callers)
    assert choice.chosen is expected


def test_trials_become_rare_while_the_choice_stands() -> None:
    """What is tried costs less than 2% of all calls in the end."""
    choice = WayChoice()
    _run(choice, 0.002, 0.001, 20_000)
    went = _run(choice, 0.002, 0.001, 20_000)
    assert went[Way.RECORDED] < 0.025 * 20_000
    assert went[Way.RECORDED] >= 16


def test_a_change_is_found_by_a_later_trial() -> None:
    """The log moves away: what was not worth while is chosen again, and the other way round."""
    choice = WayChoice()
    _run(choice, 0.002, 0.001, 2000)
    assert choice.chosen is Way.ALONE
    _run(choice, 0.002, 0.010, 20_000)
    assert choice.chosen is Way.RECORDED
    _run(choice, 0.020, 0.010, 20_000)
    assert choice.chosen is Way.ALONE


def test_between_the_bounds_nothing_changes() -> None:
    """Two ways that are about the same do not take turns (hysteresis)."""
    for first in ((0.001, 0.002), (0.002, 0.001)):
        choice = WayChoice()
        _run(choice, *first, 2000)
        chosen = choice.chosen
        _run(choice, 0.0095, 0.010, 20_000)
        assert choice.chosen is chosen


def test_one_call_that_stalls_decides_nothing() -> None:
    """It counts as eight others at most, and the next trial's word is smoothed with it."""
    choice = WayChoice()
    _run(choice, 0.005, 0.010, 5000)
    tries = 0
    while True:
        begun = choice.begin()
        if begun.way is Way.RECORDED and begun.stretch:
            tries += 1
        if begun.way is Way.ALONE and begun.stretch:
            choice.ended(begun, 30.0)
            break
        choice.ended(begun, 0.005 if begun.way is Way.RECORDED else 0.010)
    _run(choice, 0.005, 0.010, 64)
    assert choice.chosen is Way.RECORDED


def test_calls_that_fail_count_for_nothing() -> None:
    """A refusal is fast, and says nothing of either way: a trial of refusals comes to nothing."""
    choice = WayChoice()
    went: Counter[Way] = Counter()
    for _ in range(5000):
        begun = choice.begin()
        went[begun.way] += 1
        if begun.way is Way.ALONE:
            choice.failed(begun)
        else:
            choice.ended(begun, 0.001)
    assert choice.chosen is Way.RECORDED
    assert went[Way.ALONE] < 1000
    _run(choice, 0.001, 0.010, 100)
    assert choice.chosen is Way.RECORDED
