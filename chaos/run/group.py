"""A replicated group, each replica and witness behind a path of Toxiproxy's."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Self

from chaos.check import History
from chaos.group_processes import GroupProcesses
from chaos.run.disk import SmallDisk, disks_to_fill
from chaos.run.etcd_log import EtcdLog
from chaos.run.postgresql import PostgresqlProcess
from chaos.run.process import DidNotStart, Member
from chaos.run.redis import RedisProcess
from chaos.run.scenario import Scenario
from chaos.run.slow_disk import SlowDisk
from chaos.run.toxiproxy import PathTo, Toxiproxy
from chaos.run.wall_clock import WallClock

__all__ = ["Group"]

_ROOT = Path(__file__).parents[2]
_AUDIT_S = 90.0
_LEADER_S = 30.0
# By store, of a path that leads to it.
_URLS = {
    "redis": "redis://{}/0?group=bank&timeout_s=2",
    "postgresql": "postgresql://rifl@{}/postgres?group=bank&timeout_s=2",
}


class _Replica:
    """A replica or witness of a group, as a member."""

    def __init__(self, group: GroupProcesses, address: str) -> None:
        self._group = group
        self._address = address
        self.environment = group.environments.setdefault(address, {})

    @property
    def runs(self) -> bool:
        return self._group.runs(self._address)

    def start(self) -> None:
        self._group.start(self._address)

    def kill(self) -> None:
        self._group.kill(self._address)

    def stop(self) -> None:
        self._group.stop(self._address)

    def resume(self) -> None:
        self._group.resume(self._address)


class Group:
    """Replicas of the bank and their witnesses, over a log of any engine."""

    follow_leaders = True

    def __init__(self, scenario: Scenario, directory: Path, proxy: Toxiproxy) -> None:
        """Build it; nothing runs yet."""
        deployed = scenario.deployment
        self.disks: dict[str, SmallDisk] = {}
        self.clocks: dict[str, WallClock] = {}
        self.slow_disks: dict[str, SlowDisk] = {}
        self.members: dict[str, Member] = {}
        self.links: dict[str, PathTo] = {}
        self._accounts = scenario.load.accounts
        self._stands_still = scenario.expect.stands_still
        for target in disks_to_fill(scenario):
            self.disks[target] = SmallDisk(directory / target)
        self._removing = contextlib.ExitStack()
        self._server: RedisProcess | PostgresqlProcess | None = None
        if deployed.store == "redis":
            self._server = RedisProcess(directory)
        elif deployed.store == "postgresql":
            self._server = PostgresqlProcess(directory)
            self._removing.callback(self._server.remove)
        self._etcd: EtcdLog | None = None
        if deployed.store == "etcd":
            self._etcd = EtcdLog(directory / "etcd", proxy, deployed.servers)
            logs = self._etcd.urls
            self.members.update(self._etcd.members)
            self.links.update(self._etcd.links)
        elif self._server is None:
            home = directory / "log"
            home.mkdir()
            logs = [f"sqlite:///{home / 'entries.db'}?group=bank"] * deployed.servers
        else:
            logs = []
            for number in range(1, deployed.servers + 1):
                link = proxy.link(f"log-{number}", self._server.port)
                logs.append(_URLS[deployed.store].format(link.address))
                self.links[f"log-{number}"] = link
            self.members[deployed.store] = self._server
        self._group = GroupProcesses(
            directory,
            "examples.replicated_bank",
            logs,
            replicas=deployed.servers,
            witnesses=deployed.witnesses,
        )
        # By address: what the scenario calls them, and where they are found.
        self._names: dict[str, str] = {}
        found: dict[str, str] = {}
        for stem, addresses in (
            ("replica", self._group.replicas),
            ("witness", self._group.witnesses),
        ):
            for number, address in enumerate(addresses, 1):
                name = self._names[address] = f"{stem}-{number}"
                link = proxy.link(name, int(address.rpartition(":")[2]))
                self.links[name], found[address] = link, link.address
                self.members[name] = _Replica(self._group, address)
        self._group.listed = [found[each] for each in self._group.witnesses]
        self._group.reached = {each: found[each] for each in self._group.replicas}
        self._group.clocks_ahead_s = {
            each: number * deployed.clocks_apart_s
            for number, each in enumerate(self._group.replicas)
        }
        self.targets = list(self._group.reached.values())

    def __enter__(self) -> Self:
        with self._removing as stack:
            for disk in self.disks.values():
                stack.enter_context(disk)
            if self._server is not None:
                stack.callback(self._server.kill)
                self._server.start()
            if self._etcd is not None:
                stack.enter_context(self._etcd)
            stack.enter_context(self._group)
            self._group.leader()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def find(self, target: str) -> str:
        """Return the member's own name; raises ``NoLeader``."""
        if target == "etcd-leader" and self._etcd is not None:
            return self._etcd.leader()
        if target not in ("leader", "standby"):
            return target
        leader = self._group.leader(timeout_s=_LEADER_S)
        if target == "leader":
            return self._names[leader]
        return next(self._names[each] for each in self._group.replicas if each != leader)

    def finish(self, history: History) -> None:
        """Ask the group for all statements: their lines are the effects.

        A group that stands still answers no call: then there is nothing to put in.
        """
        if self._stands_still:
            return
        accounts = [f"account-{each}" for each in range(self._accounts)]
        accounts += sorted(
            {event["account"] for event in history.events if event["event"] == "start"}
            - set(accounts)
        )
        given = {"audit": True, "targets": self.targets, "accounts": accounts}
        command = [sys.executable, "-m", "chaos.run.caller", json.dumps(given)]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_AUDIT_S,
            check=False,
            cwd=_ROOT,
        )
        if done.returncode:
            raise DidNotStart(f"the statements could not be read: {done.stderr[-2000:]}")
        effects: dict[int, list[tuple[str, int]]] = {}
        finals: list[tuple[str, int, int]] = []
        for line in done.stdout.splitlines():
            account, total, calls = json.loads(line)
            for version, call in enumerate(calls, 1):
                effects.setdefault(call, []).append((account, version))
            finals.append((account, len(calls), total))
        history.place_effects(effects)
        for final in finals:
            history.final(*final)

    def complaints(self) -> str:
        """The last that each process said."""
        return self._group.complaints()
