"""``python -m benchmarks.ceiling``: what a compiled module for the rules could gain at most.

Three sides take turns, each a server process and its client, over ``memory:``: plain grpcio with
a header as long as ours, rifl unchanged, and rifl whose header, fingerprint and decisions are
constant (``benchmarks.constant``), on both ends. The last to the second is the ceiling: more
than that no C or Rust in their place could gain. Ratios of throughput, latency and processor
time, with their 95 % intervals; only those of one run count.
"""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table

from benchmarks.callers import Load
from benchmarks.cases import HEADER, Side
from benchmarks.databases import Databases
from benchmarks.pairs import Spread
from benchmarks.sides import Run, running

__all__ = ["main", "measure"]

_SIDES = {
    "header": HEADER,
    "ours": Side("memory", client="rifl"),
    "constant": Side("memory", client="constant"),
}
# What is held against what.
_COMPARED = (("ours", "header"), ("constant", "header"), ("constant", "ours"))
_PARTS: tuple[tuple[str, Callable[[Load], float]], ...] = (
    ("calls a second", lambda load: load.calls_per_s),
    ("median latency", lambda load: load.median_ms),
    ("client's CPU", lambda load: load.cpu_us),
    ("server's CPU", lambda load: load.server_cpu_us),
)
# One ratio: of which part of which side to which.
Ratios = dict[tuple[str, str, str], Spread]


def measure(flavor: str, callers: int, turns: int, seconds: float, servers: int = 1) -> Ratios:
    """Return all ratios, over so many turns of each side on so many sets of servers."""
    loads: dict[str, list[Load]] = {name: [] for name in _SIDES}
    for _ in range(servers):
        with contextlib.ExitStack() as stack:
            databases = stack.enter_context(Databases())
            runs = {
                name: stack.enter_context(running(side, flavor, databases))
                for name, side in _SIDES.items()
            }
            for run in runs.values():
                run(callers, seconds)
            for turn in range(turns // servers):
                for name in _in_turn(runs, turn):
                    loads[name].append(runs[name](callers, seconds))
    return {
        (what, one, other): Spread.of(
            [part(a) / part(b) for a, b in zip(loads[one], loads[other], strict=True)]
        )
        for what, part in _PARTS
        for one, other in _COMPARED
    }


def _in_turn(runs: dict[str, Run], turn: int) -> Sequence[str]:
    names = list(runs)
    at = turn % len(names)
    # Who goes first changes, and so does who follows whom.
    order = names[at:] + names[:at]
    return order if turn // len(names) % 2 else order[::-1]


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(prog="benchmarks.ceiling", description=__doc__)
    parser.add_argument("--flavor", choices=["sync", "aio"], action="append")
    parser.add_argument("--callers", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.25, help="length of a run")
    parser.add_argument("--servers", type=int, default=3, help="sets of servers, in turn")
    options = parser.parse_args()
    console = Console(width=160)
    for flavor in options.flavor or ("sync", "aio"):
        for callers in options.callers:
            ratios = measure(flavor, callers, options.turns, options.seconds, options.servers)
            table = Table(title=f"{flavor}, {callers} callers")
            for column in ("", *(f"{one} to {other}" for one, other in _COMPARED)):
                table.add_column(column)
            for what, _ in _PARTS:
                found = (ratios[what, one, other] for one, other in _COMPARED)
                table.add_row(
                    what, *(f"{each.median:.3f} ({each.low:.3f}-{each.high:.3f})" for each in found)
                )
            console.print(table)
    load = os.getloadavg()[0]
    console.print(f"{options.turns} turns of {options.seconds} s each; load {load:.1f} at the end")


if __name__ == "__main__":
    main()
