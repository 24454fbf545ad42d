"""Spark over a log: streams that queries read and write (DESIGN-LOG §16; ``rifl-grpc[spark]``).

::

    sharedlog.spark.register(spark)
    (spark.readStream.format("sharedlog")
       .option("log", "postgresql://...").option("stream", "orders").load())

    (rows.writeStream.format("sharedlog")
       .option("log", "postgresql://...").option("stream", "paid").option("name", "pay").start())

``spark.read`` and ``df.write`` take the same options. A micro-batch that is planned again, by
whatever driver, has the same rows, and is committed once. See docs/reference/spark-log.md.

- ``_format``: the data source; ``_options``: the options of both, checked
- ``_source``: its readers; ``_offsets``: what their offsets say; ``_columns``: messages as rows
- ``_sink``: its writers; ``_tasks``: what a task appends; ``_messages``: rows as messages,
  ``_column_rows``: those with columns of their own; ``_message_types``: of protobuf
- ``_content``: what rows are told by; ``_differences``: how many of a job run again are others
- ``_declaring``: columns that a program declares without Spark
- ``_filters``: what a batch query has to read at all
- ``_telling``: what planners tell in the driver's log; ``_listening``: a listener of queries
- ``_opened``: the log, opened once in each process
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sharedlog.spark._options import SinkError, SourceError

if TYPE_CHECKING:
    from sharedlog.spark._listening import LogQueryListener

__all__ = [
    "LogQueryListener",
    "SinkError",
    "SourceError",
    "appending",
    "declare_columns",
    "register",
]


def register(spark: Any) -> None:
    """Register the format ``sharedlog`` with a Spark session; a second call is harmless.

    Executors need this package installed, and access to the log. DATA_SOURCE_NOT_FOUND in
    a thread of yours: see ``rifl.spark.register``. In SQL ``CREATE TEMPORARY VIEW
    v (value STRING) USING sharedlog OPTIONS (log '...', stream '...')`` is read by SELECT and
    written by INSERT INTO. Spark 4.3 gives Python none of the OPTIONS of a CREATE TABLE: there
    each INSERT INTO has them, ``INSERT INTO t WITH ('log' = '...', 'stream' = '...')``. Raises
    ``ImportError`` without the extra.
    """
    try:
        from rifl.spark._registering import register_formats
        from sharedlog.spark._format import LogDataSource
    except ImportError as error:
        text = f"sharedlog.spark needs the extra: pip install 'rifl-grpc[spark]' ({error})"
        raise ImportError(text) from error
    register_formats(spark, LogDataSource)


def appending(**options: str) -> Callable[[Any, int], None]:
    """Return a function for ``foreachBatch`` that appends a micro-batch's rows, once.

    ``options``: of the sink (``log_env`` is ``logEnv``). ``name`` is required: each such function
    of a query needs its own. For update and complete mode, in which Spark supports no Python sink,
    and in Spark Connect.
    """
    given = {name.replace("_", ""): value for name, value in options.items()}
    if not given.get("name"):
        raise SinkError('name what is appended within foreachBatch: appending(name="...")')

    def append(frame: Any, batch_id: int) -> None:
        of = {**given, "batchid": str(batch_id)}
        frame.write.format("sharedlog").options(**of).mode("append").save()

    return append


def declare_columns(log: Any, stream: str, schema: Any) -> Any:
    """Declare the columns of a stream of Arrow messages; return the schema to write them with.

    For a program that writes the stream before a query does; it needs pyarrow, and no Spark.
    ``log``: an open ``sharedlog.Log``; ``schema``: a ``pyarrow.Schema``, of which names and types
    count. A message's value is an Arrow stream of that schema, its content type
    ``application/vnd.apache.arrow.stream``. A second call with the same schema is harmless.

    Raises ``SchemaChanged`` if other columns are declared, ``NoSuchStream``, ``SinkError`` if two
    columns have one name, and ``InvalidRequest`` for a log over gRPC.
    """
    from sharedlog.spark._declaring import declare_columns as declare

    return declare(log, stream, schema)


def __getattr__(name: str) -> Any:
    if name != "LogQueryListener":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Workers need none, and it needs PySpark.
    try:
        from sharedlog.spark import _listening
    except ImportError as error:
        text = f"sharedlog.spark needs the extra: pip install 'rifl-grpc[spark]' ({error})"
        raise ImportError(text) from error
    found = globals()[name] = _listening.LogQueryListener
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
