"""Queries from a stream of a log to another, in this session or as drivers that are killed."""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import sharedlog
import sharedlog.spark
from sharedlog._core.query.state import Query, find_query
from tests.helpers.processes import Process
from tests.helpers.waiting import until
from tests.spark.conftest import SLOW_S, spark_environment
from tests.spark.signalled import SIGNALS
from tests.spark.starting import run_on_what_is_there
from tests.spark.test_stream_sink import gone

__all__ = ["Chain", "Killed", "failing"]


class Chain:
    """A query from ``orders`` to ``paid``, over one checkpoint."""

    def __init__(
        self, spark: Any, log: sharedlog.Log, directory: Path, url: str | None = None
    ) -> None:
        sharedlog.spark.register(spark)
        self.spark, self.log, self.directory = spark, log, directory
        self.checkpoint = directory / "checkpoint"
        self.url = url or f"sqlite:///{directory / 'log.db'}"
        self._published = 0

    def publish(self, count: int) -> None:
        """Publish as many orders, each its own."""
        for number in range(self._published, self._published + count):
            self.log.publish("orders", f"o{number}", key=f"k{number % 7}")
        self._published += count

    def source(self, **options: str) -> Any:
        """What the query reads: keys and values, or with options what these say."""
        given = {"log": self.url, "stream": "orders", **options}
        frame = self.spark.readStream.format("sharedlog").options(**given).load()
        return frame if options else frame.select("key", "value")

    def run(
        self,
        change: Callable[[Any], Any] = lambda frame: frame,
        *,
        checkpoint: Path | None = None,
        form: str = "sharedlog",
        reads: Mapping[str, str] = {},
        **options: str,
    ) -> Any:
        """Run it on what is available now; return Spark's query, which is over."""
        given = {"log": self.url, "stream": "paid", "name": "pay", **options}
        writer = (
            change(self.source(**reads))
            .writeStream.format(form)
            .options(**given)
            .option("checkpointLocation", str(checkpoint or self.checkpoint))
            .trigger(availableNow=True)
        )
        return run_on_what_is_there(writer.start, checkpoint or self.checkpoint)

    def forget_commit(self, checkpoint: Path | None = None) -> int:
        """Have Spark's last commit never have happened, as if its driver had died before it."""
        commits = (checkpoint or self.checkpoint) / "commits"
        last = max(int(each.name) for each in commits.iterdir() if each.name.isdigit())
        (commits / str(last)).unlink()
        (commits / f".{last}.crc").unlink(missing_ok=True)
        return last

    def written(self) -> collections.Counter[str]:
        """What committed readers see in ``paid``."""
        substreams = range(3)
        return collections.Counter(
            each.text for at in substreams for each in self.log.read("paid", at)
        )

    def wanted(self) -> collections.Counter[str]:
        """What one run would have written."""
        return collections.Counter(f"o{number}" for number in range(self._published))

    def query(self, name: str = "pay") -> Query | None:
        """What the log keeps of the query."""
        return self.log._run(find_query(name))


def failing(marks: Path, times: int = 1) -> Callable[[Any], Any]:
    """Have each partition's first attempts fail when they have passed rows on."""

    def passed_on(batches: Any) -> Any:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        yield from batches
        mark = marks / f"{context.partitionId()}.{context.attemptNumber()}"
        if context.attemptNumber() < times and not mark.exists():
            mark.touch()
            raise RuntimeError("this attempt was meant to fail")

    return lambda frame: frame.mapInArrow(passed_on, frame.schema)


class Killed:
    """One launch of a driver after another, over one checkpoint."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        self.checkpoint = directory / "checkpoint"
        self._directory = directory
        self._signals = directory / "signals"
        self._signals.mkdir()
        self._process: Process | None = None

    def launch(self, log: str, partitions: int, kill_at: str | None = None) -> bool:
        """Run it until it is killed, or ends; whether it ended."""
        self.begin(log, partitions, kill_at)
        return self.ended()

    def begin(self, log: str, partitions: int, point: str | None = None) -> None:
        """Begin to run it, with a point armed."""
        (self._signals / "driver.pid").unlink(missing_ok=True)
        if point is not None:
            (self._signals / point).touch()
        self._process = Process(
            "tests.spark.log_driver",
            *("--log", log, "--checkpoint", str(self.checkpoint)),
            *("--partitions", str(partitions)),
            log=self._directory / "driver.log",
            env={**spark_environment(), SIGNALS: str(self._signals)},
        )

    def ended(self) -> bool:
        """Wait until it was killed, or failed, or ends; whether it ended."""
        process = self._process
        assert process is not None
        try:
            try:
                return process.line(SLOW_S) == "done"
            except AssertionError:
                assert not process.alive, process.errors()
                return False
        finally:
            self.close()

    def until_paused(self) -> None:
        """Wait until one of its tasks waits at the point ``pausing``."""
        until((self._signals / "paused").exists, "a task that waits", SLOW_S)

    def go_on(self) -> None:
        """Have that task go on."""
        (self._signals / "go").touch()

    def said(self) -> str:
        """What all launches wrote to standard error."""
        return (self._directory / "driver.log").read_text(errors="replace")

    def close(self) -> None:
        """End it, with its JVM."""
        if self._process is not None:
            self._process.close()
        pid = self._signals / "driver.pid"
        if pid.exists():
            gone(int(pid.read_text()))
