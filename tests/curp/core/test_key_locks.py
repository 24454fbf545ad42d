"""KeyLocks: conflicting operations run one after the other (CURP §3.1)."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from curp._core.key_locks import KeyLock, KeyLocks

_turns = st.tuples(st.frozensets(st.integers(0, 3), max_size=3), st.booleans())
_steps = st.lists(
    st.one_of(st.tuples(st.just("ask"), _turns), st.tuples(st.just("end"), st.integers(0, 30))),
    max_size=80,
)


def _conflict(one: KeyLock, other: KeyLock) -> bool:
    if one.reads and other.reads:
        return False
    return not one.keys or not other.keys or not one.keys.isdisjoint(other.keys)


@example(
    [("ask", (frozenset(), False))] * 3
    + [("end", 2)]
    + [("ask", (frozenset(), False))] * 2
    + [("end", 0), ("end", 2), ("end", 0)]
)
@given(_steps)
def test_turns_come_in_the_order_asked_for_as_far_as_they_conflict(steps: list) -> None:  # type: ignore[type-arg]
    """Against a list: a turn has come when no earlier one conflicts (KeyLocks, 1 and 2)."""
    turns, line = KeyLocks(), list[KeyLock]()
    told: set[KeyLock] = set()
    for step, value in steps:
        if step == "ask":
            turn = KeyLock(value[0], reads=value[1])
            if turns.ask(turn):
                told.add(turn)
            line.append(turn)
        elif line:
            turn = line[value % len(line)]
            come = turns.give_back(turn)
            assert told.isdisjoint(come)
            told.update(come)
            if turn in told:
                line.remove(turn)
            # One that left before its turn keeps its place until those before it ended.
            kept = list[KeyLock]()
            for other in line:
                if not other.given_back or any(_conflict(other, before) for before in kept):
                    kept.append(other)
            line = kept
        for at, turn in enumerate(line):
            if not turn.given_back:
                free = not any(_conflict(turn, before) for before in line[:at])
                assert (turn in told) is free
                assert turn.has_come is free
    for turn in line:
        turns.give_back(turn)
    assert len(turns) == 0


def test_one_that_leaves_early_does_not_let_others_overtake() -> None:
    """A turn given back before it came still parts those behind it from those before it."""
    turns = KeyLocks()
    first, second, third = (KeyLock(frozenset({1})) for _ in range(3))
    assert turns.ask(first)
    assert not turns.ask(second)
    assert not turns.ask(third)
    assert turns.give_back(second) == []
    assert not third.has_come
    assert turns.give_back(first) == [third]
