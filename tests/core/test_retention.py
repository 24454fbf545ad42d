"""The rules of keyed records' time and of namespaces (DESIGN §3, §4)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rifl.core.namespace import is_namespace, namespace_id
from rifl.core.retention import Retention

_keys = st.tuples(st.integers(-2, 2), st.sampled_from([b"a", b"b"]))
_steps = st.lists(
    st.one_of(
        st.tuples(st.just("note"), _keys, st.integers(0, 20)),
        st.tuples(st.just("forget"), _keys, st.just(0)),
        st.tuples(st.just("due"), st.just((0, b"")), st.integers(0, 20)),
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
            retention.note(*identity, now + number)
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
        retention.note(1, b"k", float(at))
    assert len(retention._order) < 2000
    assert retention.due(1e9, 10) == [(1, b"k")]


@given(st.binary(max_size=80), st.text(max_size=20), st.binary(max_size=80), st.text(max_size=20))
def test_namespaces_are_ids_of_their_own(
    peer: bytes, scope: str, other: bytes, other_scope: str
) -> None:
    """Negative 64-bit numbers, the same for the same peer and scope only (DESIGN §3)."""
    found = namespace_id(peer, scope)
    assert -(2**63) <= found < 0
    assert is_namespace(found)
    assert (found == namespace_id(other, other_scope)) == ((peer, scope) == (other, other_scope))
