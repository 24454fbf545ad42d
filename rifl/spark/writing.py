"""What a sink does apart from Spark's classes: plan, run a task, commit, abort."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow

from rifl.client import CallError
from rifl.spark.connections import WorkerChannel, drop_channel, worker_channel
from rifl.spark.counts import Counts
from rifl.spark.deadletters import (
    DeadLetters,
    dead_letter_schema,
    drop_files,
    open_path,
    publish_files,
)
from rifl.spark.delivery import Delivery
from rifl.spark.descriptors import MethodShape
from rifl.spark.errors import DeliveryError, IdentityError, PlanError, RowError
from rifl.spark.keys import KeyPlan
from rifl.spark.mapping import MessagePlan, plan_message
from rifl.spark.naming import MicroBatch, lost_memory, run_session
from rifl.spark.options import ConnectionOptions, WriteOptions
from rifl.spark.planning import Driver, SessionGone, process_driver
from rifl.spark.reporting import check_metrics, report, tell_aborted

__all__ = [
    "TaskResult",
    "WritePlan",
    "check_messages",
    "commit_batch",
    "commit_stream",
    "discard",
    "write_task",
]

_NO_MESSAGE = (
    "a task's commit message is missing: in continuous mode Spark never calls the sink's "
    "write and would silently lose all rows; use micro-batches"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePlan:
    """All that tasks need, decided on the driver. Picklable; holds no secret.

    ``session`` is a batch write's, whose client id is ``client_id``; None for a
    stream, where that id only tells the server's incarnation.
    """

    options: WriteOptions
    schema: pyarrow.Schema
    shape: MethodShape
    session: str | None
    client_id: int

    @classmethod
    def make(
        cls,
        options: WriteOptions,
        schema: pyarrow.Schema,
        *,
        stream: bool,
        session: str | None = None,
        driver: Driver | None = None,
    ) -> WritePlan:
        """Check everything that can be before a row is sent; raises ``PlanError``.

        ``driver`` is for a process that is not Spark's: it keeps no connection.
        """
        KeyPlan(options.key, schema)
        check_metrics(options.metrics)
        if options.dead_letter is not None:
            dead_letter_schema(schema)
            open_path(options.dead_letter)
        if stream and (options.session is not None or options.close_session):
            raise PlanError("a stream's sessions are named by its query and micro-batch")
        driver = driver or process_driver(options.connection, options.timeout_s)
        shape = driver.shape(options)
        _messages(options, schema, shape)
        if stream:
            planned = driver.planned_id(options.method)
            return cls(options=options, schema=schema, shape=shape, session=None, client_id=planned)
        name = session or options.session or run_session()
        try:
            client_id = driver.open_session(name, options.retention_s, options.method)
        except SessionGone as error:
            raise PlanError(
                f"the session {name!r} is closed or past its retention: its rows were "
                "written, and would be written again under another name"
            ) from error
        return cls(options=options, schema=schema, shape=shape, session=name, client_id=client_id)

    def delivery(self, worker: WorkerChannel, client_id: int) -> Delivery:
        """Return what sends a task's rows."""
        keys = KeyPlan(self.options.key, self.schema)
        messages = _messages(self.options, self.schema, self.shape)
        return Delivery(worker, self.options, keys, messages, client_id)

    def open_worker(self, batch: MicroBatch | None) -> tuple[WorkerChannel, int]:
        """Join the session from a task; returns the channel and the session's id.

        Raises ``IdentityError`` if the server does not remember what came before.
        """
        options = self.options
        name = self.session if batch is None else batch.session
        if name is None:
            raise IdentityError("a batch write has a session")
        try:
            if batch is not None:
                self._require_known(batch)
            for _ in range(2):
                worker = worker_channel(
                    options.connection, name, options.retention_s, options.timeout_s
                )
                client_id = worker.channel.session.open(options.timeout_s)
                same = client_id == self.client_id if batch is None else True
                if same and not lost_memory(self.client_id, client_id):
                    return worker, client_id
                # What this process knows may be from before the server's restart.
                drop_channel(options.connection, name)
        except CallError as error:
            if error.reason == "SESSION_CLOSED":
                raise IdentityError(_closed_text(name, batch)) from error
            raise
        raise IdentityError(
            f"the server has forgotten the session {name!r} since this write was planned "
            "(a memory: store that was restarted): what was sent before cannot be told "
            "from what was not, so nothing more was sent"
        )

    def _require_known(self, batch: MicroBatch) -> None:
        """Have the server confirm that it remembers this query (naming, rule 1)."""
        options = self.options
        confirmed = (os.getpid(), options.connection, batch)
        if options.adopt or confirmed in _confirmed:
            return
        driver = process_driver(options.connection, options.timeout_s)
        if batch.root is not None:
            # Gone if this batch was committed before; its own session is not.
            with contextlib.suppress(SessionGone):
                driver.open_session(batch.root, options.retention_s, options.method)
        elif not driver.close_session(batch.must_be_known or ""):
            raise IdentityError(
                f"the server does not remember the micro-batches before {batch.batch} of "
                f"{batch.series}: the checkpoint is older than the retention of its "
                "sessions, or the target is another server than before. Sending could "
                "repeat what was sent; nothing was sent. If nothing was sent there "
                'before, option("adopt", "true") begins here.'
            )
        _confirmed.clear()
        _confirmed.add(confirmed)


