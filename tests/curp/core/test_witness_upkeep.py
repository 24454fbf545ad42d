"""When a witness list is seen to again: DESIGN §7, invariants 2 and 11."""

from __future__ import annotations

from curp._core.witness_list import WitnessList
from curp._core.witness_upkeep import WitnessUpkeep

OLD, NEW = ((1, b"old"),), ((1, b"old"), (2, b"new"))


def _upkeep(*started: str) -> WitnessUpkeep:
    return WitnessUpkeep(WitnessList(7, started, True, ("a", "b", "c")), OLD, 0.0)


def test_who_was_left_out_is_asked_every_second() -> None:
    """No sooner, and the others are not; a list that is whole is left alone."""
    upkeep = _upkeep("b")
    assert upkeep.missing(0.5) == ()
    assert upkeep.missing(1.0) == ("a", "c")
    assert upkeep.missing(1.5) == ()
    assert upkeep.missing(2.0) == ("a", "c")
    upkeep.in_force(WitnessList(8, ("a", "b", "c"), True, ("a", "b", "c")), 2.0)
    assert upkeep.missing(9.0) == ()


def _numbers_taken(until: float) -> int:
    """Of a leader whose witness ``c`` answers, and refuses to be started."""
    upkeep = _upkeep("a", "b")
    for quarter in range(round(4 * until)):
        now = quarter / 4
        for address in upkeep.missing(now):
            upkeep.answers(address)
            number = upkeep.listed.configuration
            wanted = upkeep.again(number)
            assert wanted is not None
            upkeep.in_force(WitnessList(number + 1, ("a", "b"), True, wanted), now)
    return upkeep.listed.configuration - 7


def test_one_that_answers_and_refuses_is_tried_less_and_less_often() -> None:
    """Each trial takes a number, for which the leader syncs: once a minute in the end (11)."""
    assert _numbers_taken(64.0) == 6
    assert _numbers_taken(3664.0) == 66


def test_others_are_asked_every_second_whoever_refuses() -> None:
    """One that is only down is listed when it is back, and then the other is tried anew."""
    upkeep = _upkeep("b")
    for now in (1.0, 3.0, 7.0):
        assert "a" in upkeep.missing(now)
        upkeep.answers("a")
        upkeep.in_force(upkeep.listed._replace(configuration=8), now)
    assert [now for now in range(8, 15) if "c" in upkeep.missing(float(now))] == [*range(8, 15)]
    upkeep.answers("c")
    upkeep.in_force(WitnessList(9, ("b", "c"), True, ("a", "b", "c")), 15.0)
    assert upkeep.missing(15.5) == ()
    assert upkeep.missing(16.0) == ("a",)
    assert upkeep.missing(17.0) == ("a",)


def test_what_was_found_under_another_number_changes_nothing() -> None:
    """A witness of number 7 forgot; under 8 it began empty anyway (invariant 2)."""
    upkeep = _upkeep("a", "b")
    assert upkeep.again(7) == ("a", "b", "c")
    upkeep.in_force(WitnessList(8, ("d",), True, ("d",)), 1.0)
    assert upkeep.again(7) is None
    assert upkeep.again(8) == ("d",)


def test_witnesses_are_told_of_secrets_when_these_changed() -> None:
    """Once; one that missed it refuses callers with new tokens, which is safe, and not fast."""
    upkeep = _upkeep("a", "b")
    assert upkeep.to_tell(OLD) == ()
    assert upkeep.to_tell(NEW) == ("a", "b")
    assert upkeep.to_tell(NEW) == ()
