"""A driver on a cluster with speculation: one zombie task for each way to write.

``python -m tests.spark.cluster_driver``; prints the name of each write when Spark has
committed it, and then waits for the end of its zombie.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import rifl.spark
from tests.helpers.waiting import until
from tests.spark.conftest import METHOD, SLOW_S
from tests.spark.naive import naive_sender
from tests.spark.signalled import SIGNALS
from tests.spark.zombies import LateDataSource, late, told

_ROWS = 200


def session(master: str) -> SparkSession:
    """Return a session with speculation, in which a slow attempt becomes a zombie."""
    return (
        SparkSession.builder.master(master)
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.executor.memory", "512m")
        .config("spark.executorEnv.PYTHONPATH", os.environ["PYTHONPATH"])
        .config(f"spark.executorEnv.{SIGNALS}", os.environ[SIGNALS])
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "5")
        .config("spark.speculation", "true")
        .config("spark.speculation.interval", "100ms")
        .config("spark.speculation.multiplier", "1.01")
        .config("spark.speculation.quantile", "0.5")
        .config("spark.speculation.minTaskRuntime", "300ms")
        # What makes a zombie: Spark forgets the slow attempt, but does not kill its process.
        .config("spark.python.task.killTimeout", "600s")
        .getOrCreate()
    )


def _naive(target: str, effects: Path) -> Callable[[Iterable[Any]], None]:
    send = naive_sender(target)

    def late_rows(rows: Iterable[Any]) -> None:
        send(late(rows, "naive", effects))
        told("naive", "sent")

    return late_rows


def main() -> None:
    """Write the rows in four ways."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--master", required=True)
    parser.add_argument("--target", required=True)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--effects", type=Path, required=True)
    options = parser.parse_args()
    spark = session(options.master)
    rifl.spark.register(spark)
    spark.dataSource.register(LateDataSource)

    def rows(prefix: str) -> DataFrame:
        return spark.range(_ROWS, numPartitions=4).selectExpr(
            f"concat('{prefix}', id) as reference", "'alice' as account", "id as cents"
        )

    def sink(writer: Any, name: str) -> Any:
        return (
            writer.format("rifl-late")
            .option("name", name)
            .option("effects", str(options.effects))
            .option("target", options.target)
            .option("method", METHOD)
            .option("key", "reference")
        )

    def batch(name: str, **more: str) -> None:
        sink(rows(f"{name}-").write, name).options(**more).mode("append").save()

    def stream() -> None:
        for file in range(2):
            rows(f"stream-{file}-").write.mode("append").json(str(options.directory / "input"))
        files = (
            spark.readStream.schema("reference string, account string, cents bigint")
            # Each of the two writes above made four files.
            .option("maxFilesPerTrigger", "4")
            .json(str(options.directory / "input"))
        )
        query = (
            sink(files.writeStream, "stream")
            .option("checkpointLocation", str(options.directory / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    signals = Path(os.environ[SIGNALS])
    for name, write in (
        ("run", lambda: batch("run")),
        ("named", lambda: batch("named", session="nightly")),
        ("stream", stream),
        ("naive", lambda: rows("naive-").foreachPartition(_naive(options.target, options.effects))),
    ):
        write()
        print(name, flush=True)
        until((signals / f"{name}.end").exists, f"the zombie of {name}", SLOW_S)
    spark.stop()
    print("done", flush=True)


if __name__ == "__main__":
    main()
