"""What a sink does apart from Spark's classes: plan, run a task, commit, abort."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rifl.spark._counts import Counts
from rifl.spark._deadletters import DeadLetters, drop_files, publish_files
from rifl.spark._errors import DeliveryError, IdentityError, RowError
from rifl.spark._naming import MicroBatch
from rifl.spark._options import WriteOptions
from rifl.spark._planning import process_driver
from rifl.spark._plans import WritePlan
from rifl.spark._reporting import report, tell_aborted

_NO_MESSAGE = (
    "a task's commit message is missing: in continuous mode Spark never calls the sink's "
    "write and would silently lose all rows; use micro-batches"
)


@dataclass(slots=True, kw_only=True)
class TaskResult:
    """What a task tells the driver."""

    session: str
    batch: MicroBatch | None
    client_id: int
    counts: Counts
    dead_files: tuple[str, ...] = field(default_factory=tuple)


def write_task(
    plan: WritePlan, batches: Iterable[Any], batch: MicroBatch | None, attempt: str
) -> TaskResult:
    """Send one task's rows; ``batch`` is None outside streams, ``attempt`` unique.

    Raises the first ``RowError`` where there is no dead-letter path: what was sent
    stays sent, and is replayed when Spark runs the task again.
    """
    options = plan.options
    name = plan.session_of(batch)
    dead = None
    if options.dead_letter is not None:
        dead = DeadLetters(
            options.dead_letter, plan.dead_token or "", plan.schema, name, plan.run, attempt
        )
    worker, client_id = plan.open_worker(batch)
    delivery = plan.delivery(worker, client_id)
    put_aside = 0
    for rows, ends in delivery.run(plan.read(batches), attempt):
        if dead is not None:
            raise_unless_rows(ends)
            put_aside += dead.put(rows, ends)
            continue
        for end in ends:
            if isinstance(end, RowError):
                raise end
    delivery.counts.dead_lettered = put_aside
    files = () if dead is None else dead.close()
    return TaskResult(
        session=name,
        batch=batch,
        client_id=client_id,
        counts=delivery.counts,
        dead_files=files,
    )


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


def raise_unless_rows(ends: Iterable[Any]) -> None:
    """Raise what is not one row's trouble: all others would follow it."""
    for end in ends:
        # What the service itself answered is that row's, whatever the code.
        if (
            isinstance(end, DeliveryError)
            and not end.answered
            and (end.reason in _EVERYBODYS or end.code in _EVERYBODYS_CODES)
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
        _tell(options, results[0].session, batch.batch, results)


def commit_stream(options: WriteOptions, results: Sequence[TaskResult], batch_id: int) -> None:
    """End a micro-batch; Spark may do so again after a crash (naming, rule 2)."""
    if not results:
        return
    batch = results[0].batch
    if batch is None or batch.batch != batch_id:
        raise IdentityError(f"tasks say {batch}, and the commit is of batch {batch_id}")
    _publish(options, results)
    driver = process_driver(options.connection, options.timeout_s)
    driver.end_session(batch.closed_by_commit, results[0].client_id)
    _tell(options, results[0].session, batch_id, results)


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
