"""The sinks: ``df.write.format("rifl")`` and ``df.writeStream.format("rifl")``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from _rifl_ground.log import get_logger
from rifl.spark._arrow import arrow_schema, record_batches
from rifl.spark._dead_letters import DeadLetterFile, drop_files, publish_files
from rifl.spark._driver import process_driver
from rifl.spark._driver_log import first_here, heard
from rifl.spark._errors import IdentityError, PlanError, RowError, raise_error_of_all_rows
from rifl.spark._freezing import freeze
from rifl.spark._options import WriteOptions
from rifl.spark._report import Counts, report, tell_aborted
from rifl.spark._session_names import MicroBatch
from rifl.spark._tasks import named_micro_batch, this_attempt, this_micro_batch
from rifl.spark._write_plan import WritePlan, require_last_run

_log = get_logger("rifl.spark")
# From PySpark 4.1 on; before, rows come one by one.
_STREAM_ARROW: Any = getattr(datasource, "DataSourceStreamArrowWriter", None)
_STREAM_WRITER: Any = _STREAM_ARROW or datasource.DataSourceStreamWriter
_NO_MESSAGE = (
    "a task's commit message is missing: in continuous mode Spark never calls the sink's "
    "write and would silently lose all rows; use micro-batches"
)


@dataclass(slots=True, kw_only=True)
class ServiceTaskResult:
    """What a task tells the driver."""

    session: str
    batch: MicroBatch | None
    store: int
    counts: Counts
    dead_files: tuple[str, ...] = field(default_factory=tuple)


@dataclass(slots=True)
class ServiceCommitMessage(WriterCommitMessage):
    """What a task tells the driver."""

    result: ServiceTaskResult


class RiflDataSource(DataSource):
    """Writes rows to a deduplicated method; see docs/reference/spark.md for the options."""

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._travelled = False

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "rifl"

    def writer(self, schema: StructType, overwrite: bool) -> ServiceBatchWriter:
        """Plan a batch write: on the driver, before any row is sent."""
        if overwrite:
            raise PlanError('rows are sent, nothing is overwritten: use mode("append")')
        options = WriteOptions.read(dict(self.options))
        plan = WritePlan.make(options, arrow_schema(schema), stream=False)
        tell_planned(plan, stream=False)
        return ServiceBatchWriter(plan)

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
        plan = None
        if not self._travelled:
            plan = WritePlan.make(options, arrow_schema(schema), stream=True)
            tell_planned(plan, stream=True)
            freeze("plan")
        return ServiceStreamWriter(options, schema, plan)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_travelled": True}


class ServiceBatchWriter(DataSourceArrowWriter):
    """One batch write; pickled to the tasks, and to the process that commits."""

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> ServiceCommitMessage:
        """Send a task's rows; within ``foreachBatch`` in the session of its micro-batch."""
        batch = named_micro_batch("each", self._plan.options)
        return ServiceCommitMessage(write_task(self._plan, iterator, batch, this_attempt()))

    def commit(self, messages: Any) -> None:
        """Every task has sent its rows."""
        commit_batch(self._plan, check_messages(messages))

    def abort(self, messages: Any) -> None:
        """Some task failed: what was sent stays, and its session stays open."""
        discard(self._plan.options, messages, self._plan.session)


class ServiceStreamWriter(_STREAM_WRITER):  # type: ignore[misc]
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

    def write(self, iterator: Iterator[Any]) -> ServiceCommitMessage:
        """Send a task's rows, in the session of its micro-batch."""
        batch = this_micro_batch(self._options)
        plan = self._plan
        if plan is None:
            raise IdentityError("this task has no plan")
        rows = iterator
        if not _STREAM_ARROW:
            rows = record_batches(iterator, arrow_schema(self._schema))
        return ServiceCommitMessage(write_task(plan, rows, batch, this_attempt()))

    def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803 - Spark's name
        """Every task has sent its rows; Spark has not noted it yet."""
        commit_stream(self._options, check_messages(messages), batchId)

    def abort(self, messages: Any, batchId: int) -> None:  # noqa: N803 - Spark's name
        """Nothing is undone: what was sent stays sent, and known."""
        discard(self._options, messages)


