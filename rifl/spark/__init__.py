"""Spark executors calling deduplicated services, each row once (``rifl[spark]``).

::

    rifl.spark.register(spark)
    (df.write.format("rifl")
       .option("target", "bank:50051").option("method", "/bank.v1.Bank/Deposit")
       .option("key", "txn_id").mode("append").save())

See docs/spark.md.
"""

from __future__ import annotations

from typing import Any

from rifl.spark.errors import DeliveryError, IdentityError, PlanError, RowError, SparkError

__all__ = [
    "DeliveryError",
    "IdentityError",
    "PlanError",
    "RowError",
    "SparkError",
    "register",
]


def register(spark: Any) -> None:
    """Make the format ``rifl`` known to a Spark session. Again is harmless."""
    from rifl.spark.sink import RiflDataSource

    spark.dataSource.register(RiflDataSource)
