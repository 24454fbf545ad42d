"""The sinks: ``df.write.format("sharedlog")`` and ``df.writeStream`` (DESIGN-LOG §16).

Planning, tasks and commits run in processes of Spark's own. What travels between them are a plan
and what tasks tell; all else is in the log.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow
from pyspark import TaskContext
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from rifl.spark._arrow import arrow_schema, record_batches
from rifl.spark._driver_log import heard
from rifl.spark._errors import DONE
from rifl.spark._freezing import freeze
from rifl.spark._options import column_of
from sharedlog._core.catalog import find_stream
from sharedlog._core.draft import check_spread, tags_for
from sharedlog._core.errors import AlreadyCommitted, LogError, LogForked, SchemaChanged
from sharedlog._core.query.attempt import TaskResult, batch_of
from sharedlog._core.query.closing import Closed, close, remove_write
from sharedlog._core.query.joining import begin_write
from sharedlog._core.query.state import WRITE, Ticket, draw_plan, run_of
from sharedlog._core.stream_schema import declare_schema, find_schema
from sharedlog._core.streams import MAX_TAGS, tag_of
from sharedlog._log.place import Place
from sharedlog._log.resending import until_answered, until_known
from sharedlog.spark._column_rows import ArrowRows, ProtobufRows
from sharedlog.spark._columns import arrow_schema_of, differ, schema_of
from sharedlog.spark._content import Content
from sharedlog.spark._differences import differences
from sharedlog.spark._messages import RawRows
from sharedlog.spark._opened import place_of
from sharedlog.spark._options import SinkError, SinkOptions
from sharedlog.spark._tasks import (
    JOB,
    LogWritePlan,
    TaskWriter,
    batch_ticket,
    now_us,
    stream_ticket,
)
from sharedlog.spark._telling import tell_write

# From PySpark 4.1 on; before, rows come one by one.
_STREAM_ARROW: Any = getattr(datasource, "DataSourceStreamArrowWriter", None)
_STREAM_WRITER: Any = _STREAM_ARROW or datasource.DataSourceStreamWriter


@dataclass(slots=True)
class LogCommitMessage(WriterCommitMessage):
    """What a task tells the driver."""

    result: TaskResult


class Writing:
    """A write as it was planned: for tasks, and for who commits. Picklable."""

    def __init__(self, options: SinkOptions, schema: StructType, *, stream: bool) -> None:
        """Plan; raises ``SinkError``, ``NoSuchStream``, ``LogUnavailable`` before any row."""
        place = place_of(options.url())
        found = place.run(find_stream(options.stream))
        tags = [tag_of(options.stream, each) for each in range(found.substreams)]
        check_spread(tags, tags_for(place.engine.limits.operations, MAX_TAGS))
        self.schema = arrow_schema(schema)
        self.rows = _rows_of(place, options, self.schema)
        self.tags = tags
        job = None if stream else options.name or f"write-{secrets.token_hex(8)}"
        made = job is not None and options.name is None
        if job is not None and made:
            number = until_answered(place, lambda: begin_write(job))
        else:
            number = until_answered(place, draw_plan)
        self.plan = LogWritePlan(options, place.incarnation, number, job, made)
        # Whether the rows of a batch that is run again are compared with those that are committed.
        # Arrow rows of a query without a name are not: that costs time.
        self._compared = options.name is not None or (stream and options.values.format != "arrow")
        tell_write(options, place.name, stream=stream, compared=self._compared)

    def write(self, batches: Iterable[pyarrow.RecordBatch], ticket: Ticket) -> LogCommitMessage:
        """Append one task's rows, pending."""
        context: Any = TaskContext.get()
        turns = itertools.count(context.partitionId() if context is not None else 0)
        writer = TaskWriter(self.place(), ticket, self.plan.options.stream)
        content = Content(sampled=writer.replayed) if self._compared else None
        told = (
            each
            for batch in batches
            for each in self.rows.messages(batch, self.tags, turns, now_us(), content)
        )
        message = LogCommitMessage(writer.write(told, content))
        freeze("write")
        return message

    def place(self) -> Place:
        """Return the log, as this process has it open; raises ``LogForked`` for another one."""
        plan = self.plan
        place = place_of(plan.options.url(), plan.incarnation)
        if place.incarnation != plan.incarnation:
            raise LogForked(f"the write was planned for {plan.incarnation}: this is another log")
        return place


def _rows_of(
    place: Place, options: SinkOptions, schema: pyarrow.Schema
) -> RawRows | ArrowRows | ProtobufRows:
    """Return what makes messages of rows, as the stream's values are declared from now on."""
    form, key = options.values.format, options.key
    if key is not None:
        key = column_of(key, schema.names)
    if form == "raw":
        raw = RawRows(schema, key)
        found = until_answered(place, lambda: find_schema(options.stream))
        if found is not None and "content_type" not in raw.names:
            raise SchemaChanged(
                f"the values of stream {options.stream!r} are declared as {found.format}, and rows "
                f'of raw values do not say what they are: option("valueFormat", "{found.format}"), '
                "or a column content_type; nothing is written"
            )
        return raw
    rows: ArrowRows | ProtobufRows
    if form == "arrow":
        rows = ArrowRows(schema, key)
        declared = arrow_schema_of(rows.schema)
    else:
        known = schema_of(place, options.stream, options.values)
        if known is None:
            raise SinkError(
                f"the values of stream {options.stream!r} are not declared: name the protobuf "
                "message, and its module or descriptorFile"
            )
        declared = known
        rows = ProtobufRows(schema, key, declared)
    until_answered(place, lambda: declare_schema(options.stream, declared, differ))
    return rows


