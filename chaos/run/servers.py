"""Servers with one ledger, each behind a path of Toxiproxy's."""

from __future__ import annotations

import contextlib
import sqlite3
import sys
from pathlib import Path
from typing import Self

from chaos.check import History
from chaos.ports import free_ports
from chaos.run.disk import SmallDisk, disks_to_fill
from chaos.run.postgresql import PostgresqlProcess
from chaos.run.process import Member, Process
from chaos.run.redis import RedisProcess
from chaos.run.scenario import Scenario
from chaos.run.slow_disk import SlowDisk
from chaos.run.toxiproxy import Link, Toxiproxy
from chaos.run.wall_clock import WallClock

__all__ = ["Servers"]

# A replica that was not heard of for two seconds is dead, and its calls are free.
_OPTIONS = "beat_s=0.2&dead_after_s=2&timeout_s=2"
_URLS = {
    "redis": f"redis://{{}}/0?{_OPTIONS}",
    "postgresql": f"postgresql://rifl@{{}}/postgres?{_OPTIONS}",
}


class Servers:
    """Servers with one ledger, over a store of their own or a shared one."""

    follow_leaders = False

    def __init__(self, scenario: Scenario, directory: Path, proxy: Toxiproxy) -> None:
        """Build it; nothing runs yet."""
        deployed = scenario.deployment
        self.members: dict[str, Member] = {}
        self.links: dict[str, Link] = {}
        self.disks: dict[str, SmallDisk] = {}
        self.clocks: dict[str, WallClock] = {}
        self.slow_disks: dict[str, SlowDisk] = {}
        self._stack = contextlib.ExitStack()
        self._processes: list[Process] = []
        home = directory / "server-1"
        home.mkdir()
        for target in disks_to_fill(scenario):
            self.disks[target] = SmallDisk(directory / target)
        self.ledger = home / "ledger.db"
        shared: RedisProcess | PostgresqlProcess | None = None
        if deployed.store == "redis":
            shared = RedisProcess(directory)
            self._add("redis", shared)
        elif deployed.store == "postgresql":
            shared = PostgresqlProcess(directory)
            self._stack.callback(shared.remove)
            self._add("postgresql", shared)
        workers = deployed.servers * deployed.forked_workers
        ports = free_ports(deployed.servers + workers)
        self.forked = [f"127.0.0.1:{port}" for port in ports[deployed.servers :]]
        for number, port in enumerate(ports[: deployed.servers], 1):
            name = f"server-{number}"
            if shared is not None:
                link = self.links[f"store-{number}"] = proxy.link(f"store-{number}", shared.port)
                store = _URLS[deployed.store].format(link.address)
            elif deployed.method == "atomic":
                store = f"sqlite:///{self.ledger}"
            else:
                store = f"sqlite:///{home / 'records.db'}"
            command = [sys.executable, "-m", "chaos.run.service"]
            command += ["--listen", f"127.0.0.1:{port}", "--ledger", str(self.ledger)]
            command += ["--store", store, "--method", deployed.method]
            command += ["--term", str(deployed.term_s)]
            command += ["--receipt-bytes", str(deployed.receipt_bytes)]
            for worker in self.forked[number - 1 :: deployed.servers]:
                command += ["--worker", worker]
            self._add(name, Process(name, command, directory))
            self.links[name] = proxy.link(name, port)
        self.targets = [
            self.links[f"server-{number}"].address for number in range(1, deployed.servers + 1)
        ]

    def _add(self, name: str, process: Process) -> None:
        self.members[name] = process
        self._processes.append(process)

    def __enter__(self) -> Self:
        with self._stack as stack:
            for disk in self.disks.values():
                stack.enter_context(disk)
            for process in self._processes:
                stack.callback(process.kill)
                process.start()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def find(self, target: str) -> str:
        """Every target is who it is."""
        return target

    def finish(self, history: History) -> None:
        """Take the effects from the ledger, each at its time."""
        for process in self._processes:
            process.kill()
        _read_ledger(self.ledger, history)

    def complaints(self) -> str:
        """The last that each process said."""
        return "\n".join(f"{each.name}: {each.complaints()}" for each in self._processes)


def _read_ledger(path: Path, history: History) -> None:
    """Put every effect into the history, at its time, and what the accounts hold.

    The history's events have to be in order of time; they still are afterwards.
    """
    with contextlib.closing(sqlite3.connect(path)) as connection:
        rows = connection.execute(
            "SELECT at, call, account, version, total FROM effect ORDER BY entry"
        ).fetchall()
    finals: dict[str, tuple[int, int]] = {}
    for at, call, account, version, total in rows:
        history.effect(at, call, account, version)
        finals[account] = version, total
    # An effect's time is taken before its answer leaves: stable, it comes before the end.
    history.events.sort(key=lambda event: float(event["at"]))
    for account, (version, total) in finals.items():
        history.final(account, version, total)
