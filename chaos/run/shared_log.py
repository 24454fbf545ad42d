"""A shared log over any engine, or served, and who is around it; each with its own path."""

from __future__ import annotations

import contextlib
import sys
from datetime import timedelta
from pathlib import Path
from typing import Self

import sharedlog
from chaos.check import History
from chaos.etcd_cluster import EtcdCluster
from chaos.ports import free_ports
from chaos.run.consumers import Consumers
from chaos.run.disk import SmallDisk, disks_to_fill
from chaos.run.etcd_member import EtcdMember
from chaos.run.players import Players
from chaos.run.postgresql import PostgresqlProcess
from chaos.run.process import Member, Process
from chaos.run.redis import RedisProcess
from chaos.run.scenario import Scenario
from chaos.run.slow_disk import SlowDisk
from chaos.run.streams import STREAMS, SUBSTREAMS
from chaos.run.toxiproxy import Link, Toxiproxy
from chaos.run.wall_clock import WallClock

__all__ = ["SharedLog"]

_RETENTION = timedelta(seconds=2)
# How long a producer with something pending may be silent, and how often is trimmed.
_SILENT_S, _TRIM_S = 2, 1
# Of a fresh installation, with room for a run.
_POSTGRESQL_DISK = "160m"
# Of a path that leads to the store, or to the log's server.
_URLS = {
    "redis": "redis://{}/0?log=chaos&timeout_s=2",
    "postgresql": "postgresql://rifl@{}/postgres?log=chaos&timeout_s=2",
    "served": "grpc://{}?timeout_s=2",
}


class SharedLog:
    """The store of a log, its server if it is served, its keepers, players and consumers.

    ``urls``: where each of its processes finds it, by the process's name; ``url``: where it is
    found by no path that is struck.
    """

    follow_leaders = False

    def __init__(self, scenario: Scenario, directory: Path, proxy: Toxiproxy) -> None:
        """Build it; nothing runs yet."""
        deployed = scenario.deployment
        self.members: dict[str, Member] = {}
        self.links: dict[str, Link] = {}
        self.disks: dict[str, SmallDisk] = {}
        self.clocks: dict[str, WallClock] = {}
        self.slow_disks: dict[str, SlowDisk] = {}
        self.targets: list[str] = []
        self.urls: dict[str, str] = {}
        self._stack = contextlib.ExitStack()
        self._server: RedisProcess | PostgresqlProcess | None = None
        self._etcd: EtcdCluster | None = None
        # The log's server, its keepers, targets and players: started once there is a log.
        self._others: list[Process] = []
        self.url = self._store_url = self._add_store(deployed.store, directory)
        for target in disks_to_fill(scenario):
            if isinstance(self._server, PostgresqlProcess):
                self.disks[target] = SmallDisk(self._server.home, _POSTGRESQL_DISK)
            else:
                self.disks[target] = SmallDisk(directory / target)
        kind = deployed.store
        port = None if self._server is None else self._server.port
        if deployed.served:
            kind, (port,) = "served", free_ports(1)
            self.url = _URLS[kind].format(f"127.0.0.1:{port}")
            command = [sys.executable, "-m", "sharedlog", "serve", "--log", self._store_url]
            command += ["--listen", f"127.0.0.1:{port}", "--trim-every", f"{_TRIM_S}s"]
            self._others.append(Process("server-1", command, directory))
        for stem, count in (
            ("publisher", scenario.load.clients),
            ("follower", deployed.followers),
            ("keeper", deployed.keepers),
            ("player", deployed.players),
            ("consumer", deployed.consumers),
        ):
            for number in range(1, count + 1):
                name = f"{stem}-{number}"
                self.urls[name] = self.url
                if port is not None:
                    self.links[name] = proxy.link(name, port)
                    self.urls[name] = _URLS[kind].format(self.links[name].address)
        for number in range(1, deployed.keepers + 1):
            name = f"keeper-{number}"
            command = [sys.executable, "-m", "chaos.run.keeper", self.urls[name]]
            self._others.append(Process(name, [*command, str(_SILENT_S), str(_TRIM_S)], directory))
        self.players = Players(deployed, directory, proxy, self.urls)
        self.consumers = Consumers(deployed, directory, proxy, self.urls)
        self._others += [*self.players.processes, *self.consumers.processes]
        self.links.update(self.players.links | self.consumers.links)
        self.members.update({each.name: each for each in self._others})

    def _add_store(self, store: str, directory: Path) -> str:
        """Build the store; the log's URL."""
        if store == "redis":
            self._server = RedisProcess(directory)
        elif store == "postgresql":
            self._server = PostgresqlProcess(directory)
            self._stack.callback(self._server.remove)
        elif store == "etcd":
            self._etcd = EtcdCluster(directory / "etcd")
            for number, node in enumerate(self._etcd.nodes, 1):
                self.members[f"etcd-{number}"] = EtcdMember(self._etcd, node)
            return self._etcd.url(log="chaos")
        else:
            home = directory / "log"
            home.mkdir(exist_ok=True)
            return f"sqlite:///{home / 'shared.log'}"
        self.members[store] = self._server
        return _URLS[store].format(f"127.0.0.1:{self._server.port}")

    def __enter__(self) -> Self:
        with self._stack as stack:
            for disk in self.disks.values():
                stack.enter_context(disk)
            if self._server is not None:
                stack.callback(self._server.kill)
                self._server.start()
            if self._etcd is not None:
                stack.enter_context(self._etcd)
            with sharedlog.create(self._store_url) as log:
                for stream in STREAMS:
                    log.stream(stream, SUBSTREAMS, _RETENTION)
            self.players.prepare()
            self.consumers.prepare(self._store_url)
            for process in self._others:
                stack.callback(process.kill)
                process.start()
            self.players.await_holds(self._store_url)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def find(self, target: str) -> str:
        """Return the member's own name; raises where no node of etcd leads."""
        if target == "etcd-leader" and self._etcd is not None:
            return f"etcd-{self._etcd.nodes.index(self._etcd.leader()) + 1}"
        return target

    def finish(self, history: History) -> None:
        """What followers read, and targets, and an auditor, is in the history already."""

    def complaints(self) -> str:
        """The last that each process said."""
        found = [*self._others, *([] if self._server is None else [self._server])]
        return "\n".join(f"{each.name}: {each.complaints()}" for each in found)
