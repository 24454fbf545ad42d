"""Places for handlers: who waits for one, who is next, and who is refused (DESIGN §4)."""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter, deque
from collections.abc import Iterable
from random import Random

import pytest

from rifl.core import InProgress, Overloaded, Verdict
from rifl.core._serving.answer import Answer
from rifl.core._serving.client_table import Decision
from rifl.core._serving.policy import Kind, MethodPolicy
from rifl.core._serving.room import HandlerRoom, PlaceWaiter, RunTimes, overloaded, serve_in_place
from rifl.core._shared.call import Call
from tests.core.test_serving import RETURNED, Due, Script, attempt_of, drive, policy_of


def waiter(since: float = 0.0, until: float = math.inf, wanted: float | None = None) -> PlaceWaiter:
    return PlaceWaiter(since, until, until if wanted is None else wanted, lambda: None)


def known(room: HandlerRoom, seconds: float) -> None:
    """Have it know how long its runs take."""
    for _ in range(16):
        room.times.note(seconds)


def test_a_place_is_given_once_and_in_order() -> None:
    """The call that has waited longest is next; a place without one is free again."""
    room = HandlerRoom(2, 8)
    assert room.take()
    assert room.take()
    assert not room.take()
    first, second = waiter(0), waiter(1)
    assert room.line_up(first) is None
    assert room.line_up(second) is None
    assert room.leave(2) == [first]
    assert room.leave(3) == [second]
    assert first.placed
    assert second.placed
    assert room.leave(4) == []
    assert room.take()
    assert not room.take()


def lasting(room: HandlerRoom, now: float, calls: int = 16) -> None:
    """Have so many calls come, of which none is placed."""
    for _ in range(calls):
        room.line_up(gone := waiter(now))
        room.forget(gone)


def test_when_the_oldest_is_late_and_load_lasts_the_newest_is_next() -> None:
    """It is late after four usual runs, or half of the time that it has."""
    room = HandlerRoom(1, 8)
    known(room, 1.0)
    room.take()
    old, new = waiter(0), waiter(3)
    room.line_up(old)
    room.line_up(new)
    lasting(room, 3)
    assert room.leave(4) == [old]
    newer = waiter(4)
    room.line_up(newer)
    lasting(room, 6)
    assert room.leave(7.1) == [newer]
    room.line_up(hurried := waiter(8, until=18))
    lasting(room, 8)
    assert room.leave(8) == [hurried]
    assert room.leave(8) == [new]


def test_half_of_its_time_makes_the_oldest_late() -> None:
    """However long runs take: it has to run, too."""
    room = HandlerRoom(1, 8)
    room.take()
    old, new = waiter(0, until=10), waiter(5, until=20)
    room.line_up(old)
    room.line_up(new)
    lasting(room, 5)
    assert room.leave(5.1) == [new]


def test_a_late_oldest_is_next_while_as_many_are_placed_as_come() -> None:
    """All of them can be answered in time, and the last ones have the most of it."""
    room = HandlerRoom(1, 100)
    room.take()
    waiting = [waiter(0, until=10 + each) for each in range(10)]
    for each in waiting:
        room.line_up(each)
    for at, each in enumerate(waiting):
        assert room.leave(5.1 + at / 10) == [each]
        room.line_up(waiter(5.1 + at / 10, until=30))


def test_what_expired_or_left_is_not_placed() -> None:
    """No caller would get its answer."""
    room = HandlerRoom(1, 8)
    room.take()
    gone, expired = waiter(0), waiter(0, until=1)
    for each in (gone, expired):
        room.line_up(each)
    assert room.forget(gone)
    assert not room.forget(gone)
    assert room.leave(2) == [expired]
    assert expired.refused
    assert not gone.placed
    assert room.take()


def test_beyond_its_bound_a_call_is_refused() -> None:
    """The one that came last; if the newest is next, the oldest."""
    room = HandlerRoom(1, 1)
    room.take()
    old, new = waiter(0), waiter(0)
    assert room.line_up(old) is None
    assert room.line_up(new) is new
    assert new.refused
    known(room, 1.0)
    lasting(room, 4.1, calls=15)
    newer = waiter(4.1)
    assert room.line_up(newer) is old
    assert old.refused
    assert room.leave(5) == [newer]
    nothing = HandlerRoom(1, 0)
    nothing.take()
    assert nothing.line_up(refused := waiter(0)) is refused


