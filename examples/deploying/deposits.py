"""A Spark job that pays a day's deposits in, each once; spark.yaml runs it on Kubernetes.

``spark-submit examples/deploying/deposits.py --rows PATH --target HOST:PORT --session NAME``: rows
are JSON with ``reference``, ``account`` and ``cents``.
"""

from __future__ import annotations

import argparse

from pyspark.sql import SparkSession

import rifl.spark

_COLUMNS = "reference string, account string, cents bigint"


def main() -> None:
    """Send all rows; run again it books none of them twice."""
    parser = argparse.ArgumentParser(prog="deposits.py")
    for name in ("rows", "target", "session"):
        parser.add_argument(f"--{name}", required=True)
    given = parser.parse_args()
    spark = SparkSession.builder.getOrCreate()
    rifl.spark.register(spark)
    (
        spark.read.schema(_COLUMNS)
        .json(given.rows)
        .write.format("rifl")
        .option("target", given.target)
        .option("method", "/bank.v1.Bank/Deposit")
        .option("key", "reference")
        .option("session", given.session)
        .mode("append")
        .save()
    )
    spark.stop()


if __name__ == "__main__":
    main()
