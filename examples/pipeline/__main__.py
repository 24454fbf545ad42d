"""``make demo-pipeline``: calls, events, a Spark query and a service, each once, under SIGKILLs.

Callers end rides at a service that commits ride, event and answer together. A Spark query reads the
events, sums up what each rider pays for an hour, and writes bills into another stream of the same
log. A player calls an unchanged billing service with each bill. The four are killed by SIGKILL in
turns, at work, and started again. Then the services' tables and both streams are compared with
what was asked for. Exits with 1 if anything is doubled, missing or wrong at any of the four places.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from random import Random

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import sharedlog
from examples.flights.cluster import require_java
from examples.pipeline.audit import Audit, Row, audit, billed
from examples.pipeline.billing import charged
from examples.pipeline.callers import Callers, Ride, closing, drawn
from examples.pipeline.fleet import KINDS, Fleet
from examples.pipeline.rides import BILLS, RIDES
from examples.pipeline.v1 import pipeline_pb2

__all__ = ["main"]

_RIDERS = 10
# Bills are due two hours after theirs; callers wait for those of the hour before that one.
_BEHIND = 3
_LOOK_S, _SOON_S = 0.2, 0.002
_STUCK_S = 300.0
# Who is not at work by then is killed all the same.
_WITHIN_S = 20.0


def main(arguments: list[str] | None = None) -> int:
    """Run the demo; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m examples.pipeline", description=__doc__)
    parser.add_argument("--hours", type=int, default=24)
    parser.add_argument("--rides", type=int, default=100, help="within an hour")
    parser.add_argument("--kills", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1, help="of the rides, and of the kills")
    options = parser.parse_args(arguments)
    require_java()
    # A terminated demo cleans up as an interrupted one does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    console = Console(width=None if sys.stdout.isatty() else 100)
    directory = Path(tempfile.mkdtemp(prefix="rifl-pipeline-"))
    try:
        with ExitStack() as stack:
            found, killed = _run(console, options, Fleet(directory, stack))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    _report(console, found, killed)
    print(json.dumps({**dataclasses.asdict(found), "killed": killed}), flush=True)
    return 0 if found.duplicates == found.missing == found.wrong == 0 else 1


def _run(
    console: Console, options: argparse.Namespace, fleet: Fleet
) -> tuple[Audit, dict[str, int]]:
    """Call, kill, and wait for the end; what became of it, and how often what was killed."""
    dice = Random(options.seed)  # noqa: S311 - repeatable, not secret
    hours = [drawn(hour, options.rides, _RIDERS, dice) for hour in range(options.hours)]
    killed = dict.fromkeys(KINDS, 0)
    asked: list[Ride] = []
    due = 0
    callers = Callers(fleet.address)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("hours", total=len(hours))
        for hour, rides in enumerate(hours):
            callers.begin(rides)
            try:
                # The kills that are to have struck by the end of this hour, in turns.
                while sum(killed.values()) < options.kills * (hour + 1) // len(hours):
                    name = KINDS[sum(killed.values()) % len(KINDS)]
                    progress.update(bar, description=f"killing {name}")
                    _until_at_work(fleet, name, callers, dice.randrange(options.rides))
                    fleet.kill(name)
                    killed[name] += 1
            finally:
                callers.finish()
            asked += rides
            if hour >= _BEHIND:
                due += len(billed(hours[hour - _BEHIND]))
            _until_billed(fleet, due)
            progress.update(bar, completed=hour + 1, description="hours")
        last = closing(len(hours))
        callers.begin([last])
        callers.finish()
        progress.update(bar, description="the end")
        fleet.spark.finish()
        with sharedlog.open(fleet.log_url) as log:
            events, rows = _events(log), _rows(log)
        _until_billed(fleet, len(rows), by_spark=False)
        fleet.end("player")
    found = audit(asked, last, fleet.rides, events, rows, fleet.billing)
    return found, killed | {"failed": fleet.spark.failures}


def _until_at_work(fleet: Fleet, name: str, callers: Callers, answered: int) -> None:
    """Wait until a process has work in progress; the called service: so many calls."""
    end, before = time.monotonic() + _WITHIN_S, charged(fleet.billing)
    while time.monotonic() < end:
        if name == "rides":
            at_work = callers.answered >= answered
        elif name == "spark":
            at_work = fleet.spark.at_work
        else:
            at_work = charged(fleet.billing) > before
        if at_work:
            return
        time.sleep(_SOON_S)


def _until_billed(fleet: Fleet, count: int, *, by_spark: bool = True) -> None:
    """Wait until there are so many charges."""
    found, grew_s = charged(fleet.billing), time.monotonic()
    while found < count:
        time.sleep(_LOOK_S)
        if by_spark:
            fleet.spark.mend()
        now = charged(fleet.billing)
        if now > found:
            grew_s = time.monotonic()
        elif time.monotonic() - grew_s > _STUCK_S:
            raise RuntimeError(f"there are {now} charges, and {count} are due: nothing gets on")
        found = now


def _events(log: sharedlog.Log) -> list[Row]:
    found = [each.parse(pipeline_pb2.Ride) for each in _messages(log, RIDES)]
    return [(each.id, each.rider, each.ended.seconds, each.cents) for each in found]


def _rows(log: sharedlog.Log) -> list[Row]:
    found = [each.parse(pipeline_pb2.Bill) for each in _messages(log, BILLS)]
    return [(each.rider, each.hour.seconds, each.rides, each.cents) for each in found]


def _messages(log: sharedlog.Log, stream: str) -> list[sharedlog.Message]:
    substreams = log.stream(stream).substreams
    return [each for at in range(substreams) for each in log.read(stream, at)]


def _report(console: Console, found: Audit, killed: dict[str, int]) -> None:
    table = Table(title="The services' databases and the streams, read afterwards")
    table.add_column("")
    table.add_column("", justify="right")
    for name, count in (
        ("calls, which ended a ride", found.calls),
        ("events of the first stream", found.events),
        ("rows that Spark wrote", found.rows),
        ("deliveries to billing", found.deliveries),
        ("duplicates", found.duplicates),
        ("missing", found.missing),
        ("wrong", found.wrong),
    ):
        table.add_row(name, f"{count:,}")
    console.print(table)
    console.print("killed: " + ", ".join(f"{name}: {many}" for name, many in killed.items()))


if __name__ == "__main__":
    sys.exit(main())
