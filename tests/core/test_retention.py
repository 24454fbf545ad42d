"""The rules of keyed records' time and of namespaces (DESIGN §3, §4)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rifl.core._serving.client_table import LivedTime, Retention
from rifl.core._serving.namespace import is_namespace, namespace_id

_keys = st.tuples(st.integers(-2, 2), st.sampled_from([b"a", b"b"]))
_steps = st.lists(
    st.one_of(
        st.tuples(st.just("note"), _keys, st.integers(0, 20)),
        st.tuples(st.just("forget"), _keys, st.just(0)),
        # Steps that are counted whole.
        st.tuples(st.just("due"), st.just((0, b"")), st.integers(0, 2)),
    ),
    max_size=60,
)


@given(_steps, st.integers(1, 3))
def test_a_key_is_due_once_at_the_last_time_noted(
    steps: list[tuple[str, tuple[int, bytes], int]], limit: int
) -> None:
    """Against a dictionary: due when its time is over, never twice (Retention, 1 and 2)."""
    retention, model, now = Retention(), dict[tuple[int, bytes], float](), 0.0
    for step, identity, number in steps:
        if step == "note":
            retention.note(*identity, number, now)
            model[identity] = now + number
        elif step == "forget":
            retention.forget(*identity)
            model.pop(identity, None)
        else:
            now += number
            taken = retention.due(now, limit)
            over = [identity for identity, until in model.items() if until <= now]
            assert len(taken) == len(set(taken)) == min(limit, len(over))
            assert set(taken) <= set(over)
            for identity in taken:
                del model[identity]
        assert len(retention) == len(model)


def test_what_was_forgotten_leaves_no_memory() -> None:
    """A key noted again and again takes the room of one (DESIGN §9)."""
    retention = Retention()
    for at in range(10_000):
        retention.note(1, b"k", float(at), 0.0)
    assert len(retention._order) < 2000
    retention.note(1, b"k", 1.0, 0.0)
    assert retention.due(2.0, 10) == [(1, b"k")]


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30))
def test_a_jump_costs_no_more_than_a_step(jumps: list[float]) -> None:
    """However the clock jumps between sweeps, its time is what was lived, or little more (§5)."""
    lived, now, real = LivedTime(), 0.0, 0.0
    lived.sweep(now)
    for jump in jumps:
        for _ in range(10):
            now, real = now + 3.0, real + 3.0
            before = lived.at(now)
            assert before <= lived.sweep(now)
        lived.sweep(now + jump)
        now += 3.0
        real += 3.0
        lived.sweep(now)
    # Each jump counts as one sweep's step at most; none takes anything back.
    assert lived.at(now) <= real + len(jumps) * 10.0


def test_longer_pauses_between_sweeps_are_learned() -> None:
    """Sweeps that come every half minute count whole after a few (LivedTime, 2)."""
    lived, now = LivedTime(), 0.0
    for _ in range(20):
        now += 30.0
        lived.sweep(now)
    counted = lived.at(now)
    lived.sweep(now + 30.0)
    assert lived.at(now + 30.0) - counted == 30.0


@given(st.binary(max_size=80), st.text(max_size=20), st.binary(max_size=80), st.text(max_size=20))
def test_namespaces_are_ids_of_their_own(
    peer: bytes, scope: str, other: bytes, other_scope: str
) -> None:
    """Negative 64-bit numbers, the same for the same peer and scope only (DESIGN §3)."""
    found = namespace_id(peer, scope)
    assert -(2**63) <= found < 0
    assert is_namespace(found)
    assert (found == namespace_id(other, other_scope)) == ((peer, scope) == (other, other_scope))
