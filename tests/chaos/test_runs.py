"""Several scenarios at once: which of them, and what becomes of the others when one fails."""

from __future__ import annotations

import dataclasses
import multiprocessing
from pathlib import Path

import pytest

from chaos.run.run import Result
from chaos.run.runs import Wanted, run_all
from chaos.run.scenario import FaultSpec, Scenario
from chaos.run.scenario_files import read_all

# Each of these tests starts processes with a Toxiproxy each.
pytestmark = pytest.mark.slow


class _Seen:
    """What ``run_all`` tells, and how many runs there were at once."""

    def __init__(self, wanted: list[Wanted]) -> None:
        self._wanted = wanted
        self.running: list[str] = []
        self.together: list[set[str]] = []
        self.ended_with: dict[int, Result] = {}

    def began(self, number: int) -> None:
        self.running.append(self._wanted[number][0].name)
        self.together.append(set(self.running))

    def went_on(self, number: int, seconds: float, answers: int) -> None:
        raise AssertionError("no deployment started")

    def ended(self, number: int, result: Result) -> None:
        self.running.remove(result.scenario.name)
        self.ended_with[number] = result


def _failing(name: str, seconds: float, *kinds: str) -> Scenario:
    """Return a scenario that fails at once: there is no such topology."""
    faults = tuple(FaultSpec(kind=kind, targets=("server-1",), at=(0.0, 0.0)) for kind in kinds)
    known = read_all()["server-killed"]
    return dataclasses.replace(known, name=name, topology="none", seconds=seconds, faults=faults)


def test_scenarios_share_the_machine_unless_they_are_about_time(tmp_path: Path) -> None:
    """Two run at once, the longest first; one of clocks runs alone; each failure has its name."""
    wanted = [
        (_failing("clocks", 9.0, "kill", "clock"), 1),
        (_failing("short", 1.0), 1),
        (_failing("long", 3.0, "kill"), 2),
        (_failing("middle", 2.0), 1),
    ]
    seen = _Seen(wanted)
    results = run_all(wanted, 2, tmp_path, began=seen.began, went_on=seen.went_on, ended=seen.ended)
    assert [(each.scenario, each.seed) for each in results] == wanted
    assert [each.problems for each in results] == [["KeyError: 'none'"]] * 4
    assert seen.ended_with == dict(enumerate(results))
    assert seen.together[:2] == [{"long"}, {"long", "middle"}]
    assert "short" in seen.together[2]
    assert len(seen.together[2]) == 2
    assert seen.together[3] == {"clocks"}


def test_a_run_whose_process_is_killed_has_failed(tmp_path: Path) -> None:
    """The result says so, and the other run goes on."""
    wanted = [(_failing("killed", 2.0), 1), (_failing("other", 1.0), 1)]
    seen = _Seen(wanted)

    def began(number: int) -> None:
        seen.began(number)
        if number == 0:
            (process,) = multiprocessing.active_children()
            process.kill()

    killed, other = run_all(
        wanted, 1, tmp_path, began=began, went_on=seen.went_on, ended=seen.ended
    )
    assert killed.problems == ["the process of the run ended with -9"]
    assert other.problems == ["KeyError: 'none'"]


def test_an_interruption_ends_all_runs(tmp_path: Path) -> None:
    """No process of a run outlives the command that is interrupted."""
    wanted = [(_failing("first", 2.0), 1), (_failing("second", 1.0), 1)]
    seen = _Seen(wanted)

    def began(number: int) -> None:
        if number == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_all(wanted, 2, tmp_path, began=began, went_on=seen.went_on, ended=seen.ended)
    assert multiprocessing.active_children() == []


def test_scenarios_that_measure_time_are_alone() -> None:
    """Clocks, slow disks, a Spark job and silence that is waited for have the machine alone."""
    alone = {name for name, scenario in read_all().items() if scenario.alone}
    assert {"server-clocks-wrong", "server-disk-slow"} <= alone
    assert not alone & {"server-killed", "group-leaders-killed", "log-killed", "consumer-killed"}
    assert any(read_all()[name].topology == "spark" for name in alone)
    assert any(read_all()[name].expect.stands_still for name in alone)
