"""Targets over one store, which take calls in turn (DESIGN §5)."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from _rifl_ground.refusals import Outcome
from rifl.core._calling.answer import AttemptAnswer, Step, judge
from rifl.core._calling.client_session import ClientSession, LeaseGrant
from rifl.core._calling.one_store import Trial
from rifl.core._calling.targets import Targets

STORE = 7
LOST = AttemptAnswer("UNAVAILABLE")
OVERLOADED = AttemptAnswer("UNAVAILABLE", Outcome.NOT_EXECUTED, "OVERLOADED")


def granted(count: int = 3, place: float = 0.0, *, yes: bool = True) -> Targets:
    targets = Targets([f"{chr(97 + at)}:1" for at in range(count)])
    one = targets.one_store
    one.granted(0, STORE, place)
    tried: list[int] = []
    calls = 0
    while yes and len(tried) < count - 1:
        for other in one.due(0.0, calls):
            tried.append(other)
            targets.tried(other, Trial.YES, 0.0)
        calls += 1
    assert len(set(tried)) == len(tried), "each is tried once"
    # The count of calls begins anew.
    one._calls = -count
    return targets


def turns(targets: Targets, count: int) -> list[int]:
    return [targets.choose() for _ in range(count)]


def test_calls_go_to_each_in_turn_from_a_place_of_the_clients_own() -> None:
    """A yes says that a target is over the store (OneStore, invariant 1)."""
    assert turns(granted(), 6) == [0, 1, 2, 0, 1, 2]
    assert turns(granted(place=0.4), 6) == [1, 2, 0, 1, 2, 0]
    assert granted(place=0.99).current == 0, "leases stay where they were granted"


def test_without_a_second_target_all_stays_with_the_current_one() -> None:
    """Where stores differ, none has a number, or one leads (OneStore, invariant 2)."""
    targets = granted(yes=False)
    assert turns(targets, 3) == [0, 0, 0]
    targets.tried(1, Trial.REFUSED, 0.0)
    targets.tried(2, Trial.FAILED, 0.0)
    assert turns(targets, 3) == [0, 0, 0]
    assert targets.one_store.turn is None
    targets = Targets(["a:1", "b:1"])
    targets.one_store.granted(0, 0, 0.0)
    assert targets.one_store.due(100.0, 5) == []
    targets = granted()
    targets.leads(1)
    assert turns(targets, 3) == [1, 1, 1]
    targets = granted()
    targets.answered(0, AttemptAnswer("UNAVAILABLE", Outcome.NOT_EXECUTED, "NOT_LEADER"), 1.0)
    assert len(set(turns(targets, 6))) == 1
    assert granted(1).one_store.turn is None


def test_a_failed_target_is_left_out_and_tried_again_while_calls_are_made() -> None:
    """After pauses that double up to 10 s (OneStore, invariant 3)."""
    targets = granted()
    one = targets.one_store
    targets.answered(1, LOST, 10.0)
    targets.answered(1, LOST, 10.1)
    assert turns(targets, 4) == [0, 2, 0, 2]
    pauses, now, calls = [], 10.0, 1
    for _ in range(6):
        at = one.due_at(now)
        assert at is not None
        assert one.due(at - 0.01, calls) == []
        assert one.due(at, calls) == [1]
        assert one.due(at, calls) == [], "once, until it has ended"
        targets.tried(1, Trial.FAILED, at)
        pauses.append(at - now)
        now, calls = at, calls + 1
    assert [round(each, 2) for each in pauses] == [0.5, 1.0, 2.0, 4.0, 5.0, 5.0]
    assert one.due(now + 20.0, calls - 1) == [], "no call was made since"
    assert one.due(now + 20.0, calls) == [1]
    targets.tried(1, Trial.YES, now + 20.0)
    assert sorted(turns(targets, 3)) == [0, 1, 2]
    assert one.due_at(now + 20.0) is None


def failed(count: int) -> Targets:
    """Targets that all failed, one after another, from 10 s on, after 100 calls."""
    targets = granted(count)
    for at in range(count):
        targets.answered(at, LOST, 10.0 + at / 10)
    assert targets.one_store.used == ()
    return targets


def test_of_many_that_failed_one_is_tried_for_as_many_calls_as_there_are() -> None:
    """Else trials are most of the load after all were restarted (OneStore, invariant 4)."""
    targets = failed(10)
    one = targets.one_store
    came, calls, now = [], 100, 20.0
    while len(one.used) < 10:
        calls, now = calls + 1, now + 1.0
        for each in one.due(now, calls):
            targets.tried(each, Trial.YES, now)
            came.append((each, calls - 101))
            assert one.due(now, calls) == [], "one at a time"
    assert [each for each, _ in came] == [*range(10)], "which failed first is tried first"
    assert [calls for _, calls in came] == [0, 9, 17, 24, 30, 35, 39, 42, 44, 45]
    assert one.due_at(now) is None


def test_a_lease_is_tried_at_once_at_one_target_of_the_clients_own() -> None:
    """At others as calls are made: many clients may begin together (OneStore, invariant 4)."""
    firsts = set()
    for place in range(90):
        one = granted(10, place / 90, yes=False).one_store
        first, *more = one.due(0.0, 0)
        assert not more
        assert one.due(0.0, 8) == [], "too few calls"
        firsts.add(first)
        one.tried(first, Trial.YES, 0.0)
        came = []
        for calls in range(1, 100):
            for each in one.due(0.0, calls):
                one.tried(each, Trial.YES, 0.0)
                came.append(calls)
        assert came == [8, 15, 21, 26, 30, 33, 35, 36]
    assert firsts == {*range(1, 10)}


def test_a_client_all_of_whose_targets_fail_goes_on_at_those_that_it_did_not_try() -> None:
    """By calls and renewals, not by trials; one that is over another store is left out (§5)."""
    targets = granted(5, yes=False)
    one = targets.one_store
    for calls, index, trial in ((0, 1, Trial.YES), (9, 2, Trial.REFUSED)):
        assert one.due(0.0, calls) == [index]
        targets.tried(index, trial, 0.0)
    assert sorted(turns(targets, 8)) == [0, 0, 1, 1, 1, 1, 1, 1]
    went = []
    for at in range(6):
        targets.answered(0, LOST, float(at))
        targets.answered(1, LOST, float(at))
        targets.answered(targets.current, LOST, float(at))
        went.append(targets.current)
    assert {3, 4} <= set(went) <= {0, 1, 3, 4}
    targets.tried(0, Trial.FAILED, 9.0)
    assert targets.current == went[-1], "no failed trial moves it"
    targets.tried(1, Trial.YES, 9.0)
    assert targets.current == 1


@pytest.mark.parametrize("known", [2, 4, 10])
def test_until_all_are_tried_each_target_has_its_share_of_the_calls(known: int) -> None:
    """Clients that all began at the first one do not overload it (OneStore, invariant 5)."""
    calls: Counter[int] = Counter()
    dice = Random(1)
    for _ in range(1000):
        targets = granted(10, dice.random(), yes=False)
        one, number = targets.one_store, 0
        while len(one.used) < known:
            number += 1
            for each in one.due(0.0, number):
                targets.tried(each, Trial.YES, 0.0)
        calls.update(turns(targets, 3))
    assert all(200 < calls[each] < 400 for each in range(10)), "300 of each"


def test_one_that_stays_away_keeps_no_other_one_away() -> None:
    """Nor does one that does not answer, which is asked apart (OneStore, invariant 4)."""
    for kind in (Trial.FAILED, Trial.SILENT):
        targets = failed(3)
        one = targets.one_store
        calls, now, tried = 100, 20.0, []
        while len(tried) < 6:
            calls, now = calls + 1, now + 4.0
            for silent in (True, False):
                for each in one.due(now, calls, silent=silent, most=1 if silent else None):
                    tried.append(each)
                    targets.tried(each, kind if each == 0 else Trial.FAILED, now)
        assert set(tried[:3]) == set(tried[3:]) == {0, 1, 2}


def test_a_look_that_found_too_few_calls_is_repeated_soon_then_seldom() -> None:
    """A client that calls often is soon at all targets, a rare one is seldom woken (DESIGN §5)."""
    targets = failed(3)
    one = targets.one_store
    assert one.due(20.0, 100) == [0]
    targets.tried(0, Trial.YES, 20.0)
    pauses, now = [], 20.0
    for _ in range(9):
        assert one.due(now, 101) == []
        at = one.due_at(now)
        assert at is not None
        pauses.append(at - now)
        now = at
    assert [round(each, 1) for each in pauses] == [0.1, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0]


def test_a_trial_that_was_lost_is_made_again() -> None:
    """An interrupt may end one: no end of it is told."""
    one = granted(2, yes=False).one_store
    assert one.due(0.0, 0) == [1]
    assert one.due(1.0, 1) == []
    assert one.due(31.0, 1) == [1]


def test_what_does_not_answer_is_asked_apart() -> None:
    """Its connection may be silent, which a trial on it does not find out."""
    targets = granted(yes=False)
    targets.tried(1, Trial.SILENT, 1.0)
    targets.tried(2, Trial.FAILED, 1.0)
    one = targets.one_store
    assert one.due(5.0, 1, silent=False) == [2]
    assert one.due(5.0, 1, silent=True, most=1) == [1]


def test_the_current_target_is_one_over_the_store() -> None:
    """Renewals leave one that failed, and never go to a stranger while there are others."""
    targets = granted(4, yes=False)
    targets.tried(1, Trial.YES, 0.0)
    targets.tried(2, Trial.REFUSED, 0.0)
    targets.tried(3, Trial.YES, 0.0)
    went = []
    for at in range(6):
        targets.answered(targets.current, LOST, float(at))
        went.append(targets.current)
    assert set(went) == {0, 1, 3}
    assert targets.one_store.used == (), "all are left out"
    assert set(turns(targets, 3)) == {targets.current}
    assert targets.choose({0, 1}) == 3
    targets.tried(1, Trial.YES, 9.0)
    assert turns(targets, 2) == [1, 1]


def test_calls_that_left_the_store_for_another_come_back() -> None:
    """While the first server was away, calls went to where nothing was known."""
    targets = granted(yes=False)
    targets.answered(0, LOST, 1.0)
    targets.tried(2, Trial.FAILED, 1.0)
    assert targets.current == 1
    targets.tried(2, Trial.YES, 2.0)
    assert targets.current == 2


def test_a_strangers_refusal_leaves_it_out_while_there_are_others() -> None:
    """A server may come back over another store; the last one's word counts (DESIGN §5)."""
    targets = granted()
    assert targets.refused(0, 1.0)
    assert turns(targets, 4) == [1, 2, 1, 2]
    assert targets.current in (1, 2)
    assert targets.one_store.due(20.0, 1) == [], "for a minute"
    assert targets.refused(2, 1.0)
    assert turns(targets, 2) == [1, 1]
    assert not targets.refused(1, 1.0)
    assert sorted(targets.one_store.due(61.0, 9)) == [0, 2]


