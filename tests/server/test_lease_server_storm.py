"""Servers with stores of their own and their lease server, all of them disturbed (DESIGN §5)."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event

import pytest

import rifl
from tests.helpers.ports import free_port
from tests.helpers.processes import Process
from tests.helpers.storm import judge, storm
from tests.server.storm_server import METHOD
from tests.stores.postgres.servers import PostgresServer
from tests.stores.redis.servers import RedisServer

_LONG = [pytest.mark.long, pytest.mark.timeout(600)]
_START_S = 60.0


@pytest.fixture
def leases(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Return the URL of the lease server's store."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'leases.db'}"
        return
    redis = request.param == "redis"
    server = RedisServer(tmp_path) if redis else PostgresServer()
    yield server.url()
    server.stop()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "leases", "rounds"),
    [
        (1, "sqlite", 6),
        *(pytest.param(2, kind, 60, marks=_LONG) for kind in ("sqlite", "redis", "postgresql")),
    ],
    indirect=["leases"],
)
def test_a_storm_over_servers_and_their_lease_server(
    tmp_path: Path, seed: int, leases: str, rounds: int
) -> None:
    """Answered calls have one effect, those of unknown outcome one at most (DESIGN §1, §5)."""
    dice = random.Random(seed)
    address, ports = f"127.0.0.1:{free_port()}", (free_port(), free_port())
    paths = [tmp_path / "a.db", tmp_path / "b.db"]

    def lease_server() -> Process:
        log = tmp_path / "leases.log"
        arguments = ("--listen", address, "--store", leases, "--term-s", "30")
        process = Process("lease_server", *arguments, log=log)
        assert process.line(_START_S) == address
        return process

    def service(number: int) -> Process:
        arguments = (str(paths[number]), address, str(ports[number]))
        log = tmp_path / f"{number}.log"
        return Process("tests.server.storm_server", *arguments, log=log)

    starts: list[Callable[[], Process]] = [lease_server, lambda: service(0), lambda: service(1)]
    processes: list[Process] = []

    def disturb(hurry: Event) -> None:
        for round_ in range(rounds):
            at = dice.randrange(3)
            if round_ % 2:
                processes[at].close()
                hurry.wait(dice.uniform(0.0, 0.5))
                processes[at] = starts[at]()
                if at:
                    assert processes[at].line(_START_S) == "ready"
            else:
                os.kill(processes[at].pid, signal.SIGSTOP)
                hurry.wait(dice.uniform(0.1, 1.0))
                os.kill(processes[at].pid, signal.SIGCONT)
            hurry.wait(dice.uniform(0.05, 0.3))

    with contextlib.ExitStack() as stack:
        stack.callback(lambda: [_end(process) for process in processes])
        for start in starts:
            processes.append(start())
        for process in processes[1:]:
            assert process.line(_START_S) == "ready"
        channels = [stack.enter_context(rifl.connect(f"127.0.0.1:{port}")) for port in ports]
        results = storm(channels, METHOD, "storm", disturb)
    counts: Counter[bytes] = Counter()
    for path in paths:
        with contextlib.closing(sqlite3.connect(path)) as connection:
            rows = connection.execute("SELECT name FROM effects")
            counts.update(name.encode() for (name,) in rows)
    judge(results, counts, rounds)


def _end(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGCONT)
    process.close()
