"""A Spark task's micro-batch and attempt, as Spark's task context tells them."""

from __future__ import annotations

from typing import Any

from pyspark import TaskContext

from rifl.spark._checkpoints import checkpoint_of, why_not_anew
from rifl.spark._errors import IdentityError
from rifl.spark._options import WriteOptions
from rifl.spark._session_names import MicroBatch, named_series
from rifl.spark._spark_task import RUN, SparkTask


def this_micro_batch(options: WriteOptions) -> MicroBatch:
    """Return which micro-batch of its query's own sink this task belongs to.

    Raises ``IdentityError`` where there is none, and if its checkpoint or run is not known.
    """
    told = _context().getLocalProperty
    task = SparkTask.read(told)
    batch = MicroBatch.of(task.query, task.batch)
    try:
        place = checkpoint_of(options.checkpoint, options.query, told)
    except ValueError as error:
        raise IdentityError(f"{error}; nothing was sent") from error
    if not options.adopt and options.session is None and (why := why_not_anew(place, batch.batch)):
        raise IdentityError(f"{why}. Nothing was sent")
    if place and not task.run:
        raise IdentityError(
            f"Spark tells this task no run of its query (local property {RUN}), by which copies "
            "of a checkpoint are told apart; nothing was sent"
        )
    return batch._replace(place=place, run=task.run)


def named_micro_batch(kind: str, options: WriteOptions) -> MicroBatch | None:
    """Return the micro-batch of something named within a query; None outside streams.

    That is a call, or a batch write within ``foreachBatch``: Spark runs it again with
    its micro-batch. None, too, for one with a session of the user's. Raises
    ``IdentityError`` for one without a name in a stream, or where that cannot be ruled out, for a
    name outside, and for a ``batchId`` that is not its micro-batch's.
    """
    if options.session is not None:
        return None
    task = SparkTask.read(_context().getLocalProperty)
    series = named_series(kind, options.method, options.name or "")
    try:
        if task.numbered(options.batch_id):
            return MicroBatch.named(series, options.batch_id or 0)
    except ValueError as error:
        raise IdentityError(f"{error}; nothing was sent") from error
    if not task.query and not task.batch:
        if options.name is not None:
            raise IdentityError(
                f"the name {options.name!r} is for what runs in a stream, and this task is told "
                'of none: within foreachBatch add option("batchId", ...), the number that its '
                "function is called with; nothing was sent"
            )
        if why := task.why_unknown():
            raise IdentityError(f"{why}; or a session of yours. Nothing was sent")
        return None
    if options.name is None:
        raise IdentityError(
            "this runs within foreachBatch, where Spark runs it again with its micro-batch: "
            'name it among the writes and calls of its query, option("name", "..."), and '
            "its rows count once in each micro-batch; or give it a session of yours. "
            "Nothing was sent"
        )
    return MicroBatch.of(task.query, task.batch, series=series, gaps=True)


def this_attempt() -> str:
    """Return a name of this task's attempt, unique within its job."""
    context = _context()
    return f"{context.partitionId()}-{context.taskAttemptId()}"


def _context() -> Any:
    context = TaskContext.get()
    if context is None:
        raise IdentityError("this is not a task of Spark's")
    return context
