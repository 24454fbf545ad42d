"""Runs that no caller waits for: which are cancelled, and how many there may be (DESIGN §4)."""

from __future__ import annotations

import heapq

import pytest

from rifl.core._serving.policy import Kind, MethodPolicy
from rifl.core._serving.unheard import (
    UnheardBound,
    cancelled_at,
    may_be_cancelled,
    tried_until,
)
from rifl.core._shared.call import Call
from tests.core.test_serving import COMMITTED, attempt_of, policy_of


def test_only_what_may_run_again_is_cancelled() -> None:
    """Not a plain method, nor one whose policy says so."""
    kinds = {kind: may_be_cancelled(MethodPolicy(kind=kind.value)) for kind in Kind}
    assert kinds == {Kind.PLAIN: False, Kind.IDEMPOTENT: True, Kind.ATOMIC: True}
    assert not may_be_cancelled(MethodPolicy(kind="idempotent", cancel_unheard=False))


@pytest.mark.parametrize(
    ("tried", "attempt_s", "remaining_s", "until"),
    [
        (0.0, 0.0, 0.0, 10.0),
        (0.0, 0.0, 5.0, 10.0),
        (15.0, 2.0, 0.0, 15.0),
        (15.0, 2.0, None, 15.0),
        # The client's clock has come to the deadline a moment earlier.
        (15.0, 2.0, 0.15, 15.0),
        (15.0, 0.1, 0.04, 15.0),
        # It cancelled: it does not try again.
        (15.0, 2.0, 1.0, 10.0),
        # The deadline was the call's: its client cut the attempt off, maybe.
        (15.0, 6.0, 5.0, 15.0),
        (15.0, 5.9, 5.0, 15.0),
        (9.0, 2.0, 0.0, 10.0),
    ],
)
def test_a_call_is_tried_as_long_as_its_header_says(
    tried: float, attempt_s: float, remaining_s: float | None, until: float
) -> None:
    """If its attempt ended at its deadline; at 10."""
    call = Call(7, b"", 1)
    call.tried_until, call.attempt_s, call.try_ms = tried, attempt_s, 6000
    assert tried_until(call, remaining_s, 10.0) == until


def test_no_run_is_cancelled_that_commits_or_is_waited_for() -> None:
    """What was begun to be committed is never cut off."""
    attempt = attempt_of(policy_of(Kind.ATOMIC))
    assert cancelled_at(attempt, 3.0) == 3.0
    attempt.duplicates = 1
    assert cancelled_at(attempt, 3.0) is None
    attempt.duplicates = 0
    attempt.recorded = COMMITTED
    assert cancelled_at(attempt, 3.0) is None
    attempt.recorded = None
    attempt.committing = True
    assert cancelled_at(attempt, 3.0) is None


def test_runs_for_no_caller_end_within_half_of_the_deadlines() -> None:
    """As many as ended in that time are allowed, and a few more; a number is what it says."""
    bound = UnheardBound()
    for _ in range(16):
        bound.left()
    assert not bound.refuses(1.0, 100.0)
    bound.left()
    assert bound.refuses(1.0, 100.0)
    for _ in range(100):
        bound.left()
        bound.left()
        bound.ended(100.1)
    assert bound.running == 117
    assert bound.refuses(1.0, 100.2)
    for _ in range(17):
        bound.heard()
    assert not bound.refuses(1.0, 100.2)
    assert bound.refuses(1.0, 100.7)
    fixed = UnheardBound(0)
    assert not fixed.refuses(1.0, 0.0)
    fixed.left()
    assert fixed.refuses(None, 0.0)


@pytest.mark.parametrize("bounded", [True, False])
def test_after_doubled_load_calls_are_answered_in_time_again(bounded: bool) -> None:
    """A handler of 40 ms for 8 places, deadlines of 1 s, load doubled for 10 s: virtual time."""
    places, run_s, deadline_s, capacity = 8, 0.04, 1.0, 200.0
    bound = UnheardBound(None if bounded else 10**9)
    arrivals, at = [], 0.0
    while at < 20.0:
        arrivals.append(at)
        at += 1 / (capacity * (1.6 if 2.0 <= at < 12.0 else 0.8))
    free = [0.0] * places
    events = [(at, 0, number) for number, at in enumerate(arrivals)]
    heapq.heapify(events)
    ends: dict[int, float] = {}
    counted: set[int] = set()
    answered: dict[int, float] = {}
    while events:
        now, what, number = heapq.heappop(events)
        deadline = arrivals[number] + deadline_s
        if what == 0:
            if bound.running and bound.refuses(deadline_s, now):
                continue
            # Handlers wait for a place, in order.
            begins = max(now, heapq.heappop(free))
            ends[number] = begins + run_s
            heapq.heappush(free, ends[number])
            heapq.heappush(events, (ends[number], 2, number))
            heapq.heappush(events, (deadline, 1, number))
        elif what == 1 and number not in answered:
            counted.add(number)
            bound.left()
        elif what == 2:
            answered[number] = now
            if number in counted:
                bound.ended(now)
    assert bound.running == 0
    back = [number for number, at in enumerate(arrivals) if 14.0 <= at < 17.0]
    in_time = sum(answered.get(each, 99.0) <= arrivals[each] + deadline_s for each in back)
    assert (in_time >= 0.9 * len(back)) is bounded
