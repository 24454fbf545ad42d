"""Real faults: scenarios, their schedules, one of them run, and the same without rifl."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from pathlib import Path

import pytest

from chaos.check import History
from chaos.check.__main__ import main as check_files
from chaos.run.__main__ import main
from chaos.run.judge import judge
from chaos.run.report import write
from chaos.run.run import Result, run
from chaos.run.scenario import KINDS, Expected, Scenario
from chaos.run.scenario_files import BadScenario, read, read_all
from chaos.run.strikes import draw

pytestmark = pytest.mark.faults

SCENARIO = """
title = "A server that nobody can hear"
topology = "server"
seconds = 3

[deployment]
method = "atomic"

[load]
clients = 1
callers = 6

[[fault]]
kind = "loss"
target = "server-1"
stream = "downstream"
at = [0.2, 0.3]
lasts = [0.3, 0.5]
times = 3
every = [0.9, 1.0]

[expect]
answers = 50
"""


ATOMIC = 'method = "atomic"'
# Of servers nobody made room for that disk.
POSTGRESQL_FILLED = (
    SCENARIO.replace('method = "atomic"', 'store = "postgresql"')
    .replace('kind = "loss"\ntarget = "server-1"', 'kind = "fill"\ntarget = "postgresql"')
    .replace('stream = "downstream"\n', "")
)


# Their database would be a server that is not there.
CONSUMERS_ELSEWHERE = SCENARIO.replace('"server"', '"log"').replace(
    'method = "atomic"', 'followers = 2\nkeepers = 1\nconsumers = 2\neffects = "postgresql"'
)

# Its nodes are behind no paths.
NODE_OF_A_LOG_CUT_OFF = (
    SCENARIO.replace('"server"', '"log"')
    .replace('method = "atomic"', 'store = "etcd"\nfollowers = 2\nkeepers = 1')
    .replace('kind = "loss"\ntarget = "server-1"', 'kind = "down"\ntarget = "etcd-1"')
    .replace('stream = "downstream"\n', "")
)


@pytest.fixture
def scenario(tmp_path: Path) -> Scenario:
    path = tmp_path / "unheard.toml"
    path.write_text(SCENARIO)
    return read(path)


def _run(scenario: Scenario, tmp_path: Path) -> Result:
    return run(scenario, 7, tmp_path / scenario.deployment.method, lambda seconds, answers: None)


def test_the_scenarios_break_everything_there_is() -> None:
    """Every file can be read; each kind of fault and each topology is in one of them."""
    found = read_all().values()
    assert {fault.kind for each in found for fault in each.faults} == set(KINDS)
    struck = {
        (fault.kind, target.partition("-")[0])
        for each in found
        for fault in each.faults
        for target in fault.targets
    }
    for kind, targets in {
        "kill": ("server", "leader", "witness", "redis", "postgresql", "etcd", "client", "driver"),
        "stop": ("server", "leader", "witness", "redis", "etcd", "client", "publisher", "keeper"),
        "loss": ("server", "log", "publisher", "follower"),
        "down": ("etcd",),
        "fill": ("server", "redis", "log", "postgresql"),
        "clock": ("server", "client", "redis", "postgresql", "leader", "standby", "witness"),
        "slow": ("server", "redis", "postgresql", "log", "leader", "publisher", "follower"),
    }.items():
        assert struck >= {(kind, target) for target in targets}
    of_logs = ("publisher", "follower", "keeper", "player", "target", "consumer", "ledger")
    assert struck >= {("kill", each) for each in of_logs}
    assert struck >= {(kind, each) for kind in ("stop", "loss") for each in ("player", "target")}
    assert struck >= {("stop", "consumer"), ("loss", "consumer"), ("loss", "ledger")}
    assert {each.topology for each in found} == {"server", "group", "spark", "log"}
    assert {each.deployment.store for each in found} == {"sqlite", "redis", "postgresql", "etcd"}
    for topology in ("group", "log"):
        logs = {each.deployment.store for each in found if each.topology == topology}
        assert logs == {"sqlite", "redis", "postgresql", "etcd"}
    assert {each.deployment.served for each in found if each.topology == "log"} == {True, False}
    assert sum(each.short for each in found) >= 5


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("title", "titel", "no title"),
        ('"server"', '"cluster"', "topology"),
        ("seconds = 3", "seconds = 3\ncolour = 1", "colour"),
        ("seconds = 3", "seconds = 3000", "seconds"),
        ('kind = "loss"', 'kind = "gremlin"', "gremlin"),
        ('"server-1"', '"server-2"', "server-2"),
        ('"server-1"', '"redis"', "redis"),
        ('stream = "downstream"', 'stream = "sideways"', "sideways"),
        ('stream = "downstream"', "", "both"),
        ("at = [0.2, 0.3]", "at = [0.3, 0.2]", "the lower one first"),
        ("at = [0.2, 0.3]", 'at = "soon"', "at is"),
        ("at = [0.2, 0.3]", "at = 2.9", "may end after"),
        ("at = [0.2, 0.3]", "", "at is"),
        ("times = 3", "times = 0", "times"),
        ("every = [0.9, 1.0]", "every = 0.1", "before it is mended"),
        ('method = "atomic"', 'method = "perfect"', "perfect"),
        ('method = "atomic"', 'method = "atomic"\nstore = "redis"', "atomic"),
        ('method = "atomic"', "clocks_apart_s = 60", "several machines"),
        ('kind = "loss"', 'kind = "clock"', "seconds is"),
        ('kind = "loss"', 'kind = "slow"', "write_ms is"),
        ('method = "atomic"', "receipt_bytes = 2_000_000", "mebibyte"),
        (
            '"server"\nseconds = 3\n\n[deployment]',
            '"group"\nseconds = 3\n[deployment]\nreceipt_bytes = 9',
            "of servers",
        ),
        ('kind = "loss"', 'kind = "clock"\nseconds = [7, -7]', "the lower one first"),
        ("at = [0.2, 0.3]", "at = [-0.3, 0.3]", "the lower one first"),
        ('method = "atomic"', 'method = "atomic"\nforked_workers = 2', "plain or idempotent"),
        ("answers = 50", "answers = 50\nforked = 3", "forked_workers"),
        ('method = "atomic"', "followers = 2", "of a log"),
        ('"server"', '"log"', "two followers"),
        ('method = "atomic"', "targets = 2", "of a log"),
        (
            '"server"\nseconds = 3\n\n[deployment]',
            '"log"\nseconds = 3\n[deployment]\nplayers = 2',
            "both",
        ),
        ('method = "atomic"', "consumers = 2", "of a log"),
        (SCENARIO, CONSUMERS_ELSEWHERE, "have no postgresql"),
        (SCENARIO, POSTGRESQL_FILLED, "for a log"),
        (SCENARIO, NODE_OF_A_LOG_CUT_OFF, "for a group"),
        ("callers = 6", "callers = 0", "at least one"),
        ("callers = 6", "callers = true", "callers is"),
        ("callers = 6", "shouters = 6", "shouters"),
        ("answers = 50", "answers = 0", "shows nothing"),
        ("answers = 50", 'answers = 50\nexempt = ["lost"]', "because"),
        ("answers = 50", 'answers = 50\nexempt = ["luck"]\nbecause = "so"', "luck"),
    ],
)
def test_nonsense_is_refused(old: str, new: str, says: str, tmp_path: Path) -> None:
    """A file that says what cannot be done, or checks nothing, is refused by name and reason."""
    path = tmp_path / "nonsense.toml"
    assert old in SCENARIO
    path.write_text(SCENARIO.replace(old, new, 1))
    with pytest.raises(BadScenario, match=rf"nonsense\.toml: .*{says}"):
        read(path)


def test_a_schedule_is_the_seeds(scenario: Scenario) -> None:
    """The same seed strikes the same faults at the same times; another one others."""
    assert draw(scenario, 1) == draw(scenario, 1)
    assert draw(scenario, 1) != draw(scenario, 2)
    times = [each.at for each in draw(scenario, 1)]
    assert times == sorted(times)
    assert 0.2 <= times[0] <= 0.3


def test_what_a_scenario_expects_is_judged() -> None:
    """Few answers, no replays, and callers that were never told are found, and excused."""
    history = History()
    history.start(0.0, 1, "add", "a", 5, "once")
    history.start(0.0, 2, "add", "a", 5, "once")
    history.end(0.2, 1, "executed", "OK", [1, 5], "")
    history.effect(0.1, 1, "a", 1)

    def said(killed: bool, **expected: object) -> str:
        expect = dataclasses.replace(Expected(), **expected)
        return "\n".join(judge(history, expect, killed_clients=killed))

    assert "lost: call 1" in said(True, answers=1)
    assert said(True, answers=1, exempt=("lost",)) == ""
    assert "never ended" in said(False, answers=1)
    assert "too little" in said(True, answers=2)
    assert "came from records" in said(True, replayed=1)
    assert "0 calls were refused as FORKED_PROCESS" in said(True, forked=1)
    history.events[2]["by"] = "forked worker"
    assert "answered 1 calls with OK" in said(True, answers=1)


@pytest.mark.slow
def test_a_run_holds_and_is_reported(scenario: Scenario, tmp_path: Path) -> None:
    """A real server behind a real Toxiproxy: every promise is kept, and the report says how.

    The page asks the network for nothing, and the history is one that can be checked again.
    """
    result = _run(scenario, tmp_path)
    assert result.problems == []
    assert len(result.faults) == 3
    assert result.counts["replayed"] > 0
    write(tmp_path / "report", [result])
    said = json.loads((tmp_path / "report" / "report.json").read_text())
    assert said["good"]
    assert said["runs"][0]["counts"]["effects"] == result.counts["effects"]
    page = (tmp_path / "report" / "index.html").read_text()
    assert "<svg" in page
    assert not re.search(r"https?:|src=|<link|<script|@import|url\(", page)
    assert "unheard" in (tmp_path / "report" / "report.txt").read_text()
    assert check_files([str(tmp_path / "report" / "unheard-7.jsonl")]) == 0
    assert not (tmp_path / "atomic").exists()


@pytest.mark.slow
def test_the_same_without_rifl_is_rejected(scenario: Scenario, tmp_path: Path) -> None:
    """The same service, faults and judge, with gRPC's retries alone: payments are doubled."""
    plain = dataclasses.replace(scenario.deployment, method="grpc")
    result = _run(dataclasses.replace(scenario, deployment=plain), tmp_path)
    assert any(problem.startswith("doubled") for problem in result.problems), result.problems


