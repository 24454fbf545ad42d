"""Runs that no caller waits for: which are cancelled, and how many there may be (DESIGN §4)."""

from __future__ import annotations

import heapq
from collections import deque

import pytest

from rifl.core._serving.policy import Kind, MethodPolicy
from rifl.core._serving.unheard import (
    RunBound,
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


def begin(bound: RunBound, count: int, now: float, time_s: float | None = 1.0) -> int:
    """Begin so many calls; returns how many are not refused."""
    return sum(bound.begin(time_s, now) for _ in range(count))


def refusing(now: float, time_s: float = 1.0) -> RunBound:
    """One at which calls that had so much time came too late, just now."""
    bound = RunBound()
    for _ in range(32):
        bound.too_late(time_s, now)
    return bound


def test_until_a_call_comes_too_late_none_is_counted_or_refused() -> None:
    """And after one did, none as long as most come in time (RunBound, invariant 1)."""
    bound = RunBound()
    assert not bound.counts
    bound.too_late(None, 0.0)
    assert bound.counts
    for each in range(100):
        assert begin(bound, 31, 1.0 + each) == 31
        for _ in range(31):
            bound.too_late(1.0, 2.0 + each)
            bound.end(2.0 + each, late=True)
        assert begin(bound, 64, 2.0 + each) == 64
        for _ in range(64):
            assert bound.counts
            bound.end(2.0 + each)
        assert not bound.counts
        bound.too_late(None, 2.0 + each)
    assert bound.running == 0


def test_once_half_of_them_came_too_late_so_many_run_as_end_in_time() -> None:
    """Within three quarters of a call's own time, at the rate of the last ends."""
    bound = refusing(100.0)
    assert begin(bound, 50, 100.0) == 4 + 46 // 8, "as long as none has ended, few"
    for each in range(64):
        bound.running += 1
        bound.end(100.0 + each / 100)
    bound.running = 0
    # 64 in 0.64 s: 75 in three quarters of a second.
    assert begin(bound, 75, 100.64) == 75
    assert begin(bound, 9, 100.64) in (1, 2), "one in eight"
    assert begin(bound, 1, 100.64, 2.0) == 1, "it has more time"
    assert begin(bound, 8, 100.64, 0.5) == 1, "it has less"
    assert begin(bound, 1, 100.64, None) == 1


def test_after_all_stood_still_a_few_ends_are_enough() -> None:
    """Those before it say nothing of the rate now."""
    bound = refusing(100.0)
    for each in range(128):
        bound.running += 1
        bound.end(100.0 + each / 1000)
    assert begin(bound, 12, 105.0) == 4 + 1
    for each in range(4):
        bound.end(105.01 + each / 100)
    # Four in 0.03 s: 100 in three quarters of a second.
    assert begin(bound, 90, 105.04) == 90


def test_no_estimate_keeps_calls_out() -> None:
    """After sixteen times of one all go, however many are late (RunBound, invariant 2)."""
    bound = refusing(100.0, time_s=0.5)
    for _ in range(100):
        bound.too_late(0.5, 107.9)
    assert begin(bound, 100, 107.9) < 20
    bound.running = 0
    assert begin(bound, 100, 108.0) == 100


def test_those_that_only_wait_by_themselves_keep_no_other_out() -> None:
    """Six of ten calls wait for what does not answer, and are cancelled; others take no time."""
    bound = RunBound()
    waiting: deque[float] = deque()
    for each in range(4000):
        now = each / 1000
        while waiting and waiting[0] <= now:
            bound.too_late(1.0, waiting.popleft())
            bound.end(now, late=True)
        assert bound.begin(1.0, now), "though six of ten came too late"
        if each % 10 < 6:
            waiting.append(now + 1.0)
        else:
            bound.end(now)


def test_a_number_bounds_those_that_run_for_no_caller() -> None:
    """And no others: the adaptive bound is off."""
    fixed = RunBound(1)
    fixed.too_late(1.0, 0.0)
    assert not fixed.counts
    fixed.left(counted=False)
    assert fixed.counts
    assert begin(fixed, 100, 0.0) == 100
    fixed.left(counted=True)
    assert begin(fixed, 1, 0.0, None) == 0
    fixed.heard(counted=False)
    assert begin(fixed, 1, 0.0) == 1
    fixed.heard(counted=True, ended_at=1.0)
    assert not fixed.counts
    assert (fixed.running, fixed.unheard) == (101, 0)


@pytest.mark.parametrize("cancels", [True, False])
@pytest.mark.parametrize("bounded", [True, False])
def test_doubled_load_leaves_half_of_what_places_can_do(cancels: bool, bounded: bool) -> None:
    """A handler of 40 ms for 8 places, deadlines of 1 s, load doubled for 10 s: virtual time."""
    run_s, time_s, capacity = 0.04, 1.0, 200.0
    bound = RunBound(None if bounded else 10**9)
    arrivals, at = [], 0.0
    while at < 24.0:
        arrivals.append(at)
        at += 1 / (capacity * (1.6 if 2.0 <= at < 12.0 else 0.8))
    events = [(at, 0, number) for number, at in enumerate(arrivals)]
    heapq.heapify(events)
    free, waiting = 8, deque[int]()
    counted: set[int] = set()
    running: set[int] = set()
    late: set[int] = set()
    answered: set[int] = set()
    ended: set[int] = set()

    def end(number: int, now: float) -> None:
        ended.add(number)
        if number in counted:
            bound.end(now, late=number in late)
        elif number in late and not cancels:
            bound.heard(counted=False, ended_at=now)

    while events:
        now, what, number = heapq.heappop(events)
        if what == 0:
            if bound.counts:
                if not bound.begin(time_s, now):
                    continue
                counted.add(number)
            # Handlers wait for a place, in order.
            waiting.append(number)
            heapq.heappush(events, (now + time_s, 1, number))
        elif what == 1 and number not in ended:
            late.add(number)
            bound.too_late(time_s if number in counted else None, now)
            if cancels:
                free += number in running
                end(number, now)
            elif number not in counted:
                bound.left(counted=False)
        elif what == 2 and number not in ended:
            free += 1
            end(number, now)
            if now <= arrivals[number] + time_s - 0.005:
                answered.add(number)
        while free and waiting:
            if (number := waiting.popleft()) not in ended:
                free -= 1
                running.add(number)
                heapq.heappush(events, (now + run_s, 2, number))
    assert bound.running == bound.unheard == 0

    def goodput(begin: float, end: float) -> float:
        return sum(begin <= arrivals[each] < end for each in answered) / (end - begin)

    assert (goodput(2.0, 12.0) >= 0.6 * capacity) is bounded
    assert (goodput(12.0, 15.0) >= 0.75 * capacity) is (bounded or cancels)
    assert not bounded or not bound.counts, "it ends by itself"