class LogBatchWriter(DataSourceArrowWriter):
    """One batch write; pickled to the tasks, and to the process that commits."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._writing = Writing(options, schema, stream=False)

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> LogCommitMessage:
        """Append a task's rows; within ``foreachBatch`` as those of its micro-batch."""
        return self._writing.write(iterator, batch_ticket(self._writing.plan))

    def commit(self, messages: Sequence[Any]) -> None:
        """Commit what the tasks appended, by one marker."""
        results = check_messages(messages)
        place, plan = self._writing.place(), self._writing.plan
        closed = commit(place, plan.options, results)
        check_again(place, plan.options, closed, results)
        if plan.made:
            until_answered(place, lambda: remove_write(closed.query.name))

    def abort(self, messages: Sequence[Any]) -> None:
        """Nothing is undone; of a write without a name nothing is kept."""
        plan = self._writing.plan
        if plan.made:
            try:
                self._writing.place().run(remove_write(plan.job or ""))
            except LogError as error:
                heard("sharedlog.spark").warning(
                    "%s: what it appended is left to a sweeper: %s", plan.job, error
                )


class LogStreamWriter(_STREAM_WRITER):  # type: ignore[misc]
    """One micro-batch; pickled to the tasks, and made anew where it is committed."""

    def __init__(self, options: SinkOptions, schema: StructType, writing: Writing | None) -> None:
        self._options = options
        self._schema = schema
        self._writing = writing

    def __getstate__(self) -> dict[str, Any]:
        # A PySpark that plans with a data source from elsewhere: plan now.
        if self._writing is None:
            self._writing = Writing(self._options, self._schema, stream=True)
        return self.__dict__

    def write(self, iterator: Iterator[Any]) -> LogCommitMessage:
        """Append a task's rows, pending."""
        writing = self._writing
        if writing is None:
            raise SinkError("this task has no plan")
        rows = iterator if _STREAM_ARROW else record_batches(iterator, writing.schema)
        return writing.write(rows, stream_ticket(writing.plan))

    def commit(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Commit what the tasks appended, by one marker; Spark has not noted it yet."""
        results = check_messages(messages)
        if results[0].ticket.batch != batchId:
            raise SinkError(f"tasks are of {results[0].ticket}, and the commit of batch {batchId}")
        place = place_of(self._options.url())
        closed = commit(place, self._options, results)
        check_again(place, self._options, closed, results)

    def abort(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Do nothing: readers do not see what no marker names."""


def check_messages(messages: Sequence[Any]) -> list[TaskResult]:
    """Return what the tasks told; raises ``SinkError`` if one told nothing."""
    if not messages or any(message is None for message in messages):
        raise SinkError(
            "a task's commit message is missing: in continuous mode Spark never calls the sink's "
            "write and would silently lose all rows; use micro-batches"
        )
    return [message.result for message in messages]


def commit(place: Place, options: SinkOptions, results: Sequence[TaskResult]) -> Closed:
    """Commit a batch, and tell; run again it finds that it did."""
    ticket, batch = results[0].ticket, batch_of(results)._replace(stream=options.stream)
    closed = until_known(place, lambda: close(ticket, batch))
    freeze("commit")
    heard("sharedlog.spark").info(
        "sharedlog %s: batch=%d stream=%s rows=%d entries=%d appends=%d bytes=%d undone=%d "
        "lsn=%d%s",
        *(ticket.name, ticket.batch, options.stream, batch.rows, batch.entries),
        *(sum(each.appends for each in results), sum(each.bytes for each in results)),
        *(closed.undone, closed.query.lsn),
        ", committed before: these rows are discarded" if batch.replayed else "",
    )
    return closed


def check_again(
    place: Place, options: SinkOptions, closed: Closed, results: Sequence[TaskResult]
) -> None:
    """Have a batch that was committed before be the same one, or say that it is not.

    Raises ``AlreadyCommitted`` if nothing but another write under the name explains that: of a
    job, and where one run wrote both, which runs no micro-batch twice.
    """
    query, ticket, told = closed.query, results[0].ticket, batch_of(results)
    if not told.replayed or (query.rows, query.content) == (told.rows, told.content):
        return
    samples = [each.sample for each in results if each.sample is not None]
    both = f"{query.rows} rows{differences(place, options, query, samples)}"
    lost = "or of another stream: nothing of these is in the log"
    if query.identity in (JOB, WRITE):
        raise AlreadyCommitted(
            f"{DONE}: {query.name!r} has committed {both}, and these {told.rows} are others, "
            f"{lost}. Give each write a name of its own"
        )
    if query.closed_run and query.closed_run == run_of(ticket.run):
        raise AlreadyCommitted(
            f"this run has committed {both}, of batch {ticket.batch} as {query.name!r}, and these "
            f"{told.rows} are others, {lost}. Within foreachBatch each write has a name of its own"
        )
    heard("sharedlog.spark").warning(
        "sharedlog %s: batch %d was committed with %s, and run again it has other ones (%d): "
        "the plan is not deterministic, or the checkpoint is a copy",
        *(query.name, ticket.batch, both, told.rows),
    )
