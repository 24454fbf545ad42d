"""What operators do to a group of real processes, and what is left of it (DESIGN §7)."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from curp.cli.command import main
from tests.curp.replica.operated import DEADLINE_S, operated
from tests.helpers.waiting import until

pytestmark = pytest.mark.slow


def _url(directory: Path) -> str:
    return f"sqlite:///{directory}/bank.log?group=bank"


def test_a_group_that_was_stopped_whole_starts_again(tmp_path: Path) -> None:
    """SIGTERM to every replica, then to the witness: its leader ended its number (invariant 5)."""
    accounts = [f"a{number}" for number in range(20)]
    with operated(tmp_path, _url(tmp_path)) as group:
        group.start()
        group.leader()
        group.deposit(*accounts)
        assert set(group.stop(*group.replicas)) == {0}
        group.stop(*group.witnesses)
        group.start()
        group.leader()
        assert group.balances(*accounts) == [1] * 20


def test_real_loss_is_accepted_by_an_operator_and_by_nobody_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All killed: the group waits until a person says so, which the log keeps (invariant 5)."""
    url = _url(tmp_path)
    with operated(tmp_path, url) as group:
        group.start()
        group.leader()
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
        assert group.balances("a", "b") == [1, 1]
        assert main(["recover", url]) == 0
        assert "alice: power cut" in capsys.readouterr().out
        # Nothing is lost now, so nothing is to be accepted.
        assert main([*arguments, "--yes"]) == 1
        assert "leads" in capsys.readouterr().err
