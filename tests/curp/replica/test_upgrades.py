"""A group's application is upgraded under load, and back, and for good (DESIGN §7)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from curp._cli.command import main
from examples.replicated_bank.load import Load
from tests.curp.engines import over
from tests.curp.replica.operated import DEADLINE_S, Operated, operated
from tests.helpers.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.faults]

_SOME = 10
_FIRST = ("examples.replicated_bank.bank:MemoryBank", "--application-version", "1")
_SECOND = ("tests.curp.replica.second_bank:SecondBank", "--application-version", "2")


def _roll(group: Operated, load: Load, serves: tuple[str, ...]) -> None:
    """Restart one replica after the other; each follows, and each version's leads meanwhile."""
    for name in group.replicas:
        assert group.stop(name) == [0]
        group.serves[name] = serves
        group.start(name)
        load.await_answers(_SOME, DEADLINE_S)
        until(
            lambda name=name: _follows(group, name), f"{name} follows: {group.errors()}", DEADLINE_S
        )


def _follows(group: Operated, name: str) -> bool:
    status = group.statuses().get(name)
    if status is None or status["role"] not in ("standby", "leader"):
        return False
    assert "Diverged" not in status.get("waitingFor", "")
    return int(status.get("tail", 0)) - int(status.get("applied", 0)) < 500


def _active(group: Operated) -> set[int]:
    """Return the versions that replicas say; one that has just started may not know it yet."""
    said = {int(status.get("activeVersion", 0)) for status in group.statuses().values()}
    return said - {0}


@pytest.mark.parametrize("log", over("sqlite"), indirect=True)
def test_an_upgrade_is_rolled_out_under_load_and_back_and_finalized(
    tmp_path: Path, log: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Across versions the log's answer stands; back until it is finalized, then never (§7)."""
    with operated(tmp_path, log.url, replicas=3) as group:
        group.serves = dict.fromkeys(group.replicas, _FIRST)
        group.start()
        group.until_listed()
        with Load(list(group.replicas.values()), callers=4, accounts=32) as load:
            load.await_answers(_SOME, DEADLINE_S)
            assert until(lambda: _active(group), "a version", DEADLINE_S) == {1}
            _roll(group, load, _SECOND)
            assert until(lambda: _active(group), "a version", DEADLINE_S) == {1}
            _roll(group, load, _FIRST)
            # One of the first version would be left behind.
            _roll(group, load, _SECOND)
            group.stop("r3")
            target = group.replicas["r1"]
            assert main(["upgrade", target, "--finalize"]) == 1
            assert group.replicas["r3"] in capsys.readouterr().err
            group.serves["r3"] = _FIRST
            group.start("r3")
            assert main(["upgrade", target, "--finalize", "--who", "alice"]) == 1
            arguments = ["upgrade", target, "--finalize", "--without", group.replicas["r3"]]
            until(lambda: main([*arguments, "--who", "alice"]) == 0, "finalized", DEADLINE_S)
            until(
                lambda: "upgrade" in group.status("r3").get("waitingFor", ""),
                "the one left behind says so",
                DEADLINE_S,
            )
            load.await_answers(_SOME, DEADLINE_S)
            # It cannot lead, whoever is gone.
            group.stop("r1", "r2")
            group.start("r1")
            assert group.leader() == "r1"
            assert group.status("r3")["role"] == "standby"
            load.await_answers(_SOME, DEADLINE_S)
            group.stop("r3")
            group.serves["r3"] = _SECOND
            group.start("r3")
            until(lambda: _follows(group, "r3"), "upgraded, it follows", DEADLINE_S)
            report = load.finish()
        assert report.violations == []
        assert (report.duplicates, report.lost) == (0, 0)
        assert report.effects > 0


@pytest.mark.parametrize("log", over("sqlite", "redis", "postgres", "etcd"), indirect=True)
def test_without_a_version_an_answer_that_differs_stops_the_replica(
    tmp_path: Path, log: Any
) -> None:
    """Within one version a handler that answers otherwise is not deterministic (DESIGN §7)."""
    with operated(tmp_path, log.url) as group:
        group.start()
        group.leader()
        group.deposit("a")
        stopped = next(name for name in group.replicas if name != group.leader())
        group.stop(stopped)
        group.serves[stopped] = _SECOND[:1]
        group.start(stopped)
        until(
            lambda: "Diverged" in (tmp_path / f"{stopped}.err").read_text(),
            "it stopped",
            DEADLINE_S,
        )
        assert group.balances("a") == [1]
