"""A driver of one query from a stream of a log to another, which is killed at given points.

``python -m tests.spark.log_driver``; ends when all messages were taken. The point ``planning`` is
before the second micro-batch, ``writing`` when a task of it has appended, ``committing`` between
what freezes it and its marker, ``committed`` between its commit and Spark's own. At ``pausing``
nobody is killed: a task waits when it has joined, until a file says ``go``.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceStreamReader

import sharedlog.spark
from sharedlog._core.commit import Commit
from sharedlog._core.query.closing import BatchSummary, Closed, close
from sharedlog._core.query.state import Ticket
from sharedlog._core.steps import Rule
from sharedlog.spark import _sink
from sharedlog.spark._format import LogDataSource
from sharedlog.spark._sink import LogStreamWriter
from sharedlog.spark._tasks import TaskResult, TaskWriter
from tests.helpers.waiting import until
from tests.spark.signalled import SIGNALS, armed, reached
from tests.spark.starting import run_to_its_end

_BATCH = 1
_WAIT_S = 600.0
# Before PySpark 4.2 a micro-batch has all there is.
_LIMIT = (
    {"maxRowsPerTrigger": "20"} if hasattr(DataSourceStreamReader, "getDefaultReadLimit") else {}
)


class SignalledWriter(LogStreamWriter):
    """Reaches points within a micro-batch, and about its commit."""

    def write(self, iterator: Iterator[Any]) -> Any:
        """Append a task's rows, and be killed when they are there if that was asked for."""
        original = TaskWriter.write

        def write(writer: TaskWriter, messages: Any) -> TaskResult:
            _paused(writer)
            result = original(writer, messages)
            if result.ticket.batch == _BATCH and result.rows and armed("writing"):
                reached("writing")
            return result

        TaskWriter.write = write  # type: ignore[method-assign]
        try:
            return super().write(iterator)
        finally:
            TaskWriter.write = original  # type: ignore[method-assign]

    def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803 - Spark's name
        """Commit, and be killed on the way, or behind it, if that was asked for."""
        if batchId == _BATCH and armed("committing"):
            _sink.close = _killed_on_the_way
        super().commit(messages, batchId)
        if batchId == _BATCH and armed("committed"):
            reached("committed")


def _paused(writer: TaskWriter) -> None:
    """Have one task of the second micro-batch wait when it has joined, if that was asked for."""
    directory = Path(os.environ[SIGNALS])
    if writer._attempt.ticket.batch != _BATCH:
        return
    try:
        (directory / "pausing").rename(directory / "paused")
    except FileNotFoundError:
        return
    until((directory / "go").exists, "the word to go on", _WAIT_S)


def _killed_on_the_way(ticket: Ticket, batch: BatchSummary) -> Rule[Closed]:
    """Close a batch until the step that freezes it is done."""
    # In two steps, as of many tasks.
    rule = close(ticket, batch, at_once=0)
    step = next(iter(rule))
    while not isinstance(step, Commit):
        step = rule.send((yield step))
    yield step
    reached("committing")
    raise AssertionError("nobody was killed")


class SignalledDataSource(LogDataSource):
    """The format ``sharedlog-signalled``."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "sharedlog-signalled"

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802 - Spark's name
        """Plan, and be killed if that was asked for."""
        if not self._travelled and armed("planning"):
            commits = Path(self.options["checkpointlocation"], "commits")
            if (commits / str(_BATCH - 1)).exists():
                reached("planning")
        writer = super().streamWriter(schema, overwrite)
        writer.__class__ = SignalledWriter
        return writer


def _shuffled(key: str) -> Callable[[Any], Any]:
    return lambda frame: frame.select("key", "value").repartition(key)


def main() -> None:
    """Run the query to its end."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--log", required=True)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--partitions", type=int, required=True)
    options = parser.parse_args()
    spark = (
        SparkSession.builder.master("local[2,4]")
        .config("spark.sql.adaptive.enabled", "false")
        .config("spark.sql.shuffle.partitions", str(options.partitions))
        .config("spark.executor.heartbeatInterval", "60s")
        .getOrCreate()
    )
    gateway: Any = spark.sparkContext._gateway
    Path(os.environ[SIGNALS], "driver.pid").write_text(str(gateway.proc.pid))
    sharedlog.spark.register(spark)
    spark.dataSource.register(SignalledDataSource)
    writer = (
        spark.readStream.format("sharedlog")
        .options(log=options.log, stream="orders", **_LIMIT)
        .load()
        .transform(_shuffled("key"))
        .writeStream.format("sharedlog-signalled")
        .options(log=options.log, stream="paid", name="pay")
        .option("checkpointLocation", options.checkpoint)
        .trigger(availableNow=True)
    )
    run_to_its_end(writer.start)
    print("done", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
