"""A streaming query that pays: ``python -m chaos.run.driver --target ... --directory ...``.

Takes the files of ``input``, one a micro-batch, and sends each row by rifl's sink. Prints
a line when the query has started, and ends when all files were taken. Started again
after a kill it goes on from its checkpoint.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pyspark.sql import SparkSession

import rifl.spark


def main() -> int:
    """Run the query to its end, unless it is killed."""
    parser = argparse.ArgumentParser(prog="python -m chaos.run.driver", description=__doc__)
    parser.add_argument("--target", required=True)
    parser.add_argument("--directory", type=Path, required=True)
    options = parser.parse_args()
    spark = (
        # A task that fails is tried four times.
        SparkSession.builder.master("local[2,4]")
        .appName("rifl chaos")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.executor.heartbeatInterval", "60s")
        .config("spark.network.timeout", "600s")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    rifl.spark.register(spark)
    rows = (
        spark.readStream.schema("reference string, account string, cents bigint")
        .option("maxFilesPerTrigger", "1")
        .json(str(options.directory / "input"))
        .repartition("account")
    )
    query = (
        rows.writeStream.format("rifl")
        .option("target", options.target)
        .option("method", "/bank.v1.Bank/Deposit")
        .option("key", "reference")
        .option("batchRows", "10")
        .option("checkpointLocation", str(options.directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    print("started", flush=True)
    query.awaitTermination()
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