# The micro-batch that the server confirmed to this process.
_confirmed: set[tuple[int, ConnectionOptions, MicroBatch]] = set()


def _closed_text(name: str, batch: MicroBatch | None) -> str:
    if batch is None:
        return f"the session {name!r} was closed while this task ran; nothing was sent"
    return (
        f"micro-batch {batch.batch} of {batch.series} is closed (a later one was committed) or "
        "past its retention: this task is a leftover of it, or the checkpoint is too old; "
        "nothing was sent"
    )


def _messages(options: WriteOptions, schema: pyarrow.Schema, shape: MethodShape) -> MessagePlan:
    return plan_message(
        schema, shape.request_class(), key_only=set(options.key), ignored=options.ignored
    )


@dataclass(slots=True, kw_only=True)
class TaskResult:
    """What a task tells the driver."""

    session: str
    batch: MicroBatch | None
    counts: Counts
    dead_files: tuple[str, ...] = field(default_factory=tuple)


def write_task(
    plan: WritePlan, batches: Iterable[Any], batch: MicroBatch | None, attempt: str
) -> TaskResult:
    """Send a task's rows; raises the first row's error unless it is put aside."""
    worker, client_id = plan.open_worker(batch)
    session = plan.session if batch is None else batch.session
    name = session or ""
    options = plan.options
    dead = (
        None
        if options.dead_letter is None
        else DeadLetters(options.dead_letter, plan.schema, name, attempt)
    )
    delivery = plan.delivery(worker, client_id)
    put_aside = 0
    for rows, ends in delivery.run(batches):
        if dead is not None:
            _raise_unless_rows(ends)
            put_aside += dead.put(rows, ends)
            continue
        for end in ends:
            if isinstance(end, RowError):
                raise end
    delivery.counts.dead_lettered = put_aside
    files = () if dead is None else dead.close()
    return TaskResult(session=name, batch=batch, counts=delivery.counts, dead_files=files)


# Not one row's trouble: all others would follow it.
_EVERYBODYS = {
    "SESSION_CLOSED",
    "LEASE_EXPIRED",
    "NOT_YOURS",
    "NOT_WRAPPED",
    "NOT_DEDUPLICATED",
    "WINDOW_EXCEEDED",
    "STORE_UNAVAILABLE",
    "DRAINING",
    "NOT_LEADER",
}
_EVERYBODYS_CODES = {"UNAVAILABLE", "DEADLINE_EXCEEDED", "UNAUTHENTICATED", "UNIMPLEMENTED"}


def _raise_unless_rows(ends: Iterable[Any]) -> None:
    for end in ends:
        if isinstance(end, DeliveryError) and (
            end.reason in _EVERYBODYS or end.code in _EVERYBODYS_CODES
        ):
            raise end


def check_messages(messages: Sequence[Any]) -> list[TaskResult]:
    """Return what the tasks told; raises ``IdentityError`` if one told nothing."""
    if any(message is None for message in messages):
        raise IdentityError(_NO_MESSAGE)
    results = [message.result for message in messages]
    if len({(result.session, result.batch) for result in results}) > 1:
        raise IdentityError("tasks of one write belong to different sessions")
    return results


def commit_batch(plan: WritePlan, results: Sequence[TaskResult]) -> None:
    """End a batch write: publish, tell, and close a session that is this run's own."""
    options, name = plan.options, plan.session or ""
    _publish(options, results)
    if options.session is None or options.close_session:
        process_driver(options.connection, options.timeout_s).close_session(name)
    _tell(options, name, None, results)


def commit_stream(options: WriteOptions, results: Sequence[TaskResult], batch_id: int) -> None:
    """End a micro-batch; Spark may do so again after a crash (naming, rule 2)."""
    if not results:
        return
    batch = results[0].batch
    if batch is None or batch.batch != batch_id:
        raise IdentityError(f"tasks say {batch}, and the commit is of batch {batch_id}")
    _publish(options, results)
    driver = process_driver(options.connection, options.timeout_s)
    driver.close_session(batch.closed_by_commit)
    _tell(options, batch.session, batch_id, results)


def discard(options: WriteOptions, messages: Sequence[Any], session: str | None = None) -> None:
    """Abort: what was executed stays so; only unread dead letters go (naming, rule 3).

    ``session`` is a batch write's, by whose name it can be finished.
    """
    if session is not None:
        tell_aborted(options.method, session)
    if options.dead_letter is not None:
        names = [name for each in messages if each is not None for name in each.result.dead_files]
        drop_files(options.dead_letter, names)


def _publish(options: WriteOptions, results: Sequence[TaskResult]) -> None:
    if options.dead_letter is not None:
        publish_files(options.dead_letter, [name for each in results for name in each.dead_files])


def _tell(
    options: WriteOptions, session: str, batch: int | None, results: Sequence[TaskResult]
) -> None:
    report(
        Counts.total(result.counts for result in results),
        method=options.method,
        session=session,
        batch=batch,
        lines=options.report,
        metrics=options.metrics,
    )
