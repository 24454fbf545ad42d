"""Upkeep of a leader's witness list: DESIGN §7, invariants 2 and 11."""

from __future__ import annotations

import pytest

from curp._core.witness_list import WitnessList
from curp._core.witness_table import WitnessVerdict
from curp._core.witness_upkeep import ListAgain, WitnessUpkeep

OLD, NEW = ((1, b"old"),), ((1, b"old"), (2, b"new"))


def _upkeep(*started: str) -> WitnessUpkeep:
    return WitnessUpkeep(WitnessList(7, started, True, ("a", "b", "c")), OLD, 0.0)


def _found(
    upkeep: WitnessUpkeep,
    address: str,
    verdict: WitnessVerdict = WitnessVerdict.OTHER_CONFIGURATION,
) -> ListAgain | None:
    return upkeep.found({address: verdict}, upkeep.listed.configuration)


def test_witnesses_are_asked_every_second() -> None:
    """No sooner: those that were left out, and those that are listed (2)."""
    upkeep = _upkeep("b")
    assert upkeep.due(0.5) == ()
    assert upkeep.due(1.0) == ("a", "b", "c")
    assert upkeep.due(1.5) == ()
    assert upkeep.due(2.0) == ("a", "b", "c")
    upkeep.in_force(WitnessList(8, ("a", "b", "d"), True, ("a", "b", "d")), 2.0)
    assert upkeep.due(2.5) == ()
    assert upkeep.due(9.0) == ("a", "b", "d")


def test_a_listed_one_that_forgot_is_listed_anew() -> None:
    """As one found so by what it is told; one in order, or silent, changes nothing (2, 11)."""
    upkeep = _upkeep("a", "b", "c")
    assert upkeep.found({}, 7) is None
    assert _found(upkeep, "a", WitnessVerdict.ACCEPTED) is None
    again = upkeep.found({"a": WitnessVerdict.ACCEPTED, "b": WitnessVerdict.OTHER_CONFIGURATION}, 7)
    assert again == ListAgain(7, (("b", WitnessVerdict.OTHER_CONFIGURATION),))
    assert upkeep.again(7) == ("a", "b", "c")


def test_an_answer_under_another_number_is_none() -> None:
    """It was asked under 7, and serves 8 since (2)."""
    upkeep = _upkeep("a", "b", "c")
    upkeep.in_force(upkeep.listed._replace(configuration=8), 1.0)
    assert upkeep.found({"a": WitnessVerdict.OTHER_CONFIGURATION}, 7) is None


def _numbers_taken(until: float, *started: str, verdict: WitnessVerdict) -> int:
    """Of a leader whose witness ``c`` answers that each time, whatever was done for it."""
    upkeep = _upkeep(*started)
    for quarter in range(round(4 * until)):
        now = quarter / 4
        if "c" in upkeep.due(now):
            number = upkeep.listed.configuration
            assert _found(upkeep, "c", verdict) is not None
            wanted = upkeep.again(number)
            assert wanted is not None
            upkeep.in_force(WitnessList(number + 1, started, True, wanted), now)
    return upkeep.listed.configuration - 7


@pytest.mark.parametrize(
    ("started", "verdict"),
    [
        (("a", "b"), WitnessVerdict.OTHER_GROUP),
        (("a", "b", "c"), WitnessVerdict.OTHER_CONFIGURATION),
    ],
    ids=["refuses", "forgets"],
)
def test_one_for_which_a_number_was_in_vain_is_asked_less_and_less_often(
    started: tuple[str, ...], verdict: WitnessVerdict
) -> None:
    """Each trial takes a number, for which the leader syncs: once a minute in the end (11)."""
    assert _numbers_taken(64.0, *started, verdict=verdict) == 6
    assert _numbers_taken(3664.0, *started, verdict=verdict) == 66


def test_one_that_is_found_in_order_is_asked_every_second_again() -> None:
    """What restarted once is looked after as before, from the next look on (2)."""
    upkeep = _upkeep("a", "b", "c")
    assert upkeep.due(1.0)
    assert _found(upkeep, "c") is not None
    upkeep.in_force(upkeep.listed._replace(configuration=8), 1.0)
    assert upkeep.due(2.0) == ("a", "b")
    assert "c" in upkeep.due(3.0)
    assert _found(upkeep, "c", WitnessVerdict.ACCEPTED) is None
    assert "c" in upkeep.due(5.0)
    assert "c" in upkeep.due(6.0)


def test_others_are_asked_every_second_whoever_refuses() -> None:
    """One that is only down is listed when it is back, and then the other is tried anew."""
    upkeep = _upkeep("b")
    for now in (1.0, 3.0, 7.0):
        assert "a" in upkeep.due(now)
        _found(upkeep, "a")
        upkeep.in_force(upkeep.listed._replace(configuration=8), now)
    assert [now for now in range(8, 15) if "c" in upkeep.due(float(now))] == [*range(8, 15)]
    _found(upkeep, "c")
    upkeep.in_force(WitnessList(9, ("b", "c"), True, ("a", "b", "c")), 15.0)
    assert upkeep.due(15.5) == ()
    assert "a" in upkeep.due(16.0)
    assert "a" in upkeep.due(17.0)


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
