"""A driver: runs the stages of queries over their checkpoints, until it is told to come to an end.

``python -m benchmarks.nexmark.driver``: prints the process of its JVM, and ``running``. At a line
of its input it takes what is there, stage by stage, leaves how long its last micro-batches took,
and prints ``done``. A query that fails ends it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from benchmarks.nexmark.plain import PlainDataSource
from benchmarks.nexmark.queries import Setting, stages_of
from benchmarks.nexmark.sides import KafkaSide, LogSide, Side

__all__ = ["PROGRESS", "failing_now_and_then", "main", "started"]

# What a driver that comes to an end leaves in its directory: of each query its last micro-batches.
PROGRESS = "progress.json"
_LOOK_S = 0.2
# Less than what it takes to start all of them again.
_STARTS = 60


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until the input has a line, or a query fails; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nexmark.driver")
    parser.add_argument("--log", help="its URL")
    parser.add_argument("--form", default="sharedlog", help="the data source that writes the log")
    parser.add_argument("--kafka", help="its address, instead of a log")
    parser.add_argument("--jars", default="", help="what Spark needs for it, with commas")
    parser.add_argument("--queries", nargs="+", required=True)
    parser.add_argument("--directory", type=Path, required=True, help="of checkpoints")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--every", default="0 seconds", help="between micro-batches, at least")
    parser.add_argument("--most", type=int, help="of a micro-batch: messages")
    parser.add_argument("--longest", required=True, help="an auction is open")
    parser.add_argument("--late", default="1 second")
    parser.add_argument("--later", default="0 seconds")
    parser.add_argument("--window", default="10 seconds")
    parser.add_argument("--slide", default="2 seconds")
    parser.add_argument("--failing", type=int, default=0, help="of a hundred tasks")
    parser.add_argument("--conf", nargs="*", default=[], help="NAME=VALUE, of Spark's")
    options = parser.parse_args(arguments)
    spark = _session(options)
    gateway: Any = spark.sparkContext._gateway
    print(gateway.proc.pid, flush=True)
    spark.dataSource.register(PlainDataSource)
    side: Side = LogSide(options.log, options.most, options.form)
    if options.kafka:
        side = KafkaSide(options.kafka, options.most)
    queries = _start(spark, side, options)
    print("running", flush=True)
    over = threading.Event()
    threading.Thread(target=_listen, args=(over,), daemon=True).start()
    while not over.wait(_LOOK_S):
        for query in queries:
            if not query.isActive:
                sys.stderr.write(f"{query.name}: {query.exception()}\n")
                return 1
    for query in queries:
        query.processAllAvailable()
    told = {query.name: [_durations(each) for each in query.recentProgress] for query in queries}
    (options.directory / PROGRESS).write_text(json.dumps(told))
    print("done", flush=True)
    for query in queries:
        query.stop()
    spark.stop()
    return 0


def _session(options: argparse.Namespace) -> SparkSession:
    directory: Path = options.directory
    directory.mkdir(parents=True, exist_ok=True)
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.memory": "3g",
        "spark.executor.memory": "512m",
        "spark.local.dir": str(directory / "local"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.jars": options.jars,
        # A machine that does other things too has executors that are silent for a while.
        "spark.executor.heartbeatInterval": "60s",
        "spark.network.timeout": "600s",
        "spark.task.maxFailures": "20",
        # Executors that are killed are no reason to give up.
        "spark.deploy.maxExecutorRetries": "-1",
        "spark.sql.streaming.numRecentProgressUpdates": "20",
        "spark.executorEnv.PYTHONPATH": os.environ.get("PYTHONPATH", ""),
    }
    builder = SparkSession.builder.master(options.master).appName("nexmark")
    settings |= dict(each.split("=", 1) for each in options.conf)
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _start(spark: SparkSession, side: Side, options: argparse.Namespace) -> list[Any]:
    setting = Setting(options.longest, options.late, options.later, options.window, options.slide)
    queries = []
    for stage in stages_of(tuple(options.queries)):
        frames = {name: side.read(spark, name, stage.name) for name in stage.reads}
        found = stage.query(frames, setting)
        if options.failing:
            found = failing_now_and_then(found, options.failing)
        writer = side.write(found, stage.name).queryName(stage.name)
        writer = writer.option("checkpointLocation", str(options.directory / stage.name))
        queries.append(started(writer.trigger(processingTime=options.every)))
    return queries


def _durations(progress: Any) -> dict[str, int]:
    """Return how long the parts of a micro-batch took, in milliseconds, and its rows."""
    return {**progress.durationMs, "rows": progress.numInputRows}


def started(writer: Any) -> Any:
    """Start a query, and wait until its sources are there; again if one was not in time.

    Spark gives a Python source ten seconds to be imported, however busy the machine is.
    """
    for left in reversed(range(_STARTS)):
        query = writer.start()
        while query.isActive and query.status["message"].startswith("Initializing"):
            time.sleep(_LOOK_S / 4)
        if query.isActive or query.exception() is None:
            return query
        sys.stderr.write(f"{query.name}: {query.exception()}\n")
        if not left:
            break
    raise RuntimeError(f"{query.name} does not start")


def failing_now_and_then(frame: DataFrame, percent: int) -> DataFrame:
    """Have so many tasks of a hundred fail at first, when all their rows were passed on."""

    def passed_on(batches: Iterable[Any]) -> Iterator[Any]:
        yield from batches
        if fails(percent):
            raise RuntimeError("this attempt was meant to fail")

    passing: Callable[[Iterable[Any]], Iterator[Any]] = passed_on
    return frame.mapInArrow(passing, frame.schema)


def fails(percent: int) -> bool:
    """Whether the task that this runs in is one that fails: told by its batch and partition."""
    context: Any = TaskContext.get()
    told = [context.getLocalProperty(each) for each in ("sql.streaming.queryId", _BATCH)]
    drawn = zlib.crc32(f"{told} {context.partitionId()}".encode()) % 100
    return context.attemptNumber() == 0 and drawn < percent


_BATCH = "streaming.sql.batchId"


def _listen(told: threading.Event) -> None:
    if not sys.stdin.readline():
        # Its parent process ended.
        os._exit(1)
    told.set()


if __name__ == "__main__":
    sys.exit(main())
