"""The log's sink without its guarantee: each row is there at once, and as often as a task runs.

For what the guarantee costs: no plan, no join, no grant, no marker; the same rows and messages.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from benchmarks.nexmark.schemas import SUBSTREAMS
from rifl.spark._arrow import arrow_schema
from sharedlog._core.streams import tag_of
from sharedlog._log.publisher import Publisher
from sharedlog.spark._column_rows import ArrowRows
from sharedlog.spark._format import LogDataSource
from sharedlog.spark._opened import place_of
from sharedlog.spark._options import SinkOptions
from sharedlog.spark._tasks import now_us

__all__ = ["FORM", "PlainDataSource"]

FORM = "sharedlog-plain"


@dataclass
class _Nothing(WriterCommitMessage):
    """What a task tells: nothing is committed by it."""


class _PlainWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: SinkOptions, schema: pyarrow.Schema) -> None:
        self._options = options
        self._rows = ArrowRows(schema, options.key)

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> WriterCommitMessage:
        """Append a task's rows, each of them committed."""
        context: Any = TaskContext.get()
        turns = itertools.count(context.partitionId())
        publisher = Publisher(place_of(self._options.url()))
        tags = [tag_of(self._options.stream, each) for each in range(SUBSTREAMS)]
        for batch in iterator:
            for told in self._rows.messages(batch, tags, turns, now_us()):
                publisher.publish(told.message)
        return _Nothing()

    def commit(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803 - Spark's name
        """All is there already."""

    def abort(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Nothing can be undone."""


class PlainDataSource(LogDataSource):
    """The format ``sharedlog-plain``."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return FORM

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802 - Spark's name
        """Return what appends."""
        return _PlainWriter(SinkOptions.read(dict(self.options)), arrow_schema(schema))