def test_attempts_prefer_and_avoid_targets() -> None:
    """A retry goes where the last attempt went, a hedge elsewhere (DESIGN §5)."""
    targets = granted()
    assert targets.choose(prefer=2) == 2
    assert targets.choose({2}, prefer=2) != 2
    assert {targets.choose({0}) for _ in range(4)} == {1, 2}
    assert targets.choices == 3
    targets.answered(1, LOST, 1.0)
    targets.answered(2, LOST, 2.0)
    assert targets.choose({0}) == 1, "the one that failed longest ago, if all others are avoided"
    assert targets.choose({0, 1, 2}) in (0, 1, 2)


def test_a_server_without_room_takes_the_next_call() -> None:
    """Left out, its calls would overload the others."""
    targets = granted()
    assert not targets.answered(0, OVERLOADED, 1.0)
    assert sorted(turns(targets, 3)) == [0, 1, 2]


def test_another_store_begins_anew_and_the_same_one_does_not() -> None:
    """What is known of a store holds for the next client id, but for what refused the last one."""
    targets = granted()
    one = targets.one_store
    targets.tried(2, Trial.REFUSED, 1.0)
    one.granted(0, STORE, 0.5)
    assert one.used == (0, 1)
    assert one.due(1.0, 1) == [2]
    one.granted(2, STORE + 1, 0.0)
    assert one.used == ()
    assert one.due(0.0, 0) == [0]


def test_a_call_that_a_stranger_refused_is_sent_again_and_ends_no_lease() -> None:
    """Nothing ran there: the next attempt goes to the store that granted the id (DESIGN §5)."""
    session = ClientSession()
    session.granted(LeaseGrant(client_id=1, token=b"", term_s=60, deduplicated=("*",), store=7), 0)
    for reason in ("STORE_MISMATCH", "LEASE_EXPIRED"):
        refused = AttemptAnswer("FAILED_PRECONDITION", None, reason, {"store": "9"}, foreign=True)
        call = session.begin((1, 2), 1.0)
        assert call is not None
        found = session.answered(call, refused, 1.0, 0.0)
        assert (found.step, found.outcome) == (Step.RETRY, Outcome.UNKNOWN)
        assert refused.sends_on, "free of the budget"
        assert session.usable(2.0)
        assert not session.take_losses()
        alone = judge(call, refused._replace(foreign=False), 0.0, attempt=1, grpc_retries=False)
        assert alone.step is Step.RAISE
