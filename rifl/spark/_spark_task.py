"""A task by what Spark tells it: query, micro-batch and run (DESIGN §8). Used by both sinks."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

import pyspark

QUERY = "sql.streaming.queryId"
BATCH = "streaming.sql.batchId"
RUN = "spark.jobGroup.id"
_UUID = 36
# Of each operation of a client, in a Connect server.
_OPERATION = re.compile(r"SparkConnect_OperationTag_User_.*_Session_(.+)_Operation_")
# Streaming queries set it in their own sessions, in which Connect runs foreachBatch from PySpark
# 4.3 on, unless that is switched off.
_PINNED = "spark.sql.streaming.internal.stateStore.partitions"
_OWN_SESSION = "spark.sql.connect.streaming.foreachBatch.useClonedSession"
_SHOWN_FROM = (4, 3)


class SparkTask(NamedTuple):
    """A task, by what Spark tells it; "" for what it is not told.

    ``run``: of its query since it was started. ``session``: of a Connect server's client; there
    a write within ``foreachBatch`` is told neither query nor micro-batch. ``streaming``: whether
    that is a query's own session; None: Spark does not show it.
    """

    query: str = ""
    batch: str = ""
    run: str = ""
    session: str = ""
    streaming: bool | None = False

    @classmethod
    def read(
        cls, told: Callable[[str], str | None], version: str = pyspark.__version__
    ) -> SparkTask:
        """Read a task's local properties."""
        client = _OPERATION.search(told("spark.job.tags") or "")
        shown = tuple(map(int, version.split(".")[:2])) >= _SHOWN_FROM
        streaming: bool | None = False
        if client is not None and told(_PINNED):
            streaming = True
        elif client is not None and not (shown and told(_OWN_SESSION) != "false"):
            streaming = None
        return cls(
            told(QUERY) or "",
            told(BATCH) or "",
            told(RUN) or "",
            "" if client is None else client[1],
            streaming,
        )

    @property
    def run_of_each(self) -> str:
        """The run of the query within whose ``foreachBatch`` this is; "" if it is not known."""
        if self.query:
            # A function may set a job group of its own.
            return self.run if len(self.run) == _UUID else ""
        # A query that is started again has another session.
        return self.session if self.streaming else ""

    def numbered(self, batch_id: int | None) -> bool:
        """Return whether the option ``batchId`` says which micro-batch this is.

        Raises ``ValueError`` if Spark tells of another one.
        """
        if batch_id is None or not (self.query or self.batch):
            return batch_id is not None
        if self.batch != str(batch_id):
            raise ValueError(
                f"batchId is {batch_id}, and this runs in micro-batch {self.batch or '?'} of the "
                f"query {self.query or '?'}: give it the number that foreachBatch's function is "
                "called with"
            )
        return False

    def why_unknown(self, *, named: bool = False) -> str:
        """Say why a write that is told of no query and no number may be one of ``foreachBatch``.

        "" if it is a batch's. ``named``: under the name of a job.
        """
        if self.streaming:
            why = "this runs in the session of a streaming query, within foreachBatch"
        elif self.streaming is None and not named:
            why = "this may run within foreachBatch, which Spark does not show here"
        else:
            return ""
        return (
            f"{why}, and Spark Connect tells it no query and micro-batch: run again it would have "
            'its effect again. Give it option("name", "..."), and option("batchId", ...) with the '
            "number that foreachBatch's function is called with"
        )
