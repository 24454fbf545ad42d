"""The leader's rules: DESIGN §7, invariants 1, 3, 9 and 11; CURP §3.2.3."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curp._core.leader import Leader, LeaderBounds, Speed, SpeedWish
from rifl.core._shared.invariant import InvariantViolated

A, B, EVERYTHING = frozenset({1}), frozenset({2}), frozenset[int]()
FINE = SpeedWish(7, True)


def _leader(**bounds: float) -> Leader:
    return Leader(7, 10, witnessed=True, bounds=LeaderBounds(**bounds))  # type: ignore[arg-type]


def _sync(leader: Leader) -> None:
    while leader.unsynced:
        batch = leader.take()
        leader.appended(batch.expected_tail + len(batch.placed))


def test_what_commutes_with_everything_unsynced_is_answered_first() -> None:
    """Other keys are FAST, the same one is not until it is synced (invariant 3)."""
    leader = _leader()
    assert leader.place("a", 1, 0.0, A, FINE) == (11, Speed.FAST)
    assert leader.place("b", 1, 0.0, B, FINE) == (12, Speed.FAST)
    assert leader.place("a again", 1, 0.0, A, FINE) == (13, Speed.CONFLICT)
    _sync(leader)
    assert leader.place("a", 1, 0.0, A, FINE) == (14, Speed.FAST)


def test_without_keys_an_operation_conflicts_with_everything() -> None:
    """No keys: never FAST beside another, and nothing is beside it (DESIGN §7, conflict keys)."""
    leader = _leader()
    assert leader.place("all", 1, 0.0, EVERYTHING, FINE)[1] is Speed.FAST
    assert leader.place("a", 1, 0.0, A, FINE)[1] is Speed.CONFLICT
    _sync(leader)
    leader.place("a", 1, 0.0, A, FINE)
    assert leader.place("all", 1, 0.0, EVERYTHING, FINE)[1] is Speed.CONFLICT


@pytest.mark.parametrize(
    ("wish", "speed"),
    [
        (SpeedWish(0, True), Speed.NO_NUMBER),
        (SpeedWish(6, True), Speed.NO_NUMBER),
        (SpeedWish(8, True), Speed.NO_NUMBER),
        (SpeedWish(7, False), Speed.UNREGISTERED),
        (SpeedWish(7, True, deterministic=False), Speed.NONDETERMINISTIC),
        (SpeedWish(7, True, covered=False), Speed.OTHER_KEYS),
    ],
)
def test_other_calls_are_synced_before_their_answer(wish: SpeedWish, speed: Speed) -> None:
    """No number or another one, an unregistered client, another method (invariants 1 and 3)."""
    assert _leader().place("a", 1, 0.0, A, wish)[1] is speed


def test_without_witnesses_nothing_is_answered_first() -> None:
    """Nobody else would hold the request (invariant 1)."""
    leader = Leader(7, 0, witnessed=False)
    assert leader.place("a", 1, 0.0, A, FINE)[1] is Speed.NO_WITNESS


def test_a_full_bound_makes_callers_wait() -> None:
    """What is not in the log is bounded (invariant 3)."""
    leader = _leader(max_unsynced=2)
    for key in (1, 2):
        assert leader.place("a", 1, 0.0, frozenset({key}), FINE)[1] is Speed.FAST
    assert leader.place("a", 1, 0.0, frozenset({3}), FINE)[1] is Speed.FULL


def test_a_change_of_the_list_stops_the_fast_path_until_it_is_in_force() -> None:
    """Nothing is FAST from the begin of a change to its end (invariant 11)."""
    leader = _leader()
    leader.place("a", 1, 0.0, A, FINE)
    assert leader.begin_change() == 11
    assert leader.place("b", 1, 0.0, B, FINE)[1] is Speed.CHANGING
    _sync(leader)
    leader.end_change(8, witnessed=True)
    assert leader.place("a", 1, 0.0, A, FINE)[1] is Speed.NO_NUMBER
    assert leader.place("b", 1, 0.0, B, SpeedWish(8, True))[1] is Speed.FAST


def test_a_batch_is_due_by_count_by_time_or_when_somebody_waits() -> None:
    """Appends are batched (DESIGN §7)."""
    leader = _leader(batch_entries=3, batch_delay_s=1.0)
    assert leader.due_in(0.0) is None
    leader.place("a", 1, 5.0, A, FINE)
    assert leader.due_in(5.25) == 0.75
    assert leader.due_in(7.0) == 0.0
    leader.place("b", 1, 5.0, B, FINE)
    assert leader.due_in(5.0) == 1.0
    leader.place("c", 1, 5.0, frozenset({3}), FINE)
    assert leader.due_in(5.0) == 0.0
    _sync(leader)
    leader.place("d", 1, 5.0, A, FINE)
    assert leader.demand(14)
    assert leader.due_in(5.0) == 0.0
    assert leader.take().expected_tail == 13
    assert leader.due_in(5.0) is None
    leader.appended(14)
    assert not leader.demand(14)


def test_appends_are_one_at_a_time_and_end_where_they_should() -> None:
    """Our own mistakes stop the leader (Leader, 1)."""
    leader = _leader()
    leader.place("a", 1, 0.0, A, FINE)
    leader.take()
    with pytest.raises(InvariantViolated):
        leader.take()
    with pytest.raises(InvariantViolated):
        leader.appended(12)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("place"), st.frozensets(st.integers(1, 4), max_size=3)),
            st.tuples(st.just("event"), st.just(None)),
            st.tuples(st.just("take"), st.just(None)),
            st.tuples(st.just("appended"), st.just(None)),
        ),
        max_size=60,
    )
)
def test_fast_means_no_conflict_with_what_is_not_in_the_log(steps: list) -> None:  # type: ignore[type-arg]
    """Against a list: FAST exactly if no unsynced operation shares a key (invariant 3)."""
    leader = _leader(batch_bytes=3)
    unsynced: dict[int, frozenset[int]] = {}
    batch = None
    for step, keys in steps:
        if step == "place":
            free = all(
                bool(keys) and bool(others) and keys.isdisjoint(others)
                for others in unsynced.values()
            )
            read = leader.conflict(keys)
            conflicting = [
                lsn
                for lsn, others in unsynced.items()
                if not keys or not others or not keys.isdisjoint(others)
            ]
            assert read == max(conflicting, default=0)
            lsn, speed = leader.place("x", 1, 0.0, keys, FINE)
            assert speed is (Speed.FAST if free else Speed.CONFLICT)
            unsynced[lsn] = keys
        elif step == "event":
            leader.place_event("x", 1, 0.0)
        elif step == "take" and batch is None and leader.unsynced:
            batch = leader.take()
            assert len(batch.placed) <= 3
        elif step == "appended" and batch is not None:
            leader.appended(batch.expected_tail + len(batch.placed))
            for placed in batch.placed:
                unsynced.pop(placed.lsn, None)
            batch = None
