"""Garbage collection at witnesses: DESIGN §7, invariant 12; CURP §3.5."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curp._core.garbage_collection import Collectable, GarbageCollection, Relist, TellWitness
from curp._core.state import Witnessed
from curp._core.steps import Rest
from curp._core.witness_table import WitnessVerdict
from curp._core.witnessed_call import WitnessedCall
from rifl.core._shared.call import Call

ACCEPTED = WitnessVerdict.ACCEPTED


def _request(seq: int) -> Collectable:
    return Collectable(1, seq, None, frozenset({seq}))


def _begin(*witnesses: str) -> GarbageCollection:
    collecting = GarbageCollection()
    collecting.serve(7, witnesses)
    return collecting


def _told(collecting: GarbageCollection, now: float) -> list[TellWitness]:
    found = []
    while isinstance(step := collecting.next(now), TellWitness):
        found.append(step)
    return found


def test_nothing_is_told_that_nothing_is_to_be_said_of() -> None:
    """However much time passes: no timer collects (invariant 12)."""
    collecting = _begin("a")
    assert collecting.next(0.0) == Rest(None)
    assert collecting.next(1e6) == Rest(None)


def test_what_is_synced_soon_after_one_another_is_told_at_once() -> None:
    """Every witness is told, one time, of all that came together (invariant 12)."""
    collecting = _begin("a", "b")
    assert collecting.synced([_request(1)], 0.0)
    rest = collecting.next(0.0)
    assert isinstance(rest, Rest)
    assert rest.seconds is not None
    # Nobody has to be woken for that.
    assert not collecting.synced([_request(2)], rest.seconds / 2)
    told = _told(collecting, rest.seconds)
    assert {tell.witness for tell in told} == {"a", "b"}
    assert {tuple(each.seq for each in tell.requests) for tell in told} == {(1, 2)}
    for tell in told:
        collecting.told(tell, ACCEPTED, 1.0)
    assert collecting.next(1.0) == Rest(None)


def test_what_is_synced_while_a_witness_is_told_is_due_next() -> None:
    """Whoever waits has to look again then: nothing else would wake it (invariant 12)."""
    collecting = _begin("a")
    assert collecting.synced([_request(1)], 0.0)
    (tell,) = _told(collecting, 1.0)
    assert collecting.synced([_request(2)], 1.0)
    assert not collecting.synced([_request(3)], 1.0)
    collecting.told(tell, ACCEPTED, 1.1)
    (again,) = _told(collecting, 2.0)
    assert [each.seq for each in again.requests] == [2, 3]


def test_a_witness_that_does_not_answer_is_told_the_same_again_and_holds_up_nobody() -> None:
    """What was not told is told after a while, with what came since; others go on."""
    collecting = _begin("a", "b")
    collecting.synced([_request(1)], 0.0)
    for tell in _told(collecting, 1.0):
        collecting.told(tell, ACCEPTED if tell.witness == "b" else None, 1.0)
    collecting.synced([_request(2)], 1.0)
    early = _told(collecting, 1.1)
    assert [tell.witness for tell in early] == ["b"]
    rest = collecting.next(1.1)
    assert isinstance(rest, Rest)
    assert rest.seconds is not None
    again = _told(collecting, 1.1 + rest.seconds)
    assert [(tell.witness, [each.seq for each in tell.requests]) for tell in again] == [
        ("a", [1, 2])
    ]


def test_a_witness_that_forgot_needs_a_new_number_once() -> None:
    """What it held is gone: under this number it must not be believed (invariant 2)."""
    collecting = _begin("a")
    collecting.synced([_request(1)], 0.0)
    (tell,) = _told(collecting, 1.0)
    collecting.told(tell, WitnessVerdict.OTHER_CONFIGURATION, 1.0)
    assert collecting.next(1.0) == Relist(7)
    assert collecting.next(1.0) == Rest(None)


def test_what_an_earlier_number_s_witness_says_changes_nothing() -> None:
    """Under the new number it began empty: there is nothing to tell, and nothing to list."""
    collecting = _begin("a")
    collecting.synced([_request(1)], 0.0)
    (tell,) = _told(collecting, 1.0)
    collecting.serve(8, ["a"])
    collecting.told(tell, WitnessVerdict.OTHER_CONFIGURATION, 1.0)
    assert collecting.next(9.0) == Rest(None)
    collecting.synced([_request(2)], 9.0)
    collecting.told(tell, None, 9.0)
    (following,) = _told(collecting, 10.0)
    assert following == TellWitness("a", 8, (_request(2),))


@pytest.mark.parametrize(
    ("found", "run", "dropped"),
    [
        (Witnessed.FRESH, True, False),
        (Witnessed.RUNNING, False, False),
        (Witnessed.KNOWN, False, True),
        (Witnessed.CLIENT_GONE, False, True),
    ],
)
def test_a_stuck_request_is_run_waited_for_or_dropped(
    found: Witnessed, run: bool, dropped: bool
) -> None:
    """It is dropped only when its entry, or its client's end, is in the log (invariant 12)."""
    collecting = _begin("a")
    witnessed = WitnessedCall(Call(1, b"", 5, None), b"", frozenset({9}))
    assert collecting.stuck(witnessed, found, 0.0) is run
    told = _told(collecting, 1.0)
    expected = [(Collectable(1, 5, None, frozenset({9})),)] if dropped else []
    assert [tell.requests for tell in told] == expected


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("synced"), st.integers(1, 400)),
            st.tuples(st.just("pass"), st.sampled_from([0.01, 0.02, 0.1, 0.3])),
            st.tuples(st.just("told"), st.booleans()),
        ),
        max_size=40,
    )
)
def test_every_witness_is_told_of_everything_once_and_in_order(
    steps: list[tuple[str, float]],
) -> None:
    """Whoever answers when: nothing is left out or told twice to one that answered."""
    collecting = _begin("a", "b")
    now, last = 0.0, 0
    under_way: list[TellWitness] = []
    heard: dict[str, list[int]] = {"a": [], "b": []}

    def answer(tell: TellWitness, answered: bool) -> None:
        collecting.told(tell, ACCEPTED if answered else None, now)
        if answered:
            heard[tell.witness] += [each.seq or 0 for each in tell.requests]

    for step, value in steps:
        if step == "synced":
            collecting.synced([_request(last + 1 + more) for more in range(int(value))], now)
            last += int(value)
        elif step == "pass":
            now += value
        elif under_way:
            answer(under_way.pop(0), bool(value))
        under_way += _told(collecting, now)
        assert len({tell.witness for tell in under_way}) == len(under_way)
    for _ in range(2 + last // 100):
        now += 1.0
        under_way += _told(collecting, now)
        while under_way:
            answer(under_way.pop(), True)
    assert heard["a"] == heard["b"] == list(range(1, last + 1))
