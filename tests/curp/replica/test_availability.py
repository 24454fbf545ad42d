"""How long a group of real processes serves nobody, and why (DESIGN §7)."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.curp.replica.operated import operated

pytestmark = pytest.mark.slow


def _url(directory: Path) -> str:
    return f"sqlite:///{directory}/bank.log?group=bank"


def test_a_replica_cut_off_from_the_witnesses_lets_others_lead(tmp_path: Path) -> None:
    """It gives a recovery up that no witness answers, and holds off (invariant 5)."""
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    right.write_text("the token of this group")
    wrong.write_text("the token of another group")
    with operated(tmp_path, _url(tmp_path), "--log-json") as group:
        group.own = {
            name: ("--group-token-file", str(wrong if name == "r2" else right))
            for name in ("w1", "r1", "r2")
        }
        group.start("w1", "r1")
        group.until_listed()
        group.deposit("a", "b")
        group.start("r2")
        group.stop("r1", how=signal.SIGKILL)
        group.until_event("r2", "taking_over")
        group.start("r1")
        # The other one asks a witness in vain: it refuses whoever has another token.
        assert group.leader() == "r1"
        assert group.events("r2", "recovery_given_up")
        assert group.balances("a", "b") == [1, 1]


def test_hung_witnesses_do_not_hold_a_recovery_up_one_by_one(tmp_path: Path) -> None:
    """They are asked at once, for their requests and to be started (invariant 5)."""
    with operated(tmp_path, _url(tmp_path), "--log-json", witnesses=3) as group:
        group.start()
        group.until_listed()
        group.deposit("a", "b")
        for name in ("w1", "w2"):
            group.signal(name, signal.SIGSTOP)
        leader = group.leader()
        group.stop(leader, how=signal.SIGKILL)
        (other,) = {"r1", "r2"} - {leader}
        group.until_event(other, "leading")
        # Each of the hung ones by itself would take two seconds, twice.
        assert group.events(other, "leading")[-1]["seconds"] < 4.0
        assert group.balances("a", "b") == [1, 1]
