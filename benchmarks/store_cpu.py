"""Processor time of a call at the server and at its store: ``python -m benchmarks.store_cpu``.

A sync server and 16 callers, who share the cores with the store. Medians of rounds.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

from rich.console import Console

from benchmarks.cases import Side
from benchmarks.databases import Databases
from benchmarks.results import RESULTS, Results
from benchmarks.sides import cpu_s, running

_STORES = ("redis", "postgres", "mariadb")
_KINDS = ("plain", "idempotent")
_CALLERS = 16


def measure(
    databases: Databases, store: str, kind: str, rounds: int, round_s: float
) -> dict[str, int]:
    """Return microseconds a call."""
    server: list[float] = []
    at_store: list[float] = []
    with running(Side(store, kind, "rifl"), "sync", databases) as run:
        run(_CALLERS, round_s)
        for _ in range(rounds):
            before = _cpu_s(databases, store)
            load = run(_CALLERS, round_s)
            server.append(load.server_cpu_us)
            at_store.append(
                (_cpu_s(databases, store) - before) / (load.calls_per_s * round_s) * 1e6
            )
    return {
        "server_cpu_us": round(statistics.median(server)),
        "store_cpu_us": round(statistics.median(at_store)),
    }


def _cpu_s(databases: Databases, store: str) -> float:
    return sum(map(cpu_s, databases.processes(store)))


def main() -> None:
    """Measure, print, and keep what was found."""
    parser = argparse.ArgumentParser(prog="benchmarks.store_cpu", description=__doc__)
    parser.add_argument("--only", default="", help="parts whose name contains this")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.0, help="of a round")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    console, results = Console(width=160), Results(options.out)
    parts = {f"{store}, {kind}": (store, kind) for store in _STORES for kind in _KINDS}
    with Databases() as databases:
        for name, (store, kind) in parts.items():
            if options.only in name:
                found = measure(databases, store, kind, options.rounds, options.seconds)
                results.put("stores", name, found, parts)
                told = ", ".join(f"{each} {value}" for each, value in found.items())
                console.print(f"{name}: {told}")


if __name__ == "__main__":
    main()