def test_a_call_with_less_time_than_quick_runs_is_refused_but_for_a_few() -> None:
    """While no place is free; one in sixteen runs, so that no method is refused for good."""
    room = HandlerRoom(1, 100)
    room.take()
    assert room.line_up(waiter(0, until=0.5)) is None
    known(room, 1.0)
    short = [waiter(0, until=0.5) for _ in range(32)]
    refused = [room.line_up(each) for each in short]
    assert [each is None for each in refused].count(True) == 2
    assert room.line_up(waiter(0, until=0.5, wanted=2.0)) is None
    # One had enough when it came.
    late = HandlerRoom(1, 100)
    late.take()
    known(late, 1.0)
    had = waiter(0, until=1.5)
    assert late.line_up(had) is None
    assert late.leave(0.6) == [had]
    assert not had.placed
    assert had.refused


def test_the_estimate_follows_runs_that_become_quicker() -> None:
    """After the last 128 runs the old ones do not count."""
    times = RunTimes()
    assert (times.quick, times.usual) == (0.0, 0.0)
    for _ in range(128):
        times.note(10.0)
    assert (times.quick, times.usual) == (10.0, 10.0)
    for _ in range(16):
        times.note(0.1)
    assert times.quick == 0.1
    assert times.usual == 10.0


def test_after_a_run_ended_too_late_calls_need_more_time() -> None:
    """Until 128 have ended in time; twice the usual, but at most 50 ms more."""
    times = RunTimes()
    for _ in range(16):
        times.note(0.04, left_s=0.5)
    assert not times.refuses(0.05)
    times.note(0.04, left_s=0.003)
    assert times.refuses(0.07)
    assert not times.refuses(0.09)
    for _ in range(127):
        times.note(0.04, left_s=0.01)
    assert times.refuses(0.07)
    times.note(0.04, left_s=0.01)
    assert not times.refuses(0.05)
    for _ in range(128):
        times.note(4.0, left_s=-1.0)
    assert times.refuses(4.04)
    assert not times.refuses(4.06)


def test_a_pool_that_has_too_many_calls_runs_those_that_are_answered_in_time() -> None:
    """8 threads, runs of about 40 ms, answers 5 ms later, deadlines of 1 s, load doubled."""
    dice, times = Random(1), RunTimes()
    queue = deque(each / 320 for each in range(3200))
    free = [0.0] * 8
    in_time = 0
    while queue:
        now = max(heapq.heappop(free), queue[0])
        until = queue.popleft() + 1.0
        # It is looked at only while others wait behind it; one that is over is dropped.
        if until <= now or (queue and queue[0] <= now and times.refuses(until - now)):
            heapq.heappush(free, now)
            continue
        ran_s = dice.uniform(0.036, 0.044)
        heapq.heappush(free, now + ran_s)
        times.note(ran_s, until - now - ran_s)
        in_time += until - now - ran_s >= 0.005
    assert in_time > 0.9 * 2000


PLACES, RUN_S, DEADLINE_S = 8, 0.04, 1.0


def answered(arrivals: Iterable[tuple[float, float]]) -> Counter[bool]:
    """Return how many calls were answered in time, and too late: of when each came and began."""
    room = HandlerRoom(PLACES, 32 * PLACES)
    events: list[tuple[float, int, str, PlaceWaiter]] = []
    order = itertools.count()
    for at, began in arrivals:
        heapq.heappush(events, (at, next(order), "arrives", waiter(at, began + DEADLINE_S)))
    in_time: Counter[bool] = Counter()

    def begin(now: float, each: PlaceWaiter) -> None:
        heapq.heappush(events, (now + RUN_S, next(order), "ends", each))

    while events:
        now, _, what, each = heapq.heappop(events)
        if what == "ends":
            in_time[now <= each.until] += 1
            for told in room.leave(now, RUN_S, each.until - now):
                if told.placed:
                    begin(now, told)
        elif room.take():
            begin(now, each)
        else:
            room.line_up(each)
    assert len(room) == 0
    return in_time


@pytest.mark.parametrize("load", [0.8, 1.6, 4.0])
def test_doubled_load_keeps_goodput(load: float) -> None:
    """8 places, runs of 40 ms, deadlines of 1 s: answers in time, in virtual time."""
    seconds, capacity = 10.0, PLACES / RUN_S
    times = [number / (load * capacity) for number in range(int(seconds * load * capacity))]
    in_time = answered(zip(times, times, strict=True))
    offered = seconds * min(load, 1.0) * capacity
    assert in_time[True] >= 0.95 * offered
    assert in_time[False] <= 0.05 * offered


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("load", [0.8, 0.9])
def test_after_a_standstill_what_waits_is_answered(load: float, seed: int) -> None:
    """No call comes for 5 s, then all that began meanwhile at once, and those after them."""
    dice, began = Random(seed), 0.0
    arrivals = []
    while began < 15.0:
        began += dice.expovariate(load * PLACES / RUN_S)
        stood_still = 3.0 <= began < 8.0
        # A server takes 1 ms for each.
        at = 8.0 + (began - 7.0) * load * PLACES / RUN_S / 1000 if stood_still else began
        if at < began + DEADLINE_S:
            arrivals.append((at, began))
    in_time = answered(arrivals)
    assert in_time[True] >= 0.96 * len(arrivals)


