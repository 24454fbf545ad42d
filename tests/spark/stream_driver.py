"""A driver of two queries over the same files: the sink's, and what people write today.

``python -m tests.spark.stream_driver``; ends when all files were taken. Where ``hold``
is among the signals the naive query waits for the kill when it has sent a micro-batch,
before Spark notes it, and the sink's begins after that: so each kill finds both at work.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import rifl.spark
from tests.helpers.waiting import until
from tests.spark.conftest import METHOD, SLOW_S
from tests.spark.naive import naive_sender
from tests.spark.signalled import SIGNALS, SignalledDataSource


def main() -> None:
    """Run both queries to their ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", required=True)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--cores", type=int, required=True)
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--aqe", choices=("true", "false"), required=True)
    options = parser.parse_args()
    signals = Path(os.environ[SIGNALS])
    spark = (
        SparkSession.builder.master(f"local[{options.cores},4]")
        .config("spark.sql.adaptive.enabled", options.aqe)
        .config("spark.sql.shuffle.partitions", str(options.partitions))
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "4")
        .config("spark.executor.heartbeatInterval", "60s")
        .getOrCreate()
    )
    gateway: Any = spark.sparkContext._gateway
    (signals / "driver.pid").write_text(str(gateway.proc.pid))
    rifl.spark.register(spark)
    spark.dataSource.register(SignalledDataSource)
    rows = (
        spark.readStream.schema("reference string, account string, cents bigint")
        .option("maxFilesPerTrigger", "1")
        .json(str(options.directory / "input"))
        .repartition("account")
    )
    send = naive_sender(options.target)
    held = signals / "held"

    def book(frame: Any, batch: int) -> None:
        frame.foreachPartition(send)
        if (signals / "hold").exists():
            held.touch()
            until(lambda: gateway.proc.poll() is not None, "the kill", SLOW_S)

    naive = (
        rows.writeStream.foreachBatch(book)
        .option("checkpointLocation", str(options.directory / "naive"))
        .trigger(availableNow=True)
        .start()
    )
    if (signals / "hold").exists():
        until(held.exists, "a naive micro-batch", SLOW_S)
    exact = (
        rows.writeStream.format("rifl-signalled")
        .option("target", options.target)
        .option("method", METHOD)
        .option("key", "reference")
        .option("batchRows", "4")
        .option("report", str(options.directory / "report"))
        .option("checkpointLocation", str(options.directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    exact.awaitTermination()
    naive.awaitTermination()
    print("done", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
