"""The sinks: ``df.write.format("rifl")`` and ``df.writeStream.format("rifl")``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from rifl.spark._errors import IdentityError, PlanError
from rifl.spark._options import WriteOptions
from rifl.spark._plans import WritePlan
from rifl.spark._rows import arrow_schema, record_batches
from rifl.spark._tasks import named_micro_batch, this_attempt, this_micro_batch
from rifl.spark._writing import (
    TaskResult,
    check_messages,
    commit_batch,
    commit_stream,
    discard,
    write_task,
)

# From PySpark 4.1 on; before, rows come one by one.
_STREAM_ARROW: Any = getattr(datasource, "DataSourceStreamArrowWriter", None)
_STREAM_WRITER: Any = _STREAM_ARROW or datasource.DataSourceStreamWriter


@dataclass(slots=True)
class Message(WriterCommitMessage):
    """What a task tells the driver."""

    result: TaskResult


class RiflDataSource(DataSource):
    """Writes rows to a deduplicated method; see docs/spark.md for the options."""

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._travelled = False

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "rifl"

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Plan a batch write: on the driver, before any row is sent."""
        if overwrite:
            raise PlanError('rows are sent, nothing is overwritten: use mode("append")')
        options = WriteOptions.read(dict(self.options))
        return BatchWriter(WritePlan.make(options, arrow_schema(schema), stream=False))

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: N802 - Spark's name
        """Plan a micro-batch: once for its tasks, and again where it is committed."""
        if overwrite:
            raise PlanError(
                "complete mode would send every row again with each micro-batch: use append"
            )
        options = WriteOptions.read(dict(self.options))
        if options.name is not None:
            raise PlanError("a query has one sink of its own, which needs no name")
        # Where Spark commits it has this object from elsewhere, and asks for a
        # writer only to call commit: no need to plan again.
        plan = (
            None if self._travelled else WritePlan.make(options, arrow_schema(schema), stream=True)
        )
        return StreamWriter(options, schema, plan)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_travelled": True}


class BatchWriter(DataSourceArrowWriter):
    """One batch write; pickled to the tasks, and to the process that commits."""

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> Message:
        """Send a task's rows; within ``foreachBatch`` in the session of its micro-batch."""
        batch = named_micro_batch("each", self._plan.options)
        return Message(write_task(self._plan, iterator, batch, this_attempt()))

    def commit(self, messages: Any) -> None:
        """Every task has sent its rows."""
        commit_batch(self._plan, check_messages(messages))

    def abort(self, messages: Any) -> None:
        """Some task failed: what was sent stays, and its session stays open."""
        discard(self._plan.options, messages, self._plan.session)


class StreamWriter(_STREAM_WRITER):  # type: ignore[misc]
    """One micro-batch; pickled to the tasks, and made anew where it is committed."""

    def __init__(self, options: WriteOptions, schema: StructType, plan: WritePlan | None) -> None:
        self._options = options
        self._schema = schema
        self._plan = plan

    def __getstate__(self) -> dict[str, Any]:
        # A PySpark that plans with a data source from elsewhere: plan now.
        if self._plan is None:
            self._plan = WritePlan.make(self._options, arrow_schema(self._schema), stream=True)
        return self.__dict__

    def write(self, iterator: Iterator[Any]) -> Message:
        """Send a task's rows, in the session of its micro-batch."""
        batch = this_micro_batch()
        plan = self._plan
        if plan is None:
            raise IdentityError("this task has no plan")
        rows = iterator
        if not _STREAM_ARROW:
            rows = record_batches(iterator, arrow_schema(self._schema))
        return Message(write_task(plan, rows, batch, this_attempt()))

    def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803 - Spark's name
        """Every task has sent its rows; Spark has not noted it yet."""
        commit_stream(self._options, check_messages(messages), batchId)

    def abort(self, messages: Any, batchId: int) -> None:  # noqa: N803 - Spark's name
        """Nothing is undone: what was sent stays sent, and known."""
        discard(self._options, messages)