def test_what_came_while_all_places_were_stuck_says_nothing_of_the_load() -> None:
    """Calls come all along; once runs end, the oldest is next until none waits for long."""
    room = HandlerRoom(PLACES, 32 * PLACES)
    known(room, RUN_S)
    while room.take():
        pass
    every_s, waiting = RUN_S / PLACES / 0.8, deque[PlaceWaiter]()
    placed: list[PlaceWaiter] = []
    ends = 5.0
    for number in range(int(12.0 / every_s)):
        now = number * every_s
        while ends < now:
            placed += [each for each in room.leave(ends, RUN_S) if each.placed]
            ends += RUN_S / PLACES
        while waiting and waiting[0].until <= now:
            room.forget(waiting.popleft())
        waiting.append(waiter(now, now + DEADLINE_S))
        room.line_up(waiting[-1])
    living = int((12.0 - 5.0 + DEADLINE_S) / every_s)
    assert len(placed) + len(room) >= 0.96 * living


class Stand:
    """A place in a room that has one, or that refuses."""

    def __init__(self, store: Script, *, refusing: bool = False, waits: bool = False) -> None:
        self.held = False
        self._store, self._refusing, self._waits = store, refusing, waits

    def enter(self) -> Due | None:
        self._store.asked.append("enter")
        if self._refusing:
            raise Overloaded("full")
        self.held = True
        if not self._waits:
            return None
        self._store.result = None
        return Due("enter")

    def leave(self) -> None:
        if self.held:
            self._store.asked.append("leave")
        self.held = False


@pytest.mark.parametrize(
    ("here", "attempt", "key", "first"),
    [
        (True, 1, None, False),
        (False, 1, None, True),
        (False, 2, None, False),
        (False, 1, b"k", False),
    ],
)
def test_a_first_attempt_takes_its_place_before_a_shared_store_is_asked(
    here: bool, attempt: int, key: bytes | None, first: bool
) -> None:
    """A claim would keep it from running elsewhere; of others only the store knows."""
    policy = policy_of(Kind.PLAIN)
    call = Call(7, b"", None if key else 1, key, attempt=attempt)
    store = Script(decisions=[Decision(Verdict.NEW, attempt_of(policy))])
    store.decides_here = here
    drive(store, serve_in_place(store, call, policy, Stand(store)), RETURNED)  # type: ignore[arg-type]
    begun = ["enter", "claim"] if first else ["claim", "enter"]
    assert store.asked == [*begun, "start", "run", "finish"]


def test_a_refused_call_is_new_again() -> None:
    """Left behind, its claim would never end."""
    policy = policy_of(Kind.PLAIN)
    store = Script(decisions=[Decision(Verdict.NEW, attempt_of(policy))])
    place = Stand(store, refusing=True)
    with pytest.raises(Overloaded):
        drive(store, serve_in_place(store, Call(7, b"", 1), policy, place), RETURNED)  # type: ignore[arg-type]
    assert store.asked == ["claim", "enter", "abandon"]


def test_a_duplicate_needs_no_place_and_holds_none_while_it_waits() -> None:
    """Where it took one for a first attempt, it gives it back (§4.2)."""
    policy = policy_of(Kind.PLAIN)
    running = attempt_of(policy)
    running.record = RETURNED.record
    store = Script(decisions=[Decision(Verdict.IN_PROGRESS, running)])
    place = Stand(store, refusing=True)
    answer = drive(
        store,
        serve_in_place(store, Call(7, b"", 1), policy, place),  # type: ignore[arg-type]
        waits=(True,),
    )
    assert isinstance(answer, Answer)
    assert store.asked == ["claim", "wait"]
    store = Script(decisions=[Decision(Verdict.IN_PROGRESS, running)])
    store.decides_here = False
    place = Stand(store)
    with pytest.raises(InProgress):
        drive(
            store,
            serve_in_place(store, Call(7, b"", 1), policy, place),  # type: ignore[arg-type]
            waits=(False,),
        )
    assert store.asked == ["enter", "claim", "leave", "wait"]


def test_a_refusal_says_no_more_than_is_known() -> None:
    """A call that may be on a witness, or run without a claim, may have run (§7.13)."""
    policy = MethodPolicy()
    assert overloaded("full", Call(7, b"", 1), policy).outcome.value == "not-executed"
    recorded = Call(7, b"", 1)
    recorded.configuration = 3
    assert overloaded("full", recorded, policy).outcome.value == "unknown"
    never = MethodPolicy(kind="idempotent", claim="never")
    assert overloaded("full", Call(7, b"", 1), never).outcome.value == "unknown"
