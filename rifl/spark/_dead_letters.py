"""Dead letters, rows that failed for good: their columns, files and frames.

A sink's tasks and its commit run where there is no JVM, so a sink can put rows only
into a directory that all of them see. ``rifl.spark.write`` hands them to Spark
instead, which writes wherever it can.
"""

from __future__ import annotations

import hashlib
import os
import time
import urllib.parse
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as sql

from _rifl_ground.files import make_private
from rifl.spark._arrow import nullable
from rifl.spark._delivery import Delivered
from rifl.spark._errors import PlanError, RowError, SparkError

DEAD_LETTER_COLUMNS = pyarrow.schema(
    [
        ("rifl_session", pyarrow.string()),
        ("rifl_key", pyarrow.binary()),
        ("rifl_code", pyarrow.string()),
        ("rifl_reason", pyarrow.string()),
        ("rifl_details", pyarrow.string()),
        ("rifl_outcome", pyarrow.string()),
        ("rifl_run", pyarrow.string()),
        ("rifl_at", pyarrow.timestamp("us", "UTC")),
    ]
)
# What Spark does not read: files of attempts that may be thrown away, and the token.
_PENDING = "_rifl"
_MARK = "directory"
_INSTEAD = (
    "deadLetter of the sinks is an absolute path of a directory that the driver and all "
    "executors share; for anything else take rifl.spark.write(frame, ...), which returns "
    "the dead rows as a DataFrame that Spark writes wherever it can"
)


def without_dead_letter_columns(names: Iterable[str]) -> list[str]:
    """Leave out the columns that dead letters add: a dead row can be sent unchanged."""
    return [name for name in names if name not in DEAD_LETTER_COLUMNS.names]


def dead_letter_schema(schema: pyarrow.Schema) -> pyarrow.Schema:
    """Return the columns of the rows and ours."""
    return pyarrow.schema([*schema, *DEAD_LETTER_COLUMNS])


def dead_rows(
    batch: pyarrow.RecordBatch, ends: Iterable[Delivered], session: str, run: str
) -> pyarrow.RecordBatch | None:
    """Return the rows that failed, with our columns; None if there are none."""
    failed = [(at, end) for at, end in enumerate(ends) if isinstance(end, RowError)]
    if not failed:
        return None
    rows = batch.take(pyarrow.array([at for at, _ in failed], pyarrow.int64()))
    errors: list[Any] = [error for _, error in failed]
    count = len(errors)
    ours = [
        [session] * count,
        [error.key or None for error in errors],
        [getattr(error, "code", "INVALID_ARGUMENT") for error in errors],
        [error.reason for error in errors],
        [error.text for error in errors],
        [getattr(error, "outcome", "not-executed") for error in errors],
        [run] * count,
        [int(time.time() * 1e6)] * count,
    ]
    columns = [
        pyarrow.array(values, field.type)
        for values, field in zip(ours, DEAD_LETTER_COLUMNS, strict=True)
    ]
    return pyarrow.RecordBatch.from_arrays(
        [*rows.columns, *columns], schema=dead_letter_schema(rows.schema)
    )


def prepare_directory(path: str) -> str:
    """Make the directory ready on the driver; its token, by which executors know it.

    Raises ``PlanError`` for a path that is not an absolute one of a local or shared
    directory, and where it cannot be made.
    """
    pending = _directory(path) / _PENDING
    token = pending / _MARK
    try:
        pending.mkdir(parents=True, exist_ok=True)
        if not token.exists():
            fresh = pending / f".{uuid.uuid4().hex}"
            fresh.write_text(uuid.uuid4().hex)
            try:
                os.link(fresh, token)  # the first one stands
            except FileExistsError:
                pass
            except OSError:  # no links on this file system
                fresh.replace(token)
            fresh.unlink(missing_ok=True)
        return token.read_text()
    except OSError as error:
        raise PlanError(f"the dead-letter path {path!r} cannot be used: {error}") from error


def _directory(path: str) -> Path:
    if path.startswith("file:"):
        parts = urllib.parse.urlsplit(path)
        if parts.netloc not in ("", "localhost"):
            raise PlanError(f"the dead-letter path {path!r} names another host; {_INSTEAD}")
        path = urllib.parse.unquote(parts.path)
    elif ":" in path.split("/", 1)[0]:
        raise PlanError(f"the dead-letter path {path!r} is no directory here; {_INSTEAD}")
    if not path.startswith("/"):
        # Each process would take it from where it was started.
        raise PlanError(f"the dead-letter path {path!r} is relative; {_INSTEAD}")
    return Path(path)


