"""The simulator: its runs keep every promise, and repeat from their seed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pytest

from chaos.sim.__main__ import main
from chaos.sim.consumer.schedule import ONE_IN, STORES
from chaos.sim.fault_coverage import FAULTS, KINDS, REQUIRED
from chaos.sim.faults import ALL, Fault, Point
from chaos.sim.group import GroupDeployment
from chaos.sim.group_coincidences import FAILING
from chaos.sim.in_turn import has_turn
from chaos.sim.player.schedule import ONE_IN as ONE_IN_OF_PLAYERS
from chaos.sim.run import simulate
from chaos.sim.schedule import draw
from curp._replica.errors import Diverged

ROOT = Path(__file__).parents[2]
# Of each deployment here, and of a player's; `make chaos` runs thousands.
RUNS, RUNS_OF_PLAYERS = 2, 1


def test_each_module_says_whether_it_is_an_oracle_a_model_or_a_driver() -> None:
    """What repeats the product would have its mistakes, too: it is driven instead."""
    kinds = ("Oracle: ", "Model of the world: ", "Driver of the product's ", "Machinery: ")
    for file in sorted((ROOT / "chaos" / "sim").rglob("*.py")):
        if file.stem not in ("__init__", "__main__"):
            first = file.read_text().removeprefix('"""')
            assert first.startswith(kinds), file


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", KINDS)
def test_no_schedule_breaks_a_promise(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Calls happen once, are labelled honestly and end, whatever breaks (DESIGN §1 to §5)."""
    runs = RUNS_OF_PLAYERS if kind == "player" else RUNS
    status = main(["--runs", str(runs), "--deployment", kind, "--jobs", "1"])
    assert status == 0, capsys.readouterr().out


@pytest.mark.parametrize("kind", KINDS)
def test_a_schedule_is_large_enough(kind: str) -> None:
    """Every schedule has at least 200 calls and 5 faults, of kinds that fit it."""
    for seed in range(100):
        schedule = draw(kind, seed)
        assert len(schedule.calls) >= 200
        assert len(schedule.faults) >= 5
        assert {fault.fault for fault in schedule.faults} <= set(FAULTS[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_every_fault_has_a_point_where_it_has_to_strike(kind: str) -> None:
    """Coverage is required of each kind of fault that a deployment can meet."""
    required = {fault for fault, _ in REQUIRED[kind]}
    assert required == {fault.value for fault in FAULTS[kind]}
    assert {fault.value for fault in Fault} >= required


def test_consumers_have_all_faults_at_all_points_in_turn() -> None:
    """Of those that `make chaos` runs, eleven of each store aim at all that is required."""
    drawn: dict[str, set[tuple[str, str]]] = {store: set() for store in STORES}
    for seed in range(0, ONE_IN * len(STORES) * 11, ONE_IN):
        aimed = [each for each in draw("consumer", seed).faults if each.target == ALL]
        cells = {(each.fault.value, each.aim.value) for each in aimed if each.aim is not None}
        drawn[STORES[seed % len(STORES)]] |= cells
    # These strike at nothing in particular, or when nothing comes any more; any
    # request is copied.
    apart = {"idle", Point.TICKED.value}
    required = {cell for cell in REQUIRED["consumer"] if not apart & set(cell)}
    required -= {cell for cell in required if cell[0] == Fault.DUPLICATE.value}
    state = {cell for cell in required if cell[1] == Point.STATE.value}
    for store in ("redis", "sqlite", "postgres"):
        assert drawn[store] == required - state
    assert state < drawn["log"] < required


def test_players_have_all_faults_that_can_be_aimed_in_turn() -> None:
    """Nine that `make chaos` runs aim at all that is required, but for states (P1 to P6)."""
    drawn = set()
    for seed in range(0, ONE_IN_OF_PLAYERS * 10, ONE_IN_OF_PLAYERS):
        aimed = [each for each in draw("player", seed).faults if each.target == ALL]
        assert not (aimed and draw("player", seed).setting.apart)
        drawn |= {(each.fault.value, each.aim.value) for each in aimed if each.aim is not None}
    required = {cell for cell in REQUIRED["player"] if cell[0] in {fault for fault, _ in drawn}}
    beside = ("idle", "target-in-", "target-says-where-it-is", "delivery-answer")
    assert drawn == {cell for cell in required if not cell[1].startswith(beside)}


@pytest.mark.parametrize("kind", ["memory", "sqlite", "replicas", "spark", "query"])
def test_what_is_aimed_in_turn_is_all_that_ends_or_stops_a_process(kind: str) -> None:
    """Two hundred seeds of those that `make chaos` runs aim at all of it twice (DESIGN §2)."""
    drawn: Counter[tuple[str, str]] = Counter()
    for seed in range(kind == "sqlite", 400, 2):
        for each in draw(kind, seed).faults:
            if each.target == ALL and each.aim is not None:
                drawn[each.fault.value, each.aim.value] += 1
    ends = {each.value for each in (Fault.CRASH, Fault.CRASH_DISK, Fault.STOP, Fault.DRAIN)}
    # These strike at nothing in particular, or have schedules of their own.
    beside = {each.value for each in (Point.IDLE, Point.FIRST, Point.EXPIRED)}
    wanted = {(fault, at) for fault, at in REQUIRED[kind] if fault in ends and at not in beside}
    assert wanted
    assert {cell: drawn[cell] for cell in wanted if drawn[cell] < 2} == {}


def test_groups_have_all_that_fails_an_operation_in_turn() -> None:
    """Of those seeds of a group that have a turn, so many ask for it and fail it there (§7)."""
    drawn: Counter[tuple[str, str]] = Counter()
    for seed in range(400):
        if has_turn(seed):
            for each in draw("curp", seed).faults:
                if each.aim is not None:
                    drawn[each.fault.value, each.aim.value] += 1
    for failing in FAILING.values():
        for fault, point in failing:
            assert drawn[fault.value, point.value] >= 4, (fault, point)


def _traces(text: str) -> dict[str, str]:
    """Each kind's, of those that stand there one after the other."""
    parts = re.split(r"^(?=(\w+), seed \d+: )", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.fixture(scope="module")
def elsewhere() -> dict[str, str]:
    """Traces of another process, in which other kinds ran before each."""
    kinds = [each for kind in reversed(KINDS) for each in ("--deployment", kind)]
    finished = subprocess.run(
        [sys.executable, "-m", "chaos.sim", *kinds, "--seed", "3", "--trace"],
        # No process has this one but by chance.
        env={**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return _traces(finished.stdout)


@pytest.mark.parametrize("kind", KINDS)
def test_a_trace_is_the_same_in_every_process(
    kind: str, elsewhere: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """One seed, one run: byte for byte, whatever the order of hashes, and what ran before."""
    assert main(["--deployment", kind, "--seed", "3", "--trace"]) == 0
    here = capsys.readouterr().out
    assert here == elsewhere[kind]
    assert here.count("\n") > 500


def test_calls_and_faults_can_be_left_out() -> None:
    """A part of a schedule is a schedule: what is left keeps its numbers."""
    schedule = draw("memory", 5).only((3, 7), ())
    assert [call.number for call in schedule.calls] == [3, 7]
    result = simulate(schedule)
    assert result.problems == []
    assert sum(result.outcomes.values()) == 2


@pytest.mark.slow
def test_a_log_that_cannot_be_replayed_is_a_finding() -> None:
    """What breaks the reading of a group's log in the end is a problem of that run (DESIGN §7)."""
    schedule = draw("curp", 1).only((1, 2), ())
    with patch.object(GroupDeployment, "finish", side_effect=Diverged("another answer")):
        problems = simulate(schedule).problems
    assert "raised: Diverged: another answer" in problems


@pytest.mark.slow
@pytest.mark.parametrize("kill", [os.kill, os.killpg], ids=["terminated", "Ctrl-C"])
def test_an_interrupted_run_tells_what_it_did(kill: Callable[[int, int], None]) -> None:
    """Ended early, the hours of ``make chaos-long`` lose nothing of what was run before."""
    arguments = ["-m", "chaos.sim", "--runs", "100000", "--jobs", "2", "--every", "0"]
    with subprocess.Popen(
        [sys.executable, *arguments, "--deployment", "memory"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "1 of 100000 schedules\n"
        kill(process.pid, signal.SIGTERM if kill is os.kill else signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, (output, errors)
    assert "memory): " in output
    assert output.endswith("interrupted; no promise was broken until then\n")


def test_a_process_that_goes_on_early_ends_a_run() -> None:
    """What waits for a request that a suspended process has yet to take does not wait for ever."""
    assert simulate(draw("replicas", 1001183)).problems == []


def test_a_commit_of_state_in_the_log_ends_what_was_called_otherwise() -> None:
    """Where messages ahead of it are done, one that calls otherwise fails anew (T5, T6)."""
    calls = (187, 166, 133, 185, 77, 25, 94, 60, 54, 86, 90, 130, 147, 64, 35)
    schedule = draw("consumer", 691).only(calls, (0, 2, 3, 5, 10))
    assert simulate(schedule).problems == []


def test_a_late_copy_of_a_call_carries_the_client_id_it_was_sent_with() -> None:
    """A service that has forgotten that id refuses it: it opens no other session (DESIGN §4)."""
    calls = (132, 113, 29, 13, 107, 115, 51, 144, 66, 38, 33, 178, 47, 59, 148, 135, 192, 190, 131)
    calls = (*calls, 196, 62, 87, 71, 79, 99)
    schedule = draw("consumer", 296).only(calls, (5, 6, 12, 15))
    assert simulate(schedule).problems == []


def test_a_hold_that_was_moved_before_a_restore_may_come_behind_it() -> None:
    """It is held against the store of that time; the consumer is told by it (T1, T7)."""
    schedule = draw("consumer", 892).only((45, 165), (0, 1, 3, 5, 6, 9, 10, 15))
    result = simulate(schedule)
    assert result.problems == []
    assert result.outcomes["ended StoreWentBack"]


@pytest.mark.parametrize(
    ("kind", "seed"),
    [
        # A server stopped by a call that came when all else had ended.
        ("replicas", 1917),
        # A leader that died of one.
        ("curp", 13),
    ],
)
def test_no_fault_strikes_when_all_have_ended(kind: str, seed: int) -> None:
    """A fault aimed at a call that never came is over with the others: then every call ends."""
    result = simulate(draw(kind, seed), tracing=True)
    assert result.problems == []
    ended = next(at for at, line in enumerate(result.lines) if "all faults end" in line)
    struck = [
        line
        for line in result.lines[ended:]
        if "stopped for" in line or "dies with" in line or "drains" in line
    ]
    assert struck == []
