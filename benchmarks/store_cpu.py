"""Processor time of a call: ``python -m benchmarks.store_cpu``, in microseconds.

Of a call at the server and at its store; at a group's leader, follower and witness; and of a
message at the publisher and its log. 16 callers share the cores with all of them. Medians of
rounds.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

import sharedlog
from benchmarks.callers import run_sync
from benchmarks.cases import Side
from benchmarks.databases import Databases
from benchmarks.groups import keyed_call, open_channel
from benchmarks.results import RESULTS, Results
from benchmarks.sides import cpu_s, running
from chaos.group_processes import GroupProcesses

_STORES = ("redis", "postgres", "mariadb")
_KINDS = ("plain", "idempotent")
_ENGINES = ("sqlite", "redis", "postgres", "etcd")
_PATHS = ("fast", "synced")
_CALLERS = 16
_MESSAGE = bytes(200)
# Loads for so many seconds; how many calls that were.
_Load = Callable[[float], float]


def _measured(
    load: _Load, used: Mapping[str, Callable[[], float]], rounds: int, round_s: float
) -> dict[str, int]:
    """Return microseconds a call; ``used``: seconds of processor time until now, by whose."""
    found: dict[str, list[float]] = {name: [] for name in used}
    load(round_s)
    for _ in range(rounds):
        before = {name: seconds() for name, seconds in used.items()}
        calls = load(round_s)
        for name, seconds in used.items():
            found[name].append((seconds() - before[name]) / calls * 1e6)
    return {f"{name}_cpu_us": round(statistics.median(each)) for name, each in found.items()}


def of_store(
    store: str, kind: str, databases: Databases, rounds: int, round_s: float
) -> dict[str, int]:
    """Measure a call at a server and its store."""
    at_server = 0.0
    with running(Side(store, kind, "rifl"), "sync", databases) as run:

        def load(seconds: float) -> float:
            nonlocal at_server
            found = run(_CALLERS, seconds)
            calls = found.calls_per_s * seconds
            at_server += found.server_cpu_us * calls / 1e6
            return calls

        used = {"server": lambda: at_server, **_of_database(databases, store)}
        return _measured(load, used, rounds, round_s)


def of_group(
    engine: str, path: str, databases: Databases, rounds: int, round_s: float
) -> dict[str, int]:
    """Measure a call at a group of two replicas and a witness, whose log is in ``engine``."""
    _, own = databases.urls(engine)
    log = f"{own}?group=bench-{path}"
    with (
        tempfile.TemporaryDirectory() as folder,
        GroupProcesses(Path(folder), "benchmarks.keyed", log, replicas=2) as group,
        open_channel(group.replicas, path) as channel,
    ):
        call, leader = keyed_call(channel), group.leader()
        (follower,) = set(group.replicas) - {leader}
        (witness,) = group.witnesses
        addresses = {"leader": leader, "follower": follower, "witness": witness}
        used = {name: partial(cpu_s, group.pid(each)) for name, each in addresses.items()}

        def load(seconds: float) -> float:
            return run_sync(call, _CALLERS, seconds).calls_per_s * seconds

        return _measured(load, used | _of_database(databases, engine), rounds, round_s)


def of_log(engine: str, databases: Databases, rounds: int, round_s: float) -> dict[str, int]:
    """Measure a message of 16 threads of this process, and of the log's database."""
    _, own = databases.urls(engine)
    with sharedlog.create(own if engine == "sqlite" else f"{own}?log=bench") as log:
        log.stream("cpu")

        def publish(request: Any, timeout: float) -> None:
            del request, timeout
            log.publish("cpu", _MESSAGE)

        def load(seconds: float) -> float:
            return run_sync(publish, _CALLERS, seconds).calls_per_s * seconds

        used = {"publisher": time.process_time, **_of_database(databases, engine)}
        return _measured(load, used, rounds, round_s)


def _of_database(databases: Databases, name: str) -> dict[str, Callable[[], float]]:
    """Return the processor time of a database's processes; SQLite has none of its own."""
    if name == "sqlite":
        return {}
    return {"store": lambda: sum(map(cpu_s, databases.processes(name)))}


def main() -> None:
    """Measure, print, and keep what was found."""
    parser = argparse.ArgumentParser(prog="benchmarks.store_cpu", description=__doc__)
    parser.add_argument("--only", default="", help="parts whose name contains this")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.0, help="of a round")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    console, results = Console(width=160), Results(options.out)
    parts: dict[str, Callable[[Databases, int, float], dict[str, int]]] = {
        **{
            f"{store}, {kind}": partial(of_store, store, kind)
            for store in _STORES
            for kind in _KINDS
        },
        **{
            f"group over {engine}, {path}": partial(of_group, engine, path)
            for engine in _ENGINES
            for path in _PATHS
        },
        **{f"log in {engine}": partial(of_log, engine) for engine in _ENGINES},
    }
    with Databases() as databases:
        for name, measure in parts.items():
            if options.only in name:
                found = measure(databases, options.rounds, options.seconds)
                results.put("stores", name, found, parts)
                told = ", ".join(f"{each} {value}" for each, value in found.items())
                console.print(f"{name}: {told}")


if __name__ == "__main__":
    main()
