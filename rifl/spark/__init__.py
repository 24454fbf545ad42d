"""Spark executors calling deduplicated services, each row once (``rifl-grpc[spark]``).

::

    rifl.spark.register(spark)
    (df.write.format("rifl")
       .option("target", "bank:50051").option("method", "/bank.v1.Bank/Deposit")
       .option("key", "txn_id").mode("append").save())

``df.writeStream.format("rifl")`` takes the same options. ``write`` sends a frame and
returns the rows that failed, ``dead_letters`` reads them back, ``call`` gives replies as
a column, ``session`` handles a named session, and ``spark.read.format("rifl-records")``
reads a store. See docs/spark.md.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from rifl.spark._errors import (
    AlreadyDone,
    DeliveryError,
    IdentityError,
    PlanError,
    RowError,
    SparkError,
    already_done,
)
from rifl.spark._sessions import Session, session

__all__ = [
    "AlreadyDone",
    "DeliveryError",
    "IdentityError",
    "PlanError",
    "RowError",
    "Session",
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

    Again is harmless. Executors need rifl installed. Raises ``ImportError`` without the
    extra.
    """
    with _extra():
        from rifl.spark._records import RecordsDataSource
        from rifl.spark._sink import RiflDataSource

    spark.dataSource.register(RiflDataSource)
    spark.dataSource.register(RecordsDataSource)


def call(df: Any, **arguments: Any) -> Any:
    """Return the frame with a service's replies; see ``rifl.spark._enrichment.call``."""
    with _extra():
        from rifl.spark._enrichment import call as enriched

    return enriched(df, **arguments)


def write(df: Any, **arguments: Any) -> Any:
    """Send rows now, and return those that failed; see ``rifl.spark._frame_write.write``."""
    with _extra():
        from rifl.spark._frame_write import write as written

    return written(df, **arguments)


def dead_letters(source: Any, path: str | None = None, *, session: str | None = None) -> Any:
    """Return dead rows, each once; see ``rifl.spark._frame_write.dead_letters``."""
    with _extra():
        from rifl.spark._frame_write import dead_letters as found

    return found(source, path, session=session)


def settle(dead: Any, store: str, **arguments: Any) -> Any:
    """Say which dead rows ran, by the user's own tables; see ``rifl.spark._settling.settle``."""
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
