"""Sources and sinks of Spark alone: rows a second, of bids, in batch queries."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import sharedlog.spark
from benchmarks.nexmark.sides import parsed, written

__all__ = ["RAW", "SOURCE_RAW", "main"]

# A stream that has each row in a message of its own.
RAW, SOURCE_RAW = "raw", "source log, a message a row"


def main(arguments: list[str] | None = None) -> int:
    """Measure each in turns; the last line is JSON: seconds of each run, by what ran."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nexmark.alone")
    parser.add_argument("--log", required=True)
    parser.add_argument("--kafka", action="append", default=[], help="NAME=ADDRESS")
    parser.add_argument("--flushed", type=Path, help="where Kafka's messages are")
    parser.add_argument("--jars", default="")
    parser.add_argument("--parquet", type=Path, required=True, help="bids")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "2g")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.jars", options.jars)
        .getOrCreate()
    )
    sharedlog.spark.register(spark)
    runs = _runs(spark, options)
    found: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(options.rounds + 1):
        for name, run in runs.items():
            began = time.monotonic()
            run()
            if number:
                # The first one starts processes, and compiles.
                found[name].append(time.monotonic() - began)
    print(json.dumps(found), flush=True)
    spark.stop()
    return 0


def _runs(spark: SparkSession, options: argparse.Namespace) -> dict[str, Callable[[], None]]:
    """Return what runs, by its name: ``source`` and ``sink``, and of what."""
    log = {"log": options.log, "stream": "bids", "valueFormat": "arrow"}
    sink = {**log, "stream": "q1"}
    rows = spark.read.parquet(str(options.parquet))
    outputs = rows.select("auction", "bidder", "price", "extra", "date_time")
    ours = spark.read.format("sharedlog").options(**log).load()
    names = itertools.count()
    raw = spark.read.format("sharedlog").options(log=options.log, stream=RAW).load()
    found: dict[str, Callable[[], None]] = {
        "source parquet": lambda: _take(rows),
        "source log": lambda: _take(ours),
        SOURCE_RAW: lambda: _take(raw),
        "sink log": lambda: _into_log(outputs, sink),
        # Its rows are compared if it is run again.
        "sink log, named": lambda: _into_log(outputs, {**sink, "name": f"run-{next(names)}"}),
    }
    for each in options.kafka:
        name, _, where = each.partition("=")
        topic = spark.read.format("kafka").option("kafka.bootstrap.servers", where)
        messages = topic.option("subscribe", "bids").load()
        if name == "kafka":
            found[f"source {name}"] = lambda frame=messages: _take(parsed(frame, "bids"))  # type: ignore[misc]
            found[f"source {name}, unparsed"] = lambda frame=messages: _take(frame)  # type: ignore[misc]
        found[f"sink {name}"] = lambda where=where: _into_kafka(outputs, where)  # type: ignore[misc]
        if name == "kafka":
            found["sink flushed"] = lambda where=where: _flushed(outputs, where, options.flushed)  # type: ignore[misc]
    return found


def _take(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _into_log(frame: DataFrame, options: dict[str, str]) -> None:
    frame.write.format("sharedlog").options(**options).mode("append").save()


def _into_kafka(frame: DataFrame, where: str) -> None:
    told: Any = written(frame).write.format("kafka").option("kafka.bootstrap.servers", where)
    told.option("topic", "q1").save()


def _flushed(frame: DataFrame, where: str, data: Path) -> None:
    """Write rows into Kafka, and have the disk have them, once: Kafka has no such request."""
    _into_kafka(frame, where)
    for each in data.glob("q1-*/*.log"):
        with each.open("rb") as messages:
            os.fsync(messages.fileno())


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    sys.exit(main())
