"""Another witness list: DESIGN §7, invariant 11; CURP §3.6."""

from __future__ import annotations

from typing import Any

import pytest

from curp._core.steps import Sync
from curp._core.witness_change import HoldBack, NextNumber, Serve, change_witnesses
from curp._core.witness_list import Publish, StartWitnesses, WitnessList, left_out
from rifl.core._shared.errors import NotLeader


def _drive(started: set[str], number: int = 4) -> tuple[list[Any], WitnessList]:
    rule = change_witnesses(3, ["w2", "w3"])
    steps: list[Any] = []
    answer: Any = None
    while True:
        try:
            step = rule.send(answer)
        except StopIteration as stop:
            return steps, stop.value
        steps.append(step)
        answer = None
        if isinstance(step, HoldBack):
            answer = 17
        elif isinstance(step, NextNumber):
            answer = number
        elif isinstance(step, StartWitnesses):
            answer = started


def test_the_log_has_what_was_answered_before_there_is_another_number() -> None:
    """Held back, synced, numbered, started, published, served: in this order (invariant 11)."""
    taken = WitnessList(4, ("w2", "w3"), False, ("w2", "w3"))
    served = taken._replace(serving=True)
    steps, found = _drive({"w2", "w3"})
    assert steps == [
        HoldBack(),
        Sync(17),
        NextNumber(3, taken),
        StartWitnesses(("w2", "w3"), 4),
        Publish(served),
        Serve(served),
    ]
    assert found == served


def test_a_witness_that_did_not_start_is_left_out() -> None:
    """It is asked once, is not in the list, and stays wanted (invariant 2)."""
    steps, found = _drive({"w3"})
    assert found == WitnessList(4, ("w3",), True, ("w2", "w3"))
    assert left_out(found) == ("w2",)
    assert steps.count(StartWitnesses(("w2", "w3"), 4)) == 1


def test_another_number_than_the_next_is_nobodys() -> None:
    """Nothing is started or published under a number that the list does not name."""
    with pytest.raises(NotLeader):
        _drive({"w2", "w3"}, number=6)