class DeadLetterFile:
    """One task attempt's file: written beside the directory, named in its message.

    The file appears where readers look only when the driver publishes it, so what
    an attempt wrote that Spark threw away is never read. Its name holds the run:
    another run, of the same session too, never takes its place. Raises ``SparkError``,
    before any row is sent, where the directory is not the driver's.
    """

    def __init__(
        self, path: str, token: str, schema: pyarrow.Schema, session: str, run: str, attempt: str
    ) -> None:
        self._pending = _directory(path) / _PENDING
        self._schema = dead_letter_schema(nullable(schema))
        self._session = session
        self._run = run
        digest = hashlib.sha256(session.encode()).hexdigest()[:16]
        self._name = f"part-{digest}-{run}-{attempt}.parquet"
        self._writer: Any = None
        file = self._pending / _MARK
        try:
            same = file.read_text() == token
        except OSError:
            same = False
        if not same:
            raise SparkError(
                f"the dead-letter path {path!r} is not the driver's directory on this "
                f"executor, and nothing was sent; {_INSTEAD}"
            )

    def put(self, batch: pyarrow.RecordBatch, ends: Iterable[Delivered]) -> int:
        """Write the rows that failed; how many."""
        dead = dead_rows(batch, ends, self._session, self._run)
        if dead is None:
            return 0
        if self._writer is None:
            file = self._pending / self._name
            make_private(file)
            self._writer = pyarrow.parquet.ParquetWriter(file, self._schema)
        columns = [
            column if column.type == field.type else column.cast(field.type)
            for column, field in zip(dead.columns, self._schema, strict=True)
        ]
        self._writer.write_batch(pyarrow.RecordBatch.from_arrays(columns, schema=self._schema))
        return int(dead.num_rows)

    def close(self) -> tuple[str, ...]:
        """Finish the file; its name, if there is one."""
        if self._writer is None:
            return ()
        self._writer.close()
        return (self._name,)


def publish_files(path: str, names: Iterable[str]) -> None:
    """Move files of committed attempts where readers look; again is the same as once.

    Raises ``SparkError`` for one that is neither there nor where it was written.
    """
    directory = _directory(path)
    missing = []
    for name in names:
        try:
            (directory / _PENDING / name).replace(directory / name)
        except FileNotFoundError:
            if not (directory / name).exists():
                missing.append(name)
    if missing:
        raise SparkError(
            f"dead letters are missing in {path!r}: {', '.join(missing)}. Their rows were "
            "neither executed nor put aside; write again under the session's name. "
            f"{_INSTEAD}"
        )


def drop_files(path: str, names: Iterable[str]) -> None:
    """Delete files of attempts that were thrown away."""
    for name in names:
        (_directory(path) / _PENDING / name).unlink(missing_ok=True)


def dead_letters(
    source: SparkSession | DataFrame, path: str | None = None, *, session: str | None = None
) -> DataFrame:
    """Return dead rows that were put aside, each key of a session once, the latest.

    ``source`` is a Spark session and ``path`` a directory of the sinks' option
    ``deadLetter`` (or any Parquet that ``write``'s rows went into), or it is such a frame
    itself. ``session`` keeps one session's. Runs of a named session put the same row aside
    again, so files have it several times; a row without a key is there as often as it was
    put aside, with ``rifl_run`` and ``rifl_at``.

    The frame can be written again unchanged; the write leaves rifl's columns out. Under
    the same session what the service answered is answered again, and what was not
    executed is tried. Raises ``PlanError`` if the columns are not those of dead letters.
    """
    if isinstance(source, DataFrame):
        if path is not None:
            raise PlanError("dead_letters takes a frame, or a Spark session and a path")
        frame = source
    elif path is None:
        raise PlanError("dead_letters takes a Spark session and a path, or a frame")
    else:
        frame = source.read.parquet(path)
    missing = [name for name in DEAD_LETTER_COLUMNS.names if name not in frame.columns]
    if missing:
        raise PlanError(f"these are no dead letters: there is no column {missing[0]!r}")
    if session is not None:
        frame = frame.where(sql.col("rifl_session") == session)
    keyed = frame.where(sql.col("rifl_key").isNotNull())
    latest = Window.partitionBy("rifl_session", "rifl_key").orderBy(
        sql.col("rifl_at").desc(), sql.col("rifl_run").desc()
    )
    once = keyed.withColumn("rifl_place", sql.row_number().over(latest))
    once = once.where(sql.col("rifl_place") == 1).drop("rifl_place")
    return once.unionAll(frame.where(sql.col("rifl_key").isNull()))
