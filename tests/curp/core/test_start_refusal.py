"""Refused starts of a witness, as people are told: DESIGN §7, invariant 2."""

from __future__ import annotations

import pytest

from curp._core.start_refusal import start_refusal
from curp._core.witness_table import WitnessVerdict


@pytest.mark.parametrize(
    ("verdict", "found", "told"),
    [
        (WitnessVerdict.OTHER_GROUP, ("shop@000000000000000b", 3), "another group, shop@0"),
        (WitnessVerdict.OTHER_GROUP, ("bank@000000000000000b", 3), "another group, bank@0"),
        (WitnessVerdict.OTHER_GROUP, None, "another group"),
        (WitnessVerdict.OTHER_CONFIGURATION, ("bank@000000000000000a", 9), "configuration 9"),
        (WitnessVerdict.FROZEN, ("bank@000000000000000a", 4), "configuration 4"),
        (WitnessVerdict.FULL, None, "FULL"),
    ],
)
def test_a_verdict_is_told_with_what_the_witness_serves(
    verdict: WitnessVerdict, found: tuple[str, int] | None, told: str
) -> None:
    """Another group, or a number that is not behind: each by its name (2)."""
    why = start_refusal(verdict, found)
    assert why.startswith("refused: ")
    assert told in why
