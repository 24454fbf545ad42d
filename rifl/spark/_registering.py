"""Formats made known to a Spark session; used for the log's, too."""

from __future__ import annotations

from typing import Any


def register_formats(spark: Any, *formats: type[Any]) -> None:
    """Make data sources known to a session.

    Spark refuses a name that it finds already, and looks for it in the session that is active in
    this thread. So this one is active meanwhile. A Connect server sees to that by itself.
    """
    if not hasattr(spark, "_jsparkSession"):
        for each in formats:
            spark.dataSource.register(each)
        return
    # PySpark has no public name for these.
    sessions = spark._jvm.org.apache.spark.sql.classic.SparkSession
    before = sessions.getActiveSession()
    sessions.setActiveSession(spark._jsparkSession)
    try:
        for each in formats:
            spark.dataSource.register(each)
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()
