"""Parts of a micro-batch: how long each takes, as Spark tells it, by what its options are."""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from benchmarks.nexmark.driver import PROGRESS
from benchmarks.nexmark.events import Events
from benchmarks.nexmark.fleet import DriverProcess
from benchmarks.nexmark.load import Load, Step, run_step

__all__ = ["OPTIONS", "PARTS", "Batches", "Medians", "batches"]

# As Spark names them, in their order; the rest of a micro-batch is little.
PARTS = (
    "triggerExecution",
    "latestOffset",
    "getBatch",
    "queryPlanning",
    "walCommit",
    "addBatch",
    "commitOffsets",
)
_MANAGER = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
# What is tried, each by itself.
OPTIONS: dict[str, tuple[str, ...]] = {
    "unchanged": (),
    "workers not reused": ("spark.python.worker.reuse=false",),
    "Unix sockets": ("spark.python.unix.domain.socket.enabled=true",),
    "one shuffle partition": ("spark.sql.shuffle.partitions=1",),
    "no checksums of checkpoints": ("spark.sql.streaming.checkpoint.fileChecksum.enabled=false",),
    "checkpoints by renaming": (f"spark.sql.streaming.checkpointFileManagerClass={_MANAGER}",),
    "Arrow batches of 1,000": ("spark.sql.execution.arrow.maxRecordsPerBatch=1000",),
}
_KEPT = "spark.sql.streaming.numRecentProgressUpdates=1000"
_RATE, _SECONDS = 2000, 6.0

Medians = dict[str, float]
Batches = dict[str, dict[str, Medians]]
Told = Callable[[str, str, Medians], None]
System = Callable[
    [Path, argparse.Namespace, str], AbstractContextManager[tuple[Load, Sequence[str]]]
]


def batches(folder: Path, options: argparse.Namespace, system: System, told: Told) -> Batches:
    """Return, by side and option, the medians of a micro-batch's parts in milliseconds.

    In rounds, so that what else the machine does befalls all of them, each in another order.
    ``told`` gets those of each run when it ends.
    """
    found: dict[tuple[str, str], list[dict[str, int]]] = {}
    sides = [each for each in options.sides if each != "synced"]
    # What others take is told of what is compared: without options.
    runs = [(side, name) for name, conf in OPTIONS.items() for side in sides if not conf]
    runs += [("log", name) for name, conf in OPTIONS.items() if conf and "log" in sides]
    places = itertools.count()
    for number in range(options.rounds):
        first = number * len(runs) // options.rounds
        for side, name in (*runs[first:], *runs[:first]):
            place = folder / str(next(places))
            of_one = _run(place, options, side, OPTIONS[name], system)
            found.setdefault((side, name), []).extend(of_one)
            told(side, name, _medians(of_one))
    return {
        side: {name: _medians(found[side, name]) for of, name in runs if of == side}
        for side in sides
    }


def _run(
    place: Path, options: argparse.Namespace, side: str, conf: Sequence[str], system: System
) -> list[dict[str, int]]:
    place.mkdir(parents=True)
    query = options.queries[0]
    with system(place, options, side) as (load, told):
        driver = DriverProcess(
            *told,
            *("--queries", query),
            *("--directory", str(place)),
            *("--longest", f"{Events(rate=_RATE).longest_us} microseconds"),
            *("--conf", _KEPT, *options.conf, *conf),
            log=place / "driver.log",
        )
        with driver:
            # The first one again: what Spark compiles.
            for first in range(2):
                run_step(load, query, Step(_RATE, _SECONDS, first * int(_RATE * _SECONDS)))
            driver.finish()
    told_of: dict[str, list[dict[str, int]]] = json.loads((place / PROGRESS).read_text())
    of_rows = [each for each in told_of[query] if each["rows"]]
    return of_rows[len(of_rows) // 2 :]


def _medians(found: Sequence[dict[str, int]]) -> Medians:
    if not found:
        return {}
    return {each: statistics.median(one.get(each, 0) for one in found) for each in PARTS}
