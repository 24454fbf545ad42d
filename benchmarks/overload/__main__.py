"""``python -m benchmarks.overload``: what is left of a service when something goes wrong.

Eight places for work of 40 ms are offered 80 % of what they can do; then comes a trigger
(``benchmarks.overload.triggers``). Each is run for rifl, for rifl with ``max_running`` and for
bare gRPC with and without its retries, in turns, and for each kind of method. All figures are
counts of calls by when they began:

- goodput: calls a second that were answered in time, before, during and in the five seconds after;
- arrivals: attempts at the servers for each call, during the trigger;
- too late: of the handlers' effects during it and in the second after, the part behind the
  call's deadline;
- back: seconds from the trigger's end until nine of ten calls are answered in time again, of
  those that begin within a second, and within the next one;
- doubled: calls with more than one effect;
- shares: of several servers, the parts of the arrivals.

Prints a table. ``--out`` keeps each case whose sides were all run in ``benchmarks/results.json``,
of several turns the one that was back last.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import sys
import tempfile
import threading
import time
from bisect import bisect_left
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.databases import Databases
from benchmarks.overload.load import Call, Client, run
from benchmarks.overload.notes import Found
from benchmarks.overload.server import PLACES, WORK_S
from benchmarks.overload.triggers import TRIGGERS, Trigger, World
from benchmarks.results import Results
from benchmarks.tables import OVERLOAD_COLUMNS, overload_cell

__all__ = ["main", "measured"]

SIDES = ("bare", "retries", "rifl", "places")
_BEFORE_S = 3.0
_AFTER_S = 12.0
_LOOK_S = 0.1


def measured(
    trigger: Trigger, side: str, kind: str, *, aio: bool, databases: Databases
) -> dict[str, Any]:
    """Run one trigger on one side; the figures."""
    flavor = "aio" if aio else "sync"
    arguments = ["--flavor", flavor, "--side", side, "--kind", kind]
    with tempfile.TemporaryDirectory(prefix="rifl-overload-") as folder:
        world = World(Path(folder), databases, trigger.stores[kind], arguments, trigger.servers)
        try:
            client = Client(
                side, trigger.deadline_s, trigger.attempt_timeout_s, trigger.hedge_after_s
            )
            full = PLACES / WORK_S * trigger.servers
            usual = trigger.load * full
            times: list[float] = []

            def act() -> None:
                time.sleep(_BEFORE_S)
                times.append(time.monotonic())
                if trigger.act is None:
                    time.sleep(trigger.seconds)
                else:
                    trigger.act(world)
                times.append(time.monotonic())

            def rate(at: float) -> float:
                within = _BEFORE_S <= at < _BEFORE_S + trigger.seconds
                return usual * (trigger.factor if within else 1.0)

            acting = threading.Thread(target=act)
            acting.start()
            calls = run(
                client,
                world.addresses,
                rate,
                _BEFORE_S + trigger.seconds + _AFTER_S,
                channels=trigger.channels,
                aio=aio,
            )
            acting.join()
            return _figures(calls, world.noted(), times[0], times[1])
        finally:
            world.stop()


def _figures(calls: list[Call], found: Found, begin: float, end: float) -> dict[str, Any]:
    during = _between(calls, begin, end)
    arrived = sum(_within(each, begin, end) for each in found.arrivals)
    runs = _within(found.began, begin, end + 1.0)
    every = [len(each) for each in found.arrivals]
    return {
        "before": _goodput(calls, begin - 2.0, begin),
        "during": _goodput(calls, begin, end),
        "after": _goodput(calls, end, end + 5.0),
        "arrivals": round(arrived / max(len(during), 1), 2),
        "too late": round(_within(found.too_late, begin, end + 1.0) / max(runs, 1), 2),
        "back": _back(calls, end),
        "doubled": found.doubled,
        "shares": [round(each / max(sum(every), 1), 2) for each in every],
    }


def _between(calls: list[Call], begin: float, end: float) -> list[Call]:
    at = [call.began for call in calls]
    return calls[bisect_left(at, begin) : bisect_left(at, end)]


def _within(times: list[float], begin: float, end: float) -> int:
    return sum(begin <= each < end for each in times)


def _goodput(calls: list[Call], begin: float, end: float) -> float:
    return round(sum(call.answered for call in _between(calls, begin, end)) / (end - begin), 1)


def _back(calls: list[Call], end: float) -> float | None:
    """None: it did not come back."""
    last = calls[-1].began
    at = end
    while at + 2.0 <= last:
        if all(_answered(_between(calls, at + each, at + each + 1.0)) >= 0.9 for each in (0, 1)):
            return round(at - end, 1)
        at += _LOOK_S
    return None


def _answered(calls: list[Call]) -> float:
    return sum(call.answered for call in calls) / max(len(calls), 1)


def main() -> int:
    """Measure; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overload", description=__doc__)
    parser.add_argument("--only", default="", help="triggers whose names begin so")
    parser.add_argument("--flavor", choices=("sync", "aio", "both"), default="both")
    parser.add_argument("--kind", choices=("plain", "idempotent", "atomic", "all"), default="all")
    parser.add_argument("--side", choices=(*SIDES, "all"), default="all")
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--out", type=Path, help="where results are kept")
    options = parser.parse_args()
    table = Table("case", "side", *OVERLOAD_COLUMNS)
    found: dict[str, dict[str, dict[str, Any]]] = {}
    console = Console(width=160)
    results = None if options.out is None else Results(options.out)
    order = list(dict.fromkeys(name for name, *_ in _runs(parser.parse_args([]))))
    with contextlib.ExitStack() as stack:
        databases = stack.enter_context(Databases())
        for name, side, trigger, kind, aio in _runs(options):
            figure = measured(trigger, side, kind, aio=aio, databases=databases)
            case = found.setdefault(name, {})
            case[side] = max(case.get(side, figure), figure, key=_back_s)
            console.print(f"{name}, {side}: {json.dumps(figure)}", style="dim")
            table.add_row(name, side, *(overload_cell(figure[each]) for each in OVERLOAD_COLUMNS))
            if results is not None and len(case) == len(SIDES):
                results.put("overload", name, case, order)
    console.print(table)
    return 0


def _back_s(figure: dict[str, Any]) -> float:
    back: float | None = figure["back"]
    return math.inf if back is None else back


def _runs(options: argparse.Namespace) -> list[tuple[str, str, Trigger, str, bool]]:
    found = []
    for trigger in TRIGGERS:
        for flavor in ("sync", "aio"):
            for kind in trigger.stores:
                wanted = trigger.name.startswith(options.only) and options.flavor in (
                    flavor,
                    "both",
                )
                if not wanted or options.kind not in (kind, "all"):
                    continue
                name = f"{trigger.name}, {flavor}, {kind}"
                for _ in range(options.turns):
                    found += [
                        (name, side, trigger, kind, flavor == "aio")
                        for side in SIDES
                        if options.side in (side, "all")
                    ]
    return found


if __name__ == "__main__":
    sys.exit(main())
