"""A task of the log's sink whose first attempt becomes a zombie: Spark gives it up, it goes on.

The files are those of ``zombies``; what it appends, it has appended when it tells so.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark import TaskContext

from sharedlog.spark import _tasks
from sharedlog.spark._format import LogDataSource
from sharedlog.spark._sink import LogBatchWriter, LogStreamWriter
from tests.helpers.waiting import until
from tests.spark.signalled import SIGNALS
from tests.spark.zombies import told

_LATE_PARTITION = 1
_WAIT_S = 300.0


def _late(rows: Iterator[Any], name: str) -> Iterator[Any]:
    """Pass a task's batches on: as the zombie half of them late, as its copy not too early."""
    context = TaskContext.get()
    assert context is not None
    signals = Path(os.environ[SIGNALS])
    half, go = signals / f"{name}.half", signals / f"{name}.go"
    if context.partitionId() != _LATE_PARTITION:
        yield from rows
    elif context.attemptNumber() > 0:
        # Two attempts at once: this one only starts when the other has appended.
        until(half.exists, f"{half}", _WAIT_S)
        yield from rows
    elif half.exists():
        # A later micro-batch of the same query.
        yield from rows
    else:
        # All of them now: Spark will take its end of the pipe away.
        taken = list(rows)
        middle = len(taken) // 2
        yield from taken[:middle]
        # Asked for the next one, it has appended those.
        half.write_text(str(sum(each.num_rows for each in taken[:middle])))
        until(go.exists, f"{go}", _WAIT_S)
        yield from taken[middle:]


def _written(write: Any, rows: Iterator[Any], name: str) -> Any:
    # Each row is an append of its own.
    _tasks._ENTRIES = 1
    try:
        message = write(_late(rows, name))
    except Exception as error:
        told(name, f"{type(error).__name__}: {error}")
        raise
    told(name, f"rows={message.result.rows}")
    return message


class _LateBatchWriter(LogBatchWriter):
    def write(self, iterator: Iterator[Any]) -> Any:
        return _written(super().write, iterator, self.trap)  # type: ignore[attr-defined]


class _LateStreamWriter(LogStreamWriter):
    def write(self, iterator: Iterator[Any]) -> Any:
        return _written(super().write, iterator, self.trap)


class LateLogDataSource(LogDataSource):
    """The format ``sharedlog-late``, with the option ``trap``, which names the files."""

    def __init__(self, options: Any) -> None:
        self._trap = options.pop("trap")
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "sharedlog-late"

    def writer(self, schema: Any, overwrite: bool) -> Any:
        """Plan a batch write."""
        writer: Any = super().writer(schema, overwrite)
        writer.__class__, writer.trap = _LateBatchWriter, self._trap
        return writer

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802 - Spark's name
        """Plan a micro-batch."""
        writer = super().streamWriter(schema, overwrite)
        writer.__class__, writer.trap = _LateStreamWriter, self._trap
        return writer
