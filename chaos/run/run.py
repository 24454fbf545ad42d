"""One run of one scenario: started, struck, waited for, judged."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from chaos.check import History
from chaos.run.clients import Clients
from chaos.run.deployment import Deployment
from chaos.run.fault_threads import FaultThreads, Struck
from chaos.run.faults import CLOCK_KINDS
from chaos.run.group import Group
from chaos.run.judge import judge, told
from chaos.run.log_clients import LogClients
from chaos.run.preloaded import preload
from chaos.run.scenario import Scenario
from chaos.run.servers import Servers
from chaos.run.shared_log import SharedLog
from chaos.run.slow_disk import slow_disks
from chaos.run.spark_job import SparkJob
from chaos.run.strikes import draw
from chaos.run.toxiproxy import Toxiproxy
from chaos.run.wall_clock import wall_clocks

__all__ = ["Result", "run"]

_FIRST_ANSWERS, _FIRST_S = 3, 60.0
# After the last fault every client has to get so many answers more.
_LAST_ANSWERS, _LAST_S = 8, 60.0
_SILENT_S, _SILENCE_S = 3.0, 30.0
_LOOK_EVERY_S = 0.02
_TOPOLOGIES: dict[str, Any] = {
    "server": Servers,
    "spark": Servers,
    "group": Group,
    "log": SharedLog,
}

# Told how far a run is: seconds of its scenario, and answers so far.
Progress = Callable[[float, int], None]


@dataclass(kw_only=True)
class Result:
    """What came of a run; times in seconds from the first call on."""

    scenario: Scenario
    seed: int
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)
    faults: list[Struck] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    # As ``chaos.check`` reads it, times from the first call on.
    history: History = field(default_factory=History)
    # What the processes said last, if something is wrong.
    complaints: str = ""

    @property
    def good(self) -> bool:
        """Whether everything held."""
        return not self.problems


def run(scenario: Scenario, seed: int, directory: Path, progress: Progress) -> Result:
    """Run it in an empty directory, which is removed; never raises for what it finds."""
    result = Result(scenario=scenario, seed=seed)
    began = time.monotonic()
    directory.mkdir(parents=True)
    try:
        with Toxiproxy(directory, seed=seed) as proxy:
            deployment: Deployment = _TOPOLOGIES[scenario.topology](scenario, directory, proxy)
            with _preloaded(scenario, deployment), deployment:
                _Run(result, deployment, directory, progress).go()
    except Exception as error:  # noqa: BLE001 - whatever stopped the run, it did not hold
        result.problems.append(f"{type(error).__name__}: {error}")
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    result.seconds = time.monotonic() - began
    return result


@contextlib.contextmanager
def _preloaded(scenario: Scenario, deployment: Deployment) -> Iterator[None]:
    """Let everybody have a wall clock, or a disk, of their own, if one of them will be wrong."""
    kinds = {fault.kind for fault in scenario.faults}
    if kinds.isdisjoint((*CLOCK_KINDS, "slow")):
        yield
        return
    counts = (("client", scenario.load.clients), ("publisher", scenario.load.clients))
    names = [*deployment.members]
    for stem, count in (*counts, ("follower", scenario.deployment.followers)):
        names += [f"{stem}-{number}" for number in range(1, count + 1)]
    # Where PostgreSQL's user may look, too.
    with tempfile.TemporaryDirectory(prefix="rifl-chaos-preloaded-") as directory:
        Path(directory).chmod(0o711)
        if not kinds.isdisjoint(CLOCK_KINDS):
            deployment.clocks.update(wall_clocks(names, Path(directory)))
        if "slow" in kinds:
            deployment.slow_disks.update(slow_disks(names, Path(directory)))
        _preload_members(deployment)
        yield


def _preload_members(deployment: Deployment) -> None:
    for own in (deployment.clocks, deployment.slow_disks):
        for name, each in own.items():
            if name in deployment.members:
                preload(deployment.members[name].environment, each.environment)


class _Run:
    """The run of a deployment that has started."""

    def __init__(
        self, result: Result, deployment: Deployment, directory: Path, progress: Progress
    ) -> None:
        self._result = result
        self._scenario = result.scenario
        self._deployment = deployment
        self._progress = progress
        self._clients: Clients | SparkJob
        if isinstance(deployment, Servers) and result.scenario.topology == "spark":
            (target,) = deployment.targets
            self._clients = SparkJob(result.seed, directory, target, deployment.ledger)
        elif isinstance(deployment, SharedLog):
            self._clients = LogClients.around(result.scenario, result.seed, directory, deployment)
        else:
            self._clients = Clients.of(
                result.scenario,
                result.seed,
                directory,
                deployment.targets,
                follow_leaders=deployment.follow_leaders,
                forked=deployment.forked if isinstance(deployment, Servers) else (),
            )
        deployment.members.update(self._clients.members)
        _preload_members(deployment)
        self._began = 0.0

    def go(self) -> None:
        result, clients = self._result, self._clients
        with contextlib.ExitStack() as stack:
            stack.callback(clients.kill)
            try:
                clients.start()
                clients.await_more(_FIRST_ANSWERS, _FIRST_S, lambda: None)
                self._began = time.monotonic()
                self._strike_all()
                self._watch_the_end()
                result.problems += clients.finish()
                result.problems += self._fallen()
                history = clients.read()
                self._deployment.finish(history)
            except BaseException:
                result.complaints = self._deployment.complaints()
                result.history = clients.read()
                self._count()
                raise
        result.history = history
        killed = any(each.target.startswith(("client", "publisher")) for each in result.faults)
        result.problems += judge(history, self._scenario.expect, killed_clients=killed)
        if result.problems:
            result.complaints = self._deployment.complaints()
        self._count()

    def _count(self) -> None:
        """Count, and let times begin with the first call's."""
        result = self._result
        result.counts = dict(told(result.history))
        stamps = [event["at"] for event in result.history.events if event.get("at")]
        first = min(stamps, default=0.0)
        for event in result.history.events:
            if event.get("at"):
                event["at"] = round(event["at"] - first, 6)
        result.faults = [
            replace(each, began=each.began - first, ended=each.ended - first)
            for each in result.faults
        ]

    def _strike_all(self) -> None:
        """Strike and mend by the clock, until the scenario's seconds are over."""
        striking = FaultThreads(self._deployment, draw(self._scenario, self._result.seed))
        striking.start()
        try:
            while not striking.over or self._now() < self._scenario.seconds:
                self._look()
                time.sleep(_LOOK_EVERY_S)
        finally:
            striking.give_up()
            self._result.faults = striking.struck
            self._result.problems += striking.problems

    def _watch_the_end(self) -> None:
        """Wait for more answers, or, if the scenario says so, until no call is answered."""
        if not self._scenario.expect.stands_still:
            self._clients.await_more(_LAST_ANSWERS, _LAST_S, self._look)
        elif not self._clients.await_silence(_SILENT_S, _SILENCE_S, self._look):
            self._result.problems.append("callers are still answered, and should not be")

    def _fallen(self) -> list[str]:
        """Name the members that ended by themselves."""
        members = self._deployment.members.items()
        clients = self._clients.members
        return [
            f"{name} ended by itself"
            for name, member in members
            if name not in clients and not member.runs
        ]

    def _now(self) -> float:
        return time.monotonic() - self._began

    def _look(self) -> None:
        self._clients.look()
        self._progress(min(self._now(), self._scenario.seconds), self._clients.answered)
