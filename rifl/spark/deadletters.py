"""Rows that failed for good, put aside with their keys and reasons, once each."""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.fs
import pyarrow.parquet

from rifl.spark.delivery import Delivered
from rifl.spark.errors import PlanError, RowError

__all__ = ["DeadLetters", "dead_letter_schema", "drop_files", "open_path", "publish_files"]

_OURS = (
    ("rifl_session", pyarrow.string()),
    ("rifl_key", pyarrow.binary()),
    ("rifl_code", pyarrow.string()),
    ("rifl_reason", pyarrow.string()),
    ("rifl_details", pyarrow.string()),
    ("rifl_outcome", pyarrow.string()),
)
# What Spark does not read: files of attempts that may be thrown away.
_PENDING = "_rifl"


def dead_letter_schema(schema: pyarrow.Schema) -> pyarrow.Schema:
    """Return the columns of the rows and ours; raises ``PlanError`` where they clash."""
    clash = sorted({name for name, _ in _OURS} & set(schema.names))
    if clash:
        raise PlanError(f"the column {clash[0]!r} has a name that dead letters add")
    return pyarrow.schema([*schema, *(pyarrow.field(name, kind) for name, kind in _OURS)])


def open_path(path: str) -> tuple[Any, str]:
    """Return the file system and the path on it; raises ``PlanError``."""
    try:
        if "://" in path or path.startswith("file:"):
            found: tuple[Any, str] = pyarrow.fs.FileSystem.from_uri(path)
            return found
    except (OSError, ValueError) as error:
        raise PlanError(f"the dead-letter path {path!r} cannot be used: {error}") from error
    return pyarrow.fs.LocalFileSystem(), str(Path(path).absolute())


class DeadLetters:
    """One task attempt's file: written beside the directory, named in its message.

    The file appears where readers look only when the driver publishes it, so what
    an attempt wrote that Spark threw away is never read.
    """

    def __init__(self, path: str, schema: pyarrow.Schema, session: str, attempt: str) -> None:
        self._system, self._directory = open_path(path)
        self._schema = dead_letter_schema(schema)
        self._session = session
        digest = hashlib.sha256(session.encode()).hexdigest()[:16]
        self._name = f"part-{digest}-{attempt}.parquet"
        self._writer: Any = None

    def put(self, batch: pyarrow.RecordBatch, ends: Iterable[Delivered]) -> int:
        """Write the rows that failed; how many."""
        failed = [(at, end) for at, end in enumerate(ends) if isinstance(end, RowError)]
        if not failed:
            return 0
        rows = batch.take(pyarrow.array([at for at, _ in failed], pyarrow.int64()))
        errors: list[Any] = [error for _, error in failed]
        ours = [
            [self._session] * len(errors),
            [error.key or None for error in errors],
            [getattr(error, "code", "INVALID_ARGUMENT") for error in errors],
            [error.reason for error in errors],
            [error.text for error in errors],
            [getattr(error, "outcome", "not-executed") for error in errors],
        ]
        columns = [
            column.cast(field.type) if column.type != field.type else column
            for column, field in zip(rows.columns, self._schema, strict=False)
        ]
        columns += [
            pyarrow.array(values, kind) for values, (_, kind) in zip(ours, _OURS, strict=True)
        ]
        if self._writer is None:
            self._system.create_dir(posixpath.join(self._directory, _PENDING), recursive=True)
            self._writer = pyarrow.parquet.ParquetWriter(
                posixpath.join(self._directory, _PENDING, self._name),
                self._schema,
                filesystem=self._system,
            )
        self._writer.write_batch(pyarrow.RecordBatch.from_arrays(columns, schema=self._schema))
        return len(failed)

    def close(self) -> tuple[str, ...]:
        """Finish the file; its name, if there is one."""
        if self._writer is None:
            return ()
        self._writer.close()
        return (self._name,)


def publish_files(path: str, names: Iterable[str]) -> None:
    """Move files of committed attempts where readers look; again is the same as once."""
    system, directory = open_path(path)
    for name in names:
        pending = posixpath.join(directory, _PENDING, name)
        if system.get_file_info(pending).type != pyarrow.fs.FileType.NotFound:
            system.move(pending, posixpath.join(directory, name))


def drop_files(path: str, names: Iterable[str]) -> None:
    """Delete files of attempts that were thrown away."""
    system, directory = open_path(path)
    for name in names:
        pending = posixpath.join(directory, _PENDING, name)
        if system.get_file_info(pending).type != pyarrow.fs.FileType.NotFound:
            system.delete_file(pending)
