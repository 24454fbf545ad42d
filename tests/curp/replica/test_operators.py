"""Operators' work on a group of real processes, and its effects (DESIGN §7)."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from curp._cli.command import main
from tests.curp.engines import over
from tests.curp.replica.operated import DEADLINE_S, operated
from tests.helpers.waiting import until

pytestmark = pytest.mark.slow


def _url(directory: Path) -> str:
    return f"sqlite:///{directory}/bank.log?group=bank"


@pytest.mark.parametrize("log", over("sqlite", "postgres", "etcd"), indirect=True)
def test_a_group_that_was_stopped_whole_starts_again(tmp_path: Path, log: Any) -> None:
    """SIGTERM to every replica, then to the witness: its leader ended its number (invariant 5)."""
    accounts = [f"a{number}" for number in range(20)]
    with operated(tmp_path, log.url) as group:
        group.start()
        group.until_listed()
        group.deposit(*accounts)
        assert set(group.stop(*group.replicas)) == {0}
        group.stop(*group.witnesses)
        group.start()
        group.leader()
        assert group.balances(*accounts) == [1] * 20


def test_two_groups_of_one_name_share_no_witness(tmp_path: Path) -> None:
    """Staging's leader, with higher numbers, takes nothing of production's (DESIGN §7)."""
    production, staging = tmp_path / "production", tmp_path / "staging"
    production.mkdir()
    staging.mkdir()
    with (
        operated(production, _url(production)) as ours,
        operated(staging, _url(staging), witnesses=0) as theirs,
    ):
        ours.start()
        ours.until_listed()
        ours.deposit("a")
        # The same witness, by mistake.
        theirs.witnesses = dict(ours.witnesses)
        theirs.start("r1")
        for _ in range(3):
            # Each leader asks for more than the one before.
            theirs.leader()
            theirs.stop("r1")
            theirs.start("r1")
        theirs.leader()
        theirs.deposit("b")
        status = theirs.status("r1")
        assert "witnesses" not in status["configuration"]
        assert int(status["configuration"]["configuration"]) > 3
        ours.deposit("c")
        ours.stop(*ours.replicas, how=signal.SIGKILL)
        ours.start(*ours.replicas)
        ours.leader()
        assert ours.balances("a", "b", "c") == [1, 0, 1]


@pytest.mark.parametrize("log", over("sqlite"), indirect=True)
def test_real_loss_is_accepted_by_an_operator_and_by_nobody_else(
    tmp_path: Path, log: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """All killed: the group waits until a person says so, which the log keeps (invariant 5)."""
    url = log.url
    with operated(tmp_path, url) as group:
        group.start()
        group.until_listed()
        group.deposit("a", "b")
        group.stop(how=signal.SIGKILL)
        group.start()
        waiting = "never restarted"
        until(
            lambda: any(
                waiting in each.get("waitingFor", "") for each in group.statuses().values()
            ),
            "they wait for the witness",
            DEADLINE_S,
        )
        arguments = ["recover", url, "--accept-loss", "--who", "alice", "--why", "power cut"]
        assert main([*arguments, "--yes"]) == 0
        told = capsys.readouterr().out
        assert group.witnesses["w1"] in told
        assert "may be lost" in told
        group.leader()
        # The first call of a client is in the log before it is answered; the second may be lost.
        assert group.balances("a") == [1]
        assert main(["recover", url]) == 0
        assert "alice: power cut" in capsys.readouterr().out
        # Nothing is lost now, so nothing is to be accepted.
        assert main([*arguments, "--yes"]) == 1
        assert "leads" in capsys.readouterr().err
