"""Spark over a log: streams as sources of queries (DESIGN-LOG §16; ``rifl-grpc[spark]``).

::

    sharedlog.spark.register(spark)
    (spark.readStream.format("sharedlog")
       .option("log", "postgresql://...").option("stream", "orders").load())

``spark.read`` takes the same options. A micro-batch that is planned again, by whatever driver, has
the same rows. See docs/spark-log.md.

- ``_source``: the data source, its readers; ``_offsets``: what its offsets say
- ``_options``: the options, checked
- ``_opened``: the log, opened once in each process
- ``_rows``: messages as Arrow batches
"""

from __future__ import annotations

from typing import Any

from sharedlog.spark._options import SourceError

__all__ = ["SourceError", "register"]


def register(spark: Any) -> None:
    """Make the format ``sharedlog`` known to a Spark session; again is harmless.

    Executors need this package installed, and have to reach the log. Raises ``ImportError``
    without the extra.
    """
    try:
        from sharedlog.spark._source import LogDataSource
    except ImportError as error:
        text = f"sharedlog.spark needs the extra: pip install 'rifl-grpc[spark]' ({error})"
        raise ImportError(text) from error
    spark.dataSource.register(LogDataSource)
