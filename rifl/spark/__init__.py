"""Spark executors calling deduplicated services, each row once (``rifl-grpc[spark]``).

::

    rifl.spark.register(spark)
    (df.write.format("rifl")
       .option("target", "bank:50051").option("method", "/bank.v1.Bank/Deposit")
       .option("key", "txn_id").option("session", "deposits of 2026-11-20")
       .mode("append").save())

``df.writeStream.format("rifl")`` takes the same options. ``write`` sends a frame and
returns the rows that failed, ``dead_letters`` reads them back, ``call`` gives replies as
a column, ``session`` handles a named session, and ``spark.read.format("rifl-records")``
reads a store. See docs/reference/spark.md.

What Spark and users call:

- ``_sink``: the data source ``rifl``: its writers, their tasks, commit and abort
- ``_source``: the data source ``rifl-records``
- ``_registering``: formats made known to a session, the log's, too
- ``_write``, ``_call``: ``write`` and ``call`` of a DataFrame
- ``_dead_letters``: rows that failed for good: their columns, files and frames; ``_settling``: what
  became of those of unknown outcome
- ``_sessions``: a named session as users open and close it
- ``_listening``, ``_query_metrics``: a listener of streaming queries, and its metrics
- ``_errors``: the exceptions

What a write is, decided on the driver:

- ``_options``: the options, checked
- ``_driver``: what the driver asks the server: the method, sessions, their end
- ``_descriptors``: the method's messages
- ``_write_plan``: all of it, for the tasks; how a task joins its session
- ``_session_names``: which session a row's key belongs to, and when sessions close (the rules)
- ``_report``: what became of the rows, counted and told; ``_driver_log``: where, and what a plan
  tells

What a task does:

- ``_spark_task``: what Spark tells it, for the log's sink, too
- ``_tasks``: which micro-batch and attempt it is
- ``_checkpoints``: where its query's checkpoint is, for the log's sink, too
- ``_freezing``: what a worker has loaded, kept from the collector of garbage
- ``_arrow``: Spark's schemas and rows as Arrow's
- ``_keys``, ``_key_format``: a row's key, of the columns that name it; the key's bytes
- ``_requests``, ``_request_fields``: a row's request message, and the fields of it
- ``_connections``: channels of workers and of the driver
- ``_delivery``: rows sent in batched calls, and how many a call carries
- ``_replies``: response messages as columns, for ``call``
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rifl.spark._errors import (
    AlreadyDone,
    DeliveryError,
    IdentityError,
    PlanError,
    RowError,
    SparkError,
    already_done,
)

if TYPE_CHECKING:
    from rifl.spark._listening import QueryListener
    from rifl.spark._sessions import NamedSession, session

__all__ = [
    "AlreadyDone",
    "DeliveryError",
    "IdentityError",
    "NamedSession",
    "PlanError",
    "QueryListener",
    "RowError",
    "SparkError",
    "already_done",
    "call",
    "dead_letters",
    "register",
    "session",
    "settle",
    "write",
]


def register(spark: Any) -> None:
    """Make the formats ``rifl`` and ``rifl-records`` known to a Spark session.

    Again is harmless, as is another session that has them. Executors need rifl installed. In SQL
    ``CREATE TEMPORARY VIEW v (reference STRING, cents BIGINT) USING rifl OPTIONS (target '...',
    method '...', key 'reference')`` is written by INSERT INTO. Spark 4.3 gives Python none of the
    OPTIONS of a CREATE TABLE: there each INSERT INTO has them,
    ``INSERT INTO t WITH ('target' = '...')``.

    Spark looks for a format in the session that is active in its thread, else in the program's
    first one. Registered with another session, such as ``newSession()`` or a notebook's, it is
    DATA_SOURCE_NOT_FOUND to writes and queries that a thread of yours starts, an
    ``InheritableThread``, too, until the thread makes its session the active one:
    ``spark.createDataFrame([(1,)], "one int")`` does. Raises ``ImportError`` without the extra.
    """
    with _extra():
        from rifl.spark._registering import register_formats
        from rifl.spark._sink import RiflDataSource
        from rifl.spark._source import RecordsDataSource

    register_formats(spark, RiflDataSource, RecordsDataSource)


def call(df: Any, **arguments: Any) -> Any:
    """Return the frame with a service's replies; see ``rifl.spark._call.call``."""
    with _extra():
        from rifl.spark._call import call as enriched

    return enriched(df, **arguments)


def write(df: Any, **arguments: Any) -> Any:
    """Send rows now, and return those that failed; see ``rifl.spark._write.write``."""
    with _extra():
        from rifl.spark._write import write as written

    return written(df, **arguments)


def dead_letters(source: Any, path: str | None = None, *, session: str | None = None) -> Any:
    """Return dead rows, each once; see ``rifl.spark._dead_letters.dead_letters``."""
    with _extra():
        from rifl.spark._dead_letters import dead_letters as found

    return found(source, path, session=session)


def settle(dead: Any, store: str, **arguments: Any) -> Any:
    """Say which dead rows ran, by your own tables; see ``rifl.spark._settling.settle``."""
    with _extra():
        from rifl.spark._settling import settle as settled

    return settled(dead, store, **arguments)


@contextlib.contextmanager
def _extra() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        text = f"rifl.spark needs the extra: pip install 'rifl-grpc[spark]' ({error})"
        raise ImportError(text) from error


def __getattr__(name: str) -> Any:
    if name == "QueryListener":
        with _extra():
            from rifl.spark import _listening as module
    elif name in ("NamedSession", "session"):
        # Workers, and the sinks and sources of a log, need no client.
        from rifl.spark import _sessions as module  # type: ignore[no-redef]
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(module, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
