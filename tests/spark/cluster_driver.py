"""A driver on a cluster with speculation: one slow task, by the sink and naively.

``python -m tests.spark.cluster_driver``; prints ``done``.
"""

from __future__ import annotations

import argparse
import os
import threading
from collections.abc import Iterable, Iterator
from typing import Any

from pyspark.sql import SparkSession

import rifl.spark
from tests.spark.conftest import METHOD
from tests.spark.naive import naive_sender

_SLOW = 1


def slow_at_first(batches: Iterable[Any]) -> Iterator[Any]:
    """Pass rows on; one partition's first attempt takes very long over it."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    never = threading.Event()
    for batch in batches:
        yield batch
        if context.partitionId() == _SLOW and context.attemptNumber() == 0:
            never.wait(3)


def main() -> None:
    """Write the rows twice."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--master", required=True)
    parser.add_argument("--target", required=True)
    parser.add_argument("--report", required=True)
    options = parser.parse_args()
    spark = (
        SparkSession.builder.master(options.master)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.executor.memory", "512m")
        .config("spark.executorEnv.PYTHONPATH", os.environ["PYTHONPATH"])
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "5")
        .config("spark.speculation", "true")
        .config("spark.speculation.interval", "100ms")
        .config("spark.speculation.multiplier", "1.01")
        .config("spark.speculation.quantile", "0.5")
        .config("spark.speculation.minTaskRuntime", "500ms")
        .config("spark.network.timeout", "600s")
        .getOrCreate()
    )
    rifl.spark.register(spark)
    # Large rows: Spark's workers hand on 64 KiB at a time, not each row.
    frame = spark.range(200, numPartitions=4).selectExpr(
        "concat('r', id) as reference", "rpad('alice', 20000, '!') as account", "id as cents"
    )
    slow = frame.mapInArrow(slow_at_first, frame.schema)
    (
        slow.write.format("rifl")
        .option("target", options.target)
        .option("method", METHOD)
        .option("key", "reference")
        .option("report", options.report)
        .mode("append")
        .save()
    )
    slow.foreachPartition(naive_sender(options.target))
    print("done", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