# What makes the processes of a server take what they inherit for their own.
UNREFUSED = """
import sys
if "chaos.run.service" in sys.orig_argv:
    import _rifl_ground.forks
    _rifl_ground.forks.in_children = lambda made, tell: None
"""


@pytest.mark.slow
@pytest.mark.parametrize("refused", [True, False], ids=["as it is", "without the rule"])
def test_forked_workers_refuse_and_their_server_pays_once(
    refused: bool, scenario: Scenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who serves by its parent's Deduplicator refuses every call, or the run fails (DESIGN §5)."""
    if not refused:
        (tmp_path / "sitecustomize.py").write_text(UNREFUSED)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    forking = dataclasses.replace(
        scenario,
        deployment=dataclasses.replace(scenario.deployment, method="plain", forked_workers=1),
        expect=dataclasses.replace(scenario.expect, forked=10),
    )
    problems = _run(forking, tmp_path).problems
    assert (problems == []) is refused, problems
    if not refused:
        assert any(each.startswith("forked workers answered") for each in problems), problems


def test_the_command_refuses_what_it_does_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    """No name, and a name that is none, are told; nothing is run."""
    for arguments in ([], ["no-such-scenario"], ["no/such/file.toml"]):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 2
    assert main(["--list"]) == 0
    assert "server-killed" in capsys.readouterr().out
