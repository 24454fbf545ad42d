"""A Spark task's micro-batch and attempt, as Spark's task context tells them."""

from __future__ import annotations

from typing import Any

from pyspark import TaskContext

from rifl.spark._checkpoints import checkpoint_of
from rifl.spark._errors import IdentityError
from rifl.spark._options import WriteOptions
from rifl.spark._session_names import MicroBatch, named_series

_QUERY = "sql.streaming.queryId"
_BATCH = "streaming.sql.batchId"
_RUN = "spark.jobGroup.id"


def this_micro_batch(options: WriteOptions) -> MicroBatch:
    """Return which micro-batch of its query's own sink this task belongs to.

    Raises ``IdentityError`` where there is none, and if its checkpoint or run is not known.
    """
    told = _context().getLocalProperty
    batch = MicroBatch.of(told(_QUERY), told(_BATCH))
    try:
        place = checkpoint_of(options.checkpoint, options.query, told)
    except ValueError as error:
        raise IdentityError(f"{error}; nothing was sent") from error
    run = told(_RUN)
    if place and not run:
        raise IdentityError(
            f"Spark tells this task no run of its query (local property {_RUN}), by which copies "
            "of a checkpoint are told apart; nothing was sent"
        )
    return batch._replace(place=place, run=run or "")


def named_micro_batch(kind: str, options: WriteOptions) -> MicroBatch | None:
    """Return the micro-batch of something named within a query; None outside streams.

    That is a call, or a batch write within ``foreachBatch``: Spark runs it again with
    its micro-batch. None, too, for one with a session of the user's. Raises
    ``IdentityError`` for one without a name in a stream, and for a name outside.
    """
    if options.session is not None:
        return None
    context = _context()
    query, batch = context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH)
    if not query and not batch:
        if options.name is None:
            return None
        raise IdentityError(
            f"the name {options.name!r} is for what runs in a stream, and this task is told of "
            "none (a thread started within foreachBatch is a pyspark.InheritableThread); "
            "nothing was sent"
        )
    if options.name is None:
        raise IdentityError(
            "this runs within foreachBatch, where Spark runs it again with its micro-batch: "
            'name it among the writes and calls of its query, option("name", "..."), and '
            "its rows count once in each micro-batch; or give it a session of yours. "
            "Nothing was sent"
        )
    series = named_series(kind, options.method, options.name)
    return MicroBatch.of(query, batch, series=series, gaps=True)


def this_attempt() -> str:
    """Return a name of this task's attempt, unique within its job."""
    context = _context()
    return f"{context.partitionId()}-{context.taskAttemptId()}"


def _context() -> Any:
    context = TaskContext.get()
    if context is None:
        raise IdentityError("this is not a task of Spark's")
    return context
