"""The choice to record calls, by measurements of both ways (DESIGN §7, the client path)."""

from __future__ import annotations

import random
from collections import Counter, deque

import pytest

from curp._core.recording_choice import BegunCall, RecordingChoice, Way


def _run(
    choice: RecordingChoice, recorded_s: float, alone_s: float, calls: int, callers: int = 1
) -> Counter[Way]:
    """Make so many calls, ``callers`` at a time, that take so long by each way."""
    went: Counter[Way] = Counter()
    under_way: deque[BegunCall] = deque()
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
    [(0.010, 0.020, Way.RECORDED), (0.010, 0.0102, Way.RECORDED), (0.0015, 0.001, Way.LEADER_ONLY)],
)
def test_the_faster_way_is_chosen(
    recorded_s: float, alone_s: float, expected: Way, callers: int
) -> None:
    """A far witness and a farther log, about the same, and an append faster than a record."""
    choice = RecordingChoice()
    _run(choice, recorded_s, alone_s, 100 * callers + 200, callers)
    assert choice.chosen is expected


def test_trials_become_rare_while_the_choice_stands() -> None:
    """What is tried costs less than 2% of all calls in the end."""
    choice = RecordingChoice()
    _run(choice, 0.002, 0.001, 20_000)
    went = _run(choice, 0.002, 0.001, 20_000)
    assert went[Way.RECORDED] < 0.025 * 20_000
    assert went[Way.RECORDED] >= 16


def test_a_change_is_found_by_a_later_trial() -> None:
    """The log moves away: what was not worth while is chosen again, and the other way round."""
    choice = RecordingChoice()
    _run(choice, 0.002, 0.001, 2000)
    assert choice.chosen is Way.LEADER_ONLY
    _run(choice, 0.002, 0.010, 20_000)
    assert choice.chosen is Way.RECORDED
    _run(choice, 0.020, 0.010, 20_000)
    assert choice.chosen is Way.LEADER_ONLY


def test_between_the_bounds_nothing_changes() -> None:
    """Two ways that are about the same do not take turns (hysteresis)."""
    for first in ((0.001, 0.002), (0.002, 0.001)):
        choice = RecordingChoice()
        _run(choice, *first, 2000)
        chosen = choice.chosen
        _run(choice, 0.0095, 0.010, 20_000)
        assert choice.chosen is chosen


@pytest.mark.parametrize("stalled", [Way.RECORDED, Way.LEADER_ONLY])
def test_one_call_that_stalls_decides_nothing(stalled: Way) -> None:
    """In the trial or in the stretch before it: the slowest eighth of either does not count."""
    choice = RecordingChoice()
    _run(choice, 0.005, 0.010, 5000)
    for _ in range(10_000):
        begun = choice.begin()
        if begun.way is stalled and begun.stretch:
            choice.ended(begun, 30.0)
            break
        choice.ended(begun, 0.005 if begun.way is Way.RECORDED else 0.010)
    went = _run(choice, 0.005, 0.010, 2000)
    assert choice.chosen is Way.RECORDED
    assert went[Way.LEADER_ONLY] < 100


def test_one_trial_of_a_busy_moment_decides_nothing() -> None:
    """It speaks against the choice, and the next one, which comes soon, does not."""
    choice = RecordingChoice()
    _run(choice, 0.005, 0.010, 5000)
    while (begun := choice.begin()).way is Way.RECORDED:
        choice.ended(begun, 0.050)
    choice.ended(begun, 0.010)
    went = _run(choice, 0.005, 0.010, 400)
    assert choice.chosen is Way.RECORDED
    assert went[Way.LEADER_ONLY] >= 32


# Of one caller without delay, beside other work on two cores: each twentieth of the calls of
# either way, as they were measured side by side, in milliseconds; and one in 400 stalls.
_RECORDED_MS = (
    *(0.59, 0.80, 0.87, 0.91, 0.94, 0.97, 1.00, 1.03, 1.05, 1.07),
    *(1.10, 1.12, 1.15, 1.18, 1.22, 1.28, 1.38, 1.50, 1.71, 2.37),
)
_ALONE_MS = (
    *(0.82, 0.93, 0.96, 0.97, 0.99, 1.00, 1.02, 1.03, 1.05, 1.06),
    *(1.08, 1.10, 1.13, 1.18, 1.27, 1.51, 1.96, 2.78, 3.99, 6.06),
)
_STALL_MS = 100.0


@pytest.mark.parametrize(
    ("times", "most"), [(1.0, 1.0), (0.67, 0.8), (0.5, 0.7), (3.0, 1.15)], ids=str
)
def test_what_was_measured_is_chosen_well(times: float, most: float) -> None:
    """Replayed, an adaptive caller takes no longer than one that never records.

    ``times``: recorded calls take that of what they took; ``most``: the adaptive caller's
    mean, in terms of that of one whose calls go alone.
    """
    for seed in range(10):
        dice = random.Random(seed)

        choice = RecordingChoice()
        taken_s = alone_s = 0.0
        for _ in range(6000):
            begun = choice.begin()
            stall_ms = _STALL_MS if dice.random() < 1 / 400 else 0.0
            took = {
                Way.RECORDED: (stall_ms + times * dice.choice(_RECORDED_MS)) / 1e3,
                Way.LEADER_ONLY: (stall_ms + dice.choice(_ALONE_MS)) / 1e3,
            }
            choice.ended(begun, took[begun.way])
            taken_s += took[begun.way]
            alone_s += took[Way.LEADER_ONLY]
        assert taken_s / alone_s < most, seed


def test_calls_that_fail_count_for_nothing() -> None:
    """A refusal is fast, and says nothing of either way: a trial of refusals comes to nothing."""
    choice = RecordingChoice()
    went: Counter[Way] = Counter()
    for _ in range(5000):
        begun = choice.begin()
        went[begun.way] += 1
        if begun.way is Way.LEADER_ONLY:
            choice.failed(begun)
        else:
            choice.ended(begun, 0.001)
    assert choice.chosen is Way.RECORDED
    assert went[Way.LEADER_ONLY] < 1000
    _run(choice, 0.001, 0.010, 100)
    assert choice.chosen is Way.RECORDED