def tell_planned(plan: WritePlan, *, stream: bool) -> None:
    """Say what a write does; of a stream once in each process that plans its micro-batches."""
    options = plan.options
    if stream and not first_here(options):
        return
    heard("rifl.spark")
    _log.info(
        "calls_planned",
        target=options.connection.target,
        method=options.method,
        key=",".join(options.key),
        session=plan.session,
        columns=",".join(plan.schema.names),
        batch_rows=options.batch_rows,
        rows_per_second=options.rows_per_second,
        dead_letter=options.dead_letter,
    )


def write_task(
    plan: WritePlan, batches: Iterable[Any], batch: MicroBatch | None, attempt: str
) -> ServiceTaskResult:
    """Send one task's rows; ``batch`` is None outside streams, ``attempt`` unique.

    Raises the first ``RowError`` where there is no dead-letter path: what was sent
    stays sent, and is replayed when Spark runs the task again.
    """
    options = plan.options
    name = plan.session_of(batch)
    dead = None
    if options.dead_letter is not None:
        dead = DeadLetterFile(
            options.dead_letter, plan.dead_token or "", plan.schema, name, plan.run, attempt
        )
    worker, client_id = plan.open_worker(batch)
    delivery = plan.delivery(worker, client_id)
    put_aside = 0
    for rows, ends in delivery.run(plan.read(batches), attempt):
        if dead is not None:
            raise_error_of_all_rows(ends)
            put_aside += dead.put(rows, ends)
            continue
        for end in ends:
            if isinstance(end, RowError):
                raise end
    delivery.counts.dead_lettered = put_aside
    files = () if dead is None else dead.close()
    return ServiceTaskResult(
        session=name,
        batch=batch,
        store=plan.store,
        counts=delivery.counts,
        dead_files=files,
    )


def check_messages(messages: Sequence[Any]) -> list[ServiceTaskResult]:
    """Return what the tasks told; raises ``IdentityError`` if one told nothing."""
    if any(message is None for message in messages):
        raise IdentityError(_NO_MESSAGE)
    results = [message.result for message in messages]
    if len({(result.session, result.batch) for result in results}) > 1:
        raise IdentityError("tasks of one write belong to different sessions")
    return results


def commit_batch(plan: WritePlan, results: Sequence[ServiceTaskResult]) -> None:
    """End a batch write: publish, tell, and close a session that is this run's own."""
    options, name = plan.options, plan.session or ""
    _publish(options, results)
    driver = process_driver(options.connection, options.timeout_s)
    if options.close_session:
        driver.finish_session(name)
    elif options.session is None:
        driver.close_session(name)
    batch = results[0].batch if results else None
    if batch is None:
        _tell(options, name, None, results)
    else:
        # Within foreachBatch: its session is open until later micro-batches close it.
        _tell(options, results[0].session, batch, results)


def commit_stream(
    options: WriteOptions, results: Sequence[ServiceTaskResult], batch_id: int
) -> None:
    """End a micro-batch; Spark may do so again after a crash (session names, rule 2)."""
    if not results:
        return
    batch = results[0].batch
    if batch is None or batch.batch != batch_id:
        raise IdentityError(f"tasks say {batch}, and the commit is of batch {batch_id}")
    driver = process_driver(options.connection, options.timeout_s)
    require_last_run(driver, batch)
    _publish(options, results)
    driver.end_session(batch.closed_by_commit, results[0].store)
    if batch.place:
        driver.set_marks(batch.marks(batch.batch + 1))
    freeze("commit")
    _tell(options, results[0].session, batch, results)


def discard(options: WriteOptions, messages: Sequence[Any], session: str | None = None) -> None:
    """Abort: what was executed stays so; only unread dead letters go (session names, rule 3).

    ``session`` is a batch write's, by whose name it can be finished.
    """
    if session is not None:
        tell_aborted(options.method, session)
    if options.dead_letter is not None:
        names = [name for each in messages if each is not None for name in each.result.dead_files]
        drop_files(options.dead_letter, names)


def _publish(options: WriteOptions, results: Sequence[ServiceTaskResult]) -> None:
    if options.dead_letter is not None:
        publish_files(options.dead_letter, [name for each in results for name in each.dead_files])


def _tell(
    options: WriteOptions,
    session: str,
    batch: MicroBatch | None,
    results: Sequence[ServiceTaskResult],
) -> None:
    report(
        Counts.total(result.counts for result in results),
        method=options.method,
        session=session,
        batch=None if batch is None else batch.batch,
        query=None if batch is None else batch.query,
        lines=options.report,
        metrics=options.metrics,
    )
