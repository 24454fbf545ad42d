"""A witness that answers, and refuses to be started: tried less often, and named (DESIGN §7)."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from chaos.sim.group.log import LogStore
from curp._cli.command import main
from curp._core.witness_table import WitnessVerdict, group_of_log
from curp.v1 import curp_pb2 as pb
from curp.witness import WitnessClient
from tests.curp.replica.running import replica
from tests.helpers.ports import free_port
from tests.helpers.processes import Process, started
from tests.helpers.waiting import until

_DEADLINE_S = 60.0
_SECRETS = pb.SecretsPut(secrets=[pb.SecretsPut.Secret(key_id=1, secret=b"s" * 32)])


def test_a_witness_that_refuses_is_named_and_tried_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`curp status` has each one's reason; one that was down is listed all the same (2, 11)."""
    monkeypatch.setattr("curp._core.witness_upkeep._LOOK_S", 0.05)
    token = tmp_path / "token"
    token.write_text("open sesame\n")
    late = f"127.0.0.1:{free_port()}"
    with contextlib.ExitStack() as stack:
        theirs = stack.enter_context(
            started("curp.witness", "--listen", "127.0.0.1:0", log=tmp_path / "w1.err")
        ).line()
        guarded = stack.enter_context(
            started(
                *("curp.witness", "--listen", "127.0.0.1:0", "--group-token-file", str(token)),
                log=tmp_path / "w2.err",
            )
        ).line()
        with WitnessClient(theirs) as client:
            verdict = client.start(group_of_log("group", 0xBAD), 9, _SECRETS, [], timeout_s=20)
            assert verdict is WitnessVerdict.ACCEPTED
        running = stack.enter_context(
            replica(
                LogStore().engine(),
                witnesses=[theirs, guarded, late],
                group_token="ours",  # noqa: S106
                tuning={"witness_timeout_s": 0.3},
            )
        )
        running.until_leading()
        began, number = time.monotonic(), running.replica.configuration().configuration
        until(
            lambda: running.replica.configuration().configuration >= number + 6,
            "it is tried again",
            _DEADLINE_S,
        )
        # Every look would be a number, at 4 looks a second.
        assert time.monotonic() - began >= 0.05 * (2**6 - 1) * 0.95
        ours = tmp_path / "ours"
        ours.write_text("ours")
        until(lambda: "it does not answer" in _status(running.address, capsys, ours), "all named")
        told = _status(running.address, capsys, ours)
        assert f"{theirs}  could not be started: refused: it serves another group" in told
        assert f"{guarded}  could not be started: refused: it has another group token" in told
        stack.enter_context(started("curp.witness", "--listen", late, log=tmp_path / "w3.err"))
        until(
            lambda: list(running.replica.configuration().witnesses) == [late],
            "the one that was down is listed",
            _DEADLINE_S,
        )
        add = ["witness", "add", running.address, f"127.0.0.1:{free_port()}"]
        assert main([*add, "--group-token-file", str(ours)]) == 0
        assert f"{guarded} could not be started: refused" in capsys.readouterr().out


def test_one_that_restarted_beside_an_idle_leader_is_listed_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody calls, and nobody says so: the leader asks by itself, and goes on asking (2, 11)."""
    address = f"127.0.0.1:{free_port()}"
    with contextlib.ExitStack() as stack:

        def start(log: str) -> Process:
            process = stack.enter_context(
                started("curp.witness", "--listen", address, log=tmp_path / log)
            )
            assert process.line() == address
            return process

        serving = start("w1.err")
        running = stack.enter_context(replica(LogStore().engine(), witnesses=[address]))
        running.until_leading()
        number = running.replica.configuration().configuration
        with capture_logs() as written:
            for life in (2, 3):
                serving.kill()
                serving = start(f"w{life}.err")
                number += 1
                listed = f"{address}  normal  configuration {number}"
                until(lambda: listed in _shown(running.address, capsys)[1], "it is listed")  # noqa: B023 - of this turn
        assert [each for each in written if each["event"] == "witness_forgot"] == 2 * [
            {
                "event": "witness_forgot",
                "log_level": "warning",
                "witness": address,
                "verdict": "OTHER_GROUP",
            }
        ]


def _status(address: str, capsys: pytest.CaptureFixture[str], token: Path) -> str:
    exits, told = _shown(address, capsys, "--group-token-file", str(token))
    assert exits == 3
    return told


def _shown(address: str, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, str]:
    capsys.readouterr()
    return main(["status", address, *more]), capsys.readouterr().out
