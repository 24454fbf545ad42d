"""Following, taking over, leading and stepping down: DESIGN §7, invariants 4, 5 and 10."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from curp._core.handover import EndLease
from curp._core.recovery import Recovered
from curp._core.role import (
    EndLeadership,
    MayTakeOver,
    RoleEnded,
    RoleEnding,
    TakeLeadership,
    follow_and_lead,
)
from curp._core.steps import VisibleWait
from curp._core.witness_list import WitnessList
from curp.log._errors import LeadershipOver, LeaseHeld, LogUnavailable, TailMismatch
from rifl.core._shared.errors import NotLeader

_FOUND = Recovered(WitnessList(4, (), True, ()), 7, "", 0, 0, 0)


class _Raise(NamedTuple):
    """In the place of an answer: an error that is thrown in."""

    error: Exception


class _Shell:
    """Answers steps by their names, one answer after the other; what was asked for is kept."""

    def __init__(self, **answers: Any) -> None:
        self.answers = {
            "CountHandlers": 0,
            "ApplyMore": False,
            "AwaitEntry": False,
            "MayTakeOver": True,
            "TakeLeadership": 4,
            "Recover": _FOUND,
            **answers,
        }
        self.steps: list[Any] = []
        self.most = 60

    def run(self, until: Callable[[Any], bool] = lambda step: False) -> list[str]:
        """Carry it out until it ends, or until such a step; the names of all steps."""
        rule = follow_and_lead(lambda: len(self.steps) >= self.most)
        step = rule.send(None)
        try:
            while not until(step):
                self.steps.append(step)
                answer = self.answers.get(type(step).__name__)
                if isinstance(answer, list):
                    answer = answer.pop(0) if len(answer) > 1 else answer[0]
                step = rule.throw(answer.error) if isinstance(answer, _Raise) else rule.send(answer)
        except StopIteration:
            pass
        return [type(each).__name__ for each in self.steps]


def _begins_again(shell: _Shell) -> list[str]:
    return shell.run(lambda step: bool(shell.steps) and type(step).__name__ == "Begin")


def test_a_replica_begins_over_after_each_leadership() -> None:
    """Its state may hold what never reached the log: it is made anew from that (invariant 4)."""
    assert _begins_again(_Shell()) == [
        "Begin",
        "CountHandlers",
        "TellSurvival",
        "Rebuild",
        "ApplyMore",
        "AwaitEntry",
        "ExpireKeys",
        "TellSurvival",
        "MayTakeOver",
        "TakeLeadership",
        "Recover",
        "TakeCalls",
        "AwaitEnd",
        "HandOver",
        "EndLeadership",
        # Before the lease ends, and somebody counts what it left noted.
        "TellSurvival",
        "EndLease",
        "RoleEnded",
    ]


def test_who_was_deposed_hands_nothing_over_and_leaves_the_lease_alone() -> None:
    """The lease is another one's by then (invariants 4 and 10)."""
    deposed = LeadershipOver("5")
    shell = _Shell(AwaitEnd=deposed, EndLeadership=deposed)
    names = _begins_again(shell)
    assert names[names.index("AwaitEnd") :] == ["AwaitEnd", "EndLeadership", "RoleEnded"]


@pytest.mark.parametrize("error", [LeaseHeld("another's", 1.0), LogUnavailable("lost")])
def test_who_did_not_get_the_number_goes_on_from_what_it_has(error: Exception) -> None:
    """Nothing was done under it, so the state is the log's: nothing is thrown away for that."""
    shell = _Shell(TakeLeadership=[_Raise(error), _Raise(LeadershipOver("enough"))])
    names = _begins_again(shell)
    assert names.count("TakeLeadership") == 2
    assert names.count("Rebuild") == 1


def test_a_recovery_that_was_given_up_leaves_the_state_as_it_is() -> None:
    """No witness could be asked: whoever reaches one may lead, and this one follows (5)."""
    shell = _Shell(Recover=None, MayTakeOver=[True, False])
    names = shell.run(
        lambda step: isinstance(step, MayTakeOver) and isinstance(shell.steps[-5], EndLease)
    )
    assert names.count("Rebuild") == 1
    assert names[-8:-4] == ["GiveUp", "EndLeadership", "TellSurvival", "EndLease"]
    assert shell.steps[-7] == EndLeadership(knows=True)


def test_what_the_engine_refuses_for_good_stops_the_replica() -> None:
    """A tail that is not where it was left means that acknowledged entries are gone (4)."""
    moved = TailMismatch("moved", 3)
    shell = _Shell(AwaitEnd=moved, EndLeadership=moved)
    shell.run()
    assert shell.steps[-1] == RoleEnded(moved, RoleEnding.STOP)


def test_an_error_of_the_leaderships_own_gives_the_reason_it_was_over() -> None:
    """What failed under it failed since it was over: said is why that was (invariant 4)."""
    shell = _Shell(HandOver=[_Raise(NotLeader("it is over"))])
    _begins_again(shell)
    ended = shell.steps[-1]
    assert isinstance(ended, RoleEnded)
    assert ended.ending is RoleEnding.BEGIN_OVER


def test_who_cannot_follow_now_waits_and_throws_nothing_away() -> None:
    """The engine cannot be asked: what was applied stands."""
    shell = _Shell(ApplyMore=[_Raise(LogUnavailable("timed out")), False])
    names = shell.run(lambda step: isinstance(step, TakeLeadership))
    assert any(isinstance(step, VisibleWait) and "timed out" in step.reason for step in shell.steps)
    assert names.count("Rebuild") == 1
