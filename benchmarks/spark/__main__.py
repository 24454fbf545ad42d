"""``make bench-spark``: rows a second from Spark to one service, side by side.

Naive ``foreachPartition`` with one blocking call a row, the same with calls pipelined by
hand, the batch sink and the streaming sink; over the memory and the SQLite store. The
service counts in memory. Then what a micro-batch costs beside a sink that does nothing,
what a worker process holds, what settings change where a handler waits, and what a session's
keys cost the server. Figures are of this machine, now. ``--only`` takes one part of it: together
they take minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pyarrow
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, WriterCommitMessage

import rifl.spark
from examples.flights.cluster import environment, require_java
from examples.flights.v1 import flights_pb2, flights_pb2_grpc
from examples.server_process import ServerProcess
from rifl.spark._options import WriteOptions
from rifl.spark._sink import write_task
from rifl.spark._write_plan import WritePlan

_METHOD = "/flights.v1.Books/Post"
_PIPELINED = 64
# The slow ways get fewer rows: they only take longer. Those of the sinks are so many that
# what Spark needs to begin a write does not count.
_SHARES = {"blocking": 8, "pipelined": 4}
# Of one task, into a handler that waits: what the server is started with, and the sink's options.
_SLOW: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "threads": ((), {}),
    "threads, inFlight=4": ((), {"inFlight": "4"}),
    "32 threads": (("--threads", "32"), {}),
    "event loop": (("--aio",), {}),
    "event loop, inFlight=4": (("--aio",), {"inFlight": "4"}),
    "event loop, batch_concurrency=8": (("--aio", "--batch-concurrency", "8"), {}),
    "event loop, batch_concurrency=64": (("--aio", "--batch-concurrency", "64"), {}),
    "event loop, batch_concurrency=64, batchRows=64": (
        ("--aio", "--batch-concurrency", "64"),
        {"batchRows": "64"},
    ),
}


def main() -> int:
    """Measure, print a table, and one JSON object as the last line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark", description=__doc__)
    parser.add_argument("--rows", type=int, default=160_000, help="of a write by the sinks")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--keys", type=int, default=1_000_000, help="in one session; 0: skip")
    parser.add_argument("--keys-s", type=float, default=3600.0, help="end with fewer after that")
    parser.add_argument("--keys-store", choices=("memory", "sqlite"), help="one; else both")
    parser.add_argument("--wait-ms", type=float, default=20.0, help="of a handler that waits")
    parser.add_argument("--wait-s", type=float, default=20.0, help="of each setting, about")
    parts = ("memory", "sqlite", "micro", "workers", "slow", "keys")
    parser.add_argument("--only", choices=parts)
    options = parser.parse_args()
    require_java()
    with tempfile.TemporaryDirectory(prefix="rifl-bench-") as name:
        directory = Path(name)
        os.environ.update(environment(directory))
        spark = _session()
        results: dict[str, Any] = {}
        for store in ("memory:", f"sqlite:///{directory}/rifl.db"):
            kind = store.partition(":")[0]
            if options.only in (None, kind):
                with _books(store) as target:
                    results[kind] = _throughput(spark, target, directory / kind, options)
        with _books("memory:") as target:
            if options.only in (None, "micro"):
                results["micro_batch_ms"] = _micro_batches(spark, target, directory / "micro")
            if options.only in (None, "workers"):
                results["worker_mib"] = _workers(spark, target, options.rows // 4)
        if options.only in (None, "slow"):
            results["slow"] = _slow(directory, options.wait_ms, options.wait_s)
        if options.keys and options.only in (None, "keys"):
            results["keys"] = {
                store.partition(":")[0]: _keys(spark, options, store)
                for store in ("memory:", f"sqlite:///{directory}/keys.db")
                if options.keys_store in (None, store.partition(":")[0])
            }
        spark.stop()
    _print(results)
    print(json.dumps(results), flush=True)
    return 0


def _session() -> SparkSession:
    spark = (
        SparkSession.builder.master("local[2,4]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    rifl.spark.register(spark)
    spark.dataSource.register(_Nothing)
    return spark


@contextlib.contextmanager
def _books(store: str) -> Iterator[str]:
    with ServerProcess("examples.flights.books", "--store", store) as books:
        yield f"127.0.0.1:{books.start()}"


def _rows(spark: SparkSession, rows: int, start: int = 0) -> DataFrame:
    return spark.range(start, start + rows, numPartitions=2).selectExpr(
        "timestamp_seconds(id) as departs",
        "'UA' as carrier",
        "id as number",
        "'EWR' as origin",
        "'SFO' as dest",
        "2565L as miles",
    )


def _throughput(
    spark: SparkSession, target: str, directory: Path, options: argparse.Namespace
) -> dict[str, float]:
    ways: dict[str, Callable[[DataFrame, int], None]] = {
        "blocking": lambda frame, _: frame.foreachPartition(_blocking(target)),
        "pipelined": lambda frame, _: frame.foreachPartition(_by_hand(target)),
        "batch sink": lambda frame, _: _sink(frame.write, target).mode("append").save(),
        "streaming sink": lambda frame, at: _stream(spark, target, directory / str(at), frame),
    }
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    start = 0
    for at in range(options.rounds + 1):  # the first warms up, and does not count
        for way, write in ways.items():
            rows = options.rows // _SHARES.get(way, 1 if at else 8)
            frame = _rows(spark, rows, start)
            start += rows
            if way == "streaming sink":
                frame.write.parquet(str(directory / str(at) / "input"))
            began = time.perf_counter()
            write(frame, at)
            if at:
                seconds[way].append((time.perf_counter() - began) / rows)
    return {way: round(1 / statistics.median(each)) for way, each in seconds.items()}


def _sink(writer: Any, target: str) -> Any:
    return (
        writer.format("rifl")
        .option("target", target)
        .option("method", _METHOD)
        .option("key", "number")
    )


def _stream(spark: SparkSession, target: str, directory: Path, frame: DataFrame) -> None:
    rows = spark.readStream.schema(frame.schema).parquet(str(directory / "input"))
    query = (
        _sink(rows.writeStream, target)
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def _flight(row: Any) -> Any:
    flight = flights_pb2.Flight(
        carrier=row.carrier, number=row.number, origin=row.origin, dest=row.dest, miles=row.miles
    )
    flight.departs.FromDatetime(row.departs)
    return flight


def _blocking(target: str) -> Callable[[Iterable[Any]], None]:
    def send(rows: Iterable[Any]) -> None:
        with grpc.insecure_channel(target) as channel:
            stub = flights_pb2_grpc.BooksStub(channel)
            for row in rows:
                stub.Post(_flight(row), timeout=60)

    return send


def _by_hand(target: str) -> Callable[[Iterable[Any]], None]:
    def send(rows: Iterable[Any]) -> None:
        with grpc.insecure_channel(target) as channel:
            stub = flights_pb2_grpc.BooksStub(channel)
            under_way: list[Any] = []
            for row in rows:
                if len(under_way) >= _PIPELINED:
                    under_way.pop(0).result()
                under_way.append(stub.Post.future(_flight(row), timeout=60))
            for each in under_way:
                each.result()

    return send


class _Told(WriterCommitMessage):
    pass


class _Nothing(DataSource):
    """A Python sink that does nothing: Spark's own floor."""

    @classmethod
    def name(cls) -> str:
        return "nothing"

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802 - Spark's name
        return _NothingWriter()


class _NothingWriter(DataSourceStreamWriter):
    def write(self, iterator: Any) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return _Told()

    def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803 - Spark's name
        pass

    def abort(self, messages: Any, batchId: int) -> None:  # noqa: N803 - Spark's name
        pass


def _slow(directory: Path, wait_ms: float, seconds: float) -> dict[str, int]:
    """Return rows a second of one task into a handler that waits, by setting; without Spark."""
    found: dict[str, int] = {}
    for at, (name, (server, given)) in enumerate(_SLOW.items()):
        store = ("--store", f"sqlite:///{directory}/slow-{at}.db", "--wait-ms", str(wait_ms))
        with ServerProcess("benchmarks.spark.slow", *store, *server) as books:
            target = f"127.0.0.1:{books.start()}"
            options = {"target": target, "method": _METHOD, "key": "number", **given}
            rows, start = 200, 0
            # The first finds how many rows there is time for.
            for _ in range(2):
                numbers = list(range(start, start + rows))
                table = pyarrow.table({"number": numbers, "carrier": ["UA"] * rows})
                plan = WritePlan.make(WriteOptions.read(options), table.schema, stream=False)
                began = time.perf_counter()
                write_task(plan, table.to_batches(), None, "0")
                found[name] = round(rows / (time.perf_counter() - began))
                rows, start = max(200, int(found[name] * seconds)), start + rows
        print(f"{name}: {found[name]} rows a second", flush=True)
    return found


def _micro_batches(spark: SparkSession, target: str, directory: Path) -> dict[str, float]:
    """Median time of a micro-batch of one row, by sink, which take turns."""
    times: dict[str, list[int]] = {"nothing": [], "rifl": []}
    for at in range(4):
        sink = ("nothing", "rifl")[at % 2]
        rows = (
            spark.readStream.format("rate-micro-batch")
            .option("rowsPerBatch", "1")
            .option("numPartitions", "1")
            .load()
            .selectExpr(
                *("timestamp as departs", "'UA' as carrier", "value as number"),
                *("'EWR' as origin", "'SFO' as dest", "2565L as miles"),
            )
        )
        writer = rows.writeStream.format("nothing")
        if sink == "rifl":
            writer = _sink(rows.writeStream, target)
        query = writer.option("checkpointLocation", str(directory / str(at))).start()
        try:
            while query.isActive and (query.lastProgress or {"batchId": 0})["batchId"] < 30:
                query.awaitTermination(1)
            times[sink] += [
                progress["durationMs"]["addBatch"]
                for progress in query.recentProgress
                if progress["batchId"] >= 5
            ]
        finally:
            query.stop()
    medians = {sink: float(statistics.median(each)) for sink, each in times.items()}
    medians["beyond"] = medians["rifl"] - medians["nothing"]
    return medians


def _workers(spark: SparkSession, target: str, rows: int) -> dict[str, float]:
    """The most that a worker process ever held, MiB: that only reads, and of sinks."""
    gateway: Any = spark.sparkContext._gateway

    def peak() -> float:
        return round(max(_peaks(gateway.proc.pid)) / 1024, 1)

    _rows(spark, rows).mapInArrow(lambda batches: batches, _rows(spark, 1).schema).count()
    peaks = {"arrow only": peak()}
    start = rows
    for name, many in (("sink", rows), ("sink, ten times the rows", 10 * rows)):
        _sink(_rows(spark, many, start).write, target).mode("append").save()
        start += many
        peaks[name] = peak()
    return peaks


def _peaks(jvm: int) -> list[int]:
    """Return the most that each Python worker under this JVM was resident with, KiB."""
    parents, peaks = {}, {}
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):
            lines = (line.partition(":") for line in status.read_text().splitlines())
            said = {name: value.strip() for name, _, value in lines}
            if said["Name"].startswith("python") and "VmHWM" in said:
                peaks[int(said["Pid"])] = int(said["VmHWM"].split()[0])
            parents[int(said["Pid"])] = int(said["PPid"])
    # The daemon that workers are forked from is the JVM's child.
    return [peak for pid, peak in peaks.items() if parents.get(parents[pid]) == jvm]


def _keys(spark: SparkSession, options: argparse.Namespace, store: str) -> dict[str, float]:
    """What the server holds for a session of so many rows, written a tenth at a time."""
    keys, part = 0, max(1, options.keys // 10)
    # The service itself keeps nothing: what grows is rifl's.
    server = ServerProcess(
        "examples.flights.books",
        *("--store", store, "--max-keys", str(options.keys + 1), "--count-only"),
    )
    with server as books:
        target = f"127.0.0.1:{books.start()}"
        before = _resident(books.pid)
        began = time.perf_counter()
        while keys < options.keys and time.perf_counter() - began < options.keys_s:
            writer = _sink(_rows(spark, part, keys).write, target).option("session", "large")
            writer.mode("append").save()
            keys += part
            held = _resident(books.pid)
            print(f"{store.partition(':')[0]}: {keys} keys, {held >> 20} MiB", flush=True)
        seconds = time.perf_counter() - began
    return {
        "keys": keys,
        "rows_per_second": round(keys / seconds),
        "bytes_per_key": round((held - before) / keys),
        "server_mib": held >> 20,
    }


def _resident(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _print(results: dict[str, Any]) -> None:
    kinds = [kind for kind in ("memory", "sqlite") if kind in results]
    if kinds:
        print(f"{'rows a second':>18}" + "".join(f"{kind:>12}" for kind in kinds))
        for way in results[kinds[0]]:
            print(f"{way:>18}" + "".join(f"{results[kind][way]:>12}" for kind in kinds))
    if "micro_batch_ms" in results:
        print(f"micro-batch of one row, ms: {results['micro_batch_ms']}")
    if "worker_mib" in results:
        print(f"a worker held at most, MiB: {results['worker_mib']}")
    for store, held in results.get("keys", {}).items():
        print(f"one session, {store}: {held}")


if __name__ == "__main__":
    sys.exit(main())
