"""The triggers, and the world of a run: servers, their store, and what they noted."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from benchmarks.databases import Databases
from benchmarks.overload.notes import Found, read

__all__ = ["TRIGGERS", "Trigger", "World"]


class World:
    """The servers of one run, over one store. One thread but for ``begin`` and ``end``."""

    def __init__(
        self, folder: Path, databases: Databases, store: str, arguments: list[str], servers: int
    ) -> None:
        """Start them; each notes in a file of its own."""
        self.databases = databases
        self._folder = folder
        self.store, self.own = databases.urls(store)
        self._arguments = [*arguments, "--store", self.store, "--own", self.own]
        self._processes: list[subprocess.Popen[str]] = []
        self.ports: list[int] = []
        for _ in range(servers):
            self._start(0)

    @property
    def addresses(self) -> list[str]:
        """Where they are."""
        return [f"127.0.0.1:{port}" for port in self.ports]

    def send(self, number: int) -> None:
        """Send the first server a signal."""
        self._processes[0].send_signal(number)

    def restart(self) -> None:
        """Kill the first server, have it away for two seconds, and start it where it was."""
        first = self._processes[0]
        first.kill()
        first.wait()
        time.sleep(_AWAY_S)
        self._processes[0] = self._process(self.ports[0], self._notes(0))
        self._port_of(self._processes[0])

    def noted(self) -> Found:
        """What they noted up to now."""
        return read([self._notes(at) for at in range(len(self.ports))])

    def stop(self) -> None:
        """End them."""
        for each in self._processes:
            each.send_signal(signal.SIGCONT)
            each.terminate()
        for each in self._processes:
            try:
                each.wait(10)
            except subprocess.TimeoutExpired:
                each.kill()
                each.wait()

    def _start(self, port: int) -> None:
        process = self._process(port, self._notes(len(self.ports)))
        self._processes.append(process)
        self.ports.append(self._port_of(process))

    def _process(self, port: int, notes: Path) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "benchmarks.overload.server", *self._arguments),
                *("--port", str(port), "--notes", str(notes)),
            ],
            stdout=subprocess.PIPE,
            # Each refused call is a line there: a load of its own.
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def _port_of(self, process: subprocess.Popen[str]) -> int:
        if process.stdout is None:
            raise RuntimeError("it was started without a pipe")
        line = process.stdout.readline()
        if not line:
            raise RuntimeError("a server did not start")
        return int(line)

    def _notes(self, at: int) -> Path:
        return self._folder / f"notes-{at}"


_AWAY_S = 2.0
_STOPPED_S = 5.0
_DOUBLED_S = 10.0


class Trigger(NamedTuple):
    """One thing that goes wrong: from the load's third second, for so long.

    ``act`` returns when it is over; None: the load is higher meanwhile, ``factor`` times.
    ``stores``: by a method's kind, the store it is measured over; a kind that is missing is not.
    """

    name: str
    stores: dict[str, str]
    act: Callable[[World], None] | None = None
    seconds: float = _STOPPED_S
    factor: float = 1.0
    deadline_s: float = 1.0
    attempt_timeout_s: float | None = None
    hedge_after_s: float | None = None
    servers: int = 1
    channels: int = 1
    load: float = 0.8


def _suspended(world: World) -> None:
    world.send(signal.SIGSTOP)
    time.sleep(_STOPPED_S)
    world.send(signal.SIGCONT)


def _redis_suspended(world: World) -> None:
    world.databases.redis.suspend()
    time.sleep(_STOPPED_S)
    world.databases.redis.resume()


def _redis_killed(world: World) -> None:
    world.databases.redis.stop()
    time.sleep(_STOPPED_S)
    world.databases.redis.start()


def _locked(world: World) -> None:
    """Hold every table of the store's schema, and the handler's, against all others."""
    import psycopg

    with psycopg.connect(world.own) as connection:
        tables = connection.execute(
            "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables "
            "WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"
        ).fetchall()
        for (table,) in tables:
            connection.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
        time.sleep(_STOPPED_S)
        connection.rollback()


_OWN = {"plain": "memory", "idempotent": "memory", "atomic": "sqlite"}
_REDIS = {"plain": "redis", "idempotent": "redis"}

TRIGGERS = (
    Trigger("load doubled 10 s", _OWN, seconds=_DOUBLED_S, factor=2.0),
    Trigger("server stopped 5 s", _OWN, _suspended),
    Trigger("server killed, back after 2 s", {"atomic": "sqlite"}, World.restart),
    Trigger("Redis stopped 5 s", _REDIS, _redis_suspended),
    Trigger("Redis killed 5 s", _REDIS, _redis_killed),
    Trigger("tables locked 5 s", {"atomic": "postgres"}, _locked),
    Trigger(
        *("attempts of 0.2 s, load doubled 10 s", _OWN, None, _DOUBLED_S, 2.0),
        deadline_s=2.0,
        attempt_timeout_s=0.2,
    ),
    Trigger(
        *("hedges after 0.1 s, load doubled 10 s", _OWN, None, _DOUBLED_S, 2.0),
        hedge_after_s=0.1,
    ),
    Trigger("two targets", {"idempotent": "redis"}, servers=2, channels=20, load=0.65),
    Trigger("three targets", {"idempotent": "redis"}, servers=3, channels=20, load=0.65),
)
