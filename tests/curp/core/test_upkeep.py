"""When a witness list is seen to again: DESIGN §7, invariants 2 and 11."""

from __future__ import annotations

from curp.core.recovery import WitnessList
from curp.core.upkeep import Upkeep

OLD, NEW = ((1, b"old"),), ((1, b"old"), (2, b"new"))


def _upkeep(*started: str) -> Upkeep:
    return Upkeep(WitnessList(7, started, True, ("a", "b", "c")), OLD, 0.0)


def test_who_was_left_out_is_asked_every_second() -> None:
    """No sooner, and the others are not; a list that is whole is left alone."""
    upkeep = _upkeep("b")
    assert upkeep.missing(0.5) == ()
    assert upkeep.missing(1.0) == ("a", "c")
    assert upkeep.missing(1.5) == ()
    assert upkeep.missing(2.0) == ("a", "c")
    upkeep.listed = WitnessList(8, ("a", "b", "c"), True, ("a", "b", "c"))
    assert upkeep.missing(9.0) == ()


def test_what_was_found_under_another_number_changes_nothing() -> None:
    """A witness of number 7 forgot; under 8 it began empty anyway (invariant 2)."""
    upkeep = _upkeep("a", "b")
    assert upkeep.again(7) == ("a", "b", "c")
    upkeep.listed = WitnessList(8, ("d",), True, ("d",))
    assert upkeep.again(7) is None
    assert upkeep.again(8) == ("d",)


def test_witnesses_are_told_of_secrets_when_these_changed() -> None:
    """Once; one that missed it refuses callers with new tokens, which is safe, and not fast."""
    upkeep = _upkeep("a", "b")
    assert upkeep.to_tell(OLD) == ()
    assert upkeep.to_tell(NEW) == ("a", "b")
    assert upkeep.to_tell(NEW) == ()
