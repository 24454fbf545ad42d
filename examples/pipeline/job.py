"""The Spark driver: ``python -m examples.pipeline.job LOG DIRECTORY``.

Reads rides, sums up what each rider pays for those of an hour, and writes bills. Prints
``running``; at a line of its input it takes what is there and prints ``done``. A query that fails
ends it.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession, functions

import sharedlog.spark
from examples.pipeline.rides import BILLS, RIDES

_LOOK_S = 0.1
# A micro-batch has about so many.
_MOST = "50"


def bills(rides: DataFrame) -> DataFrame:
    """Return what each rider pays for an hour's rides, an hour after the last of them."""
    return (
        rides.withWatermark("ended", "1 hour")
        .groupBy("rider", functions.window("ended", "1 hour"))
        .agg({"id": "count", "cents": "sum"})
        .selectExpr(
            "rider", "window.start as hour", "`count(id)` as rides", "`sum(cents)` as cents"
        )
    )


def main(log_url: str, directory: Path) -> int:
    """Run until the input has a line, or the query fails; the exit code."""
    # Spark's own processes import this package, by the same Python.
    os.environ.update(PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1")
    spark = _session(directory)
    sharedlog.spark.register(spark)
    values = {"valueFormat": "protobuf", "module": "examples.pipeline.v1.pipeline_pb2"}
    log = {"log": log_url, "name": "bills", **values}
    rides = (
        spark.readStream.format("sharedlog")
        .options(**log, stream=RIDES, message="pipeline.v1.Ride", maxRowsPerTrigger=_MOST)
        .load()
    )
    query = (
        bills(rides)
        .writeStream.format("sharedlog")
        .options(**log, stream=BILLS, message="pipeline.v1.Bill", key="rider")
        .option("checkpointLocation", str(directory / "checkpoint"))
        .start()
    )
    while query.isActive and query.status["message"].startswith("Initializing"):
        time.sleep(_LOOK_S)
    print("running", flush=True)
    told = threading.Event()
    threading.Thread(target=_listen, args=(told,), daemon=True).start()
    while not told.wait(_LOOK_S):
        if not query.isActive:
            sys.stderr.write(f"{query.exception()}\n")
            return 1
    query.processAllAvailable()
    query.stop()
    spark.stop()
    print("done", flush=True)
    return 0


def _session(directory: Path) -> SparkSession:
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.local.dir": str(directory / "local"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        # A machine that does other things too is silent for a while.
        "spark.executor.heartbeatInterval": "60s",
        "spark.network.timeout": "600s",
    }
    builder = SparkSession.builder.master("local[2,4]").appName("bills")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _listen(told: threading.Event) -> None:
    if not sys.stdin.readline():
        # Its parent process ended.
        os._exit(1)
    told.set()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
