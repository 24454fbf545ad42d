"""The Spark driver of the demo: ``python -m examples.flights.job``.

Books the flights in a directory of Parquet files, as a batch or as a stream, by
rifl's sink or as people do it today: one call for each row of a partition.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

import rifl.spark

__all__ = ["main"]

METHOD = "/flights.v1.Books/Post"
_STRAGGLER = 1
_FAILS = 0


def main() -> int:
    """Run the job to its end, unless it is killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--master", required=True)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--target", required=True)
    parser.add_argument("--mode", choices=("batch", "stream"), required=True)
    parser.add_argument("--behind", choices=("naive", "rifl"), required=True)
    options = parser.parse_args()
    spark = _session(options.master)
    source = options.directory / options.mode
    if options.mode == "batch":
        frame = _hampered(spark.read.parquet(str(source)).repartition(4, "carrier", "number"))
        _book_batch(frame, options)
    else:
        schema = spark.read.parquet(str(source)).schema
        rows = (
            spark.readStream.schema(schema).option("maxFilesPerTrigger", "1").parquet(str(source))
        )
        _book_stream(rows.repartition(2, "dest"), options)
    spark.stop()
    return 0


def _session(master: str) -> SparkSession:
    spark = (
        SparkSession.builder.master(master)
        .appName("flights")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.executor.memory", "768m")
        .config("spark.executorEnv.PYTHONPATH", os.environ["PYTHONPATH"])
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.adaptive.enabled", "false")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "1000")
        .config("spark.speculation", "true")
        .config("spark.speculation.interval", "200ms")
        .config("spark.speculation.multiplier", "1.1")
        .config("spark.speculation.quantile", "0.25")
        .config("spark.speculation.minTaskRuntime", "1s")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    rifl.spark.register(spark)
    return spark


def _options(frame: Any, options: argparse.Namespace) -> Any:
    return (
        frame.format("rifl")
        .option("target", options.target)
        .option("method", METHOD)
        .option("key", "departs,carrier,number")
        .option("report", str(options.directory / "report"))
    )


def _book_batch(frame: DataFrame, options: argparse.Namespace) -> None:
    if options.behind == "rifl":
        writer = _options(frame.write, options).option("session", "flights-2013")
        writer.mode("append").save()
    else:
        frame.foreachPartition(_naive(options.target))


def _book_stream(frame: DataFrame, options: argparse.Namespace) -> None:
    checkpoint = str(options.directory / f"checkpoint-{options.behind}")
    if options.behind == "rifl":
        writer = _options(frame.writeStream, options)
    else:
        send = _naive(options.target)
        writer = frame.writeStream.foreachBatch(lambda rows, _: rows.foreachPartition(send))
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()


def _hampered(frame: DataFrame) -> DataFrame:
    """Let one task fail midway, twice, and another be so slow that Spark starts a copy."""

    def pass_on(batches: Iterable[Any]) -> Iterator[Any]:
        context = TaskContext.get()
        if context is None:
            raise RuntimeError("not a task")
        first = context.attemptNumber() == 0
        never = threading.Event()
        for at, batch in enumerate(batches):
            yield batch
            if context.partitionId() == _FAILS and context.attemptNumber() < 2 and at == 4:
                never.wait(2)  # until what was sent has arrived
                raise RuntimeError("this task was meant to fail")
            if context.partitionId() == _STRAGGLER and first:
                never.wait(1)

    return frame.mapInArrow(pass_on, frame.schema)


def _naive(target: str) -> Callable[[Iterable[Any]], None]:
    def send(rows: Iterable[Any]) -> None:
        import grpc
        from google.protobuf.timestamp_pb2 import Timestamp

        from examples.flights.v1 import flights_pb2, flights_pb2_grpc

        with grpc.insecure_channel(target) as channel:
            stub = flights_pb2_grpc.BooksStub(channel)
            for row in rows:
                departs = Timestamp()
                departs.FromDatetime(row.departs)
                stub.Post(
                    flights_pb2.Flight(
                        departs=departs,
                        carrier=row.carrier,
                        number=row.number,
                        origin=row.origin,
                        dest=row.dest,
                        miles=row.miles,
                        delay=row.delay,
                    ),
                    timeout=60,
                    wait_for_ready=True,
                )

    return send


if __name__ == "__main__":
    sys.exit(main())
