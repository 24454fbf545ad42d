"""A Spark task's batch: which query's, by Spark's task context, and what it appends of it."""

from __future__ import annotations

import itertools
import secrets
import threading
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from pyspark import TaskContext

from rifl.spark._checkpoints import checkpoint_of, why_not_anew
from rifl.spark._spark_task import BATCH, QUERY, RUN, SparkTask
from sharedlog._core.errors import Fenced, LogError
from sharedlog._core.publishing import Placed, pending
from sharedlog._core.query.attempt import TaskAttempt, TaskResult
from sharedlog._core.query.state import WRITE, Ticket
from sharedlog._log.place import Place
from sharedlog._log.resending import until_answered, until_known
from sharedlog.spark._content import Content
from sharedlog.spark._messages import RowMessage
from sharedlog.spark._options import SinkError, SinkOptions

# Of one append, if the engine takes that.
_ENTRIES, _BYTES = 5_000, 4 << 20
# How often a task shows that it is there, where it appends nothing.
_SIGN_S = 30.0
JOB = "job"
# The identity of a query that only its name identifies; no query has such an id.
_NAMED = "named"


@dataclass(frozen=True, slots=True)
class LogWritePlan:
    """The plan of a write: its number, and the name of a batch job, or of this write alone.

    ``made``: the name is this write's own, and its row is there.
    """

    options: SinkOptions
    incarnation: str
    number: int
    job: str | None = None
    made: bool = False


def stream_ticket(plan: LogWritePlan) -> Ticket:
    """Return the ticket of a task of a query's own sink; raises ``SinkError``."""
    told = SparkTask.read(_property)
    query, batch, run = told.query, told.batch, told.run
    if not query or not batch.isdecimal() or not run:
        raise SinkError(
            "Spark tells this task no query, batch and run (local properties "
            f"{QUERY}, {BATCH} and {RUN}): nothing was appended"
        )
    name, options = plan.options.name or query, plan.options
    try:
        checkpoint = checkpoint_of(options.checkpoint, options.query, _property)
    except ValueError as error:
        raise SinkError(f"{error}; nothing was appended") from error
    # By its name the log knows the query itself.
    if not options.adopt and options.name is None and (why := why_not_anew(checkpoint, int(batch))):
        raise SinkError(f"{why}. Nothing was appended")
    return Ticket(
        name,
        query,
        run,
        plan.number,
        int(batch),
        adopt=options.adopt,
        checkpoint=checkpoint,
    )


def batch_ticket(plan: LogWritePlan) -> Ticket:
    """Return the ticket of a task of a batch write, also within ``foreachBatch``."""
    told, options = SparkTask.read(_property), plan.options
    try:
        numbered = told.numbered(options.batch_id)
    except ValueError as error:
        raise SinkError(f"{error}; nothing was appended") from error
    if not told.query and not told.batch and not numbered:
        if options.adopt:
            raise SinkError(
                "adopt is for a query's checkpoint: a job that is run again with it would write "
                "twice. Give other rows another name; nothing was appended"
            )
        if why := told.why_unknown(named=options.name is not None):
            raise SinkError(f"{why}; a job has a name alone. Nothing was appended")
        return Ticket(plan.job or "", WRITE if plan.made else JOB, "", plan.number, 0)
    if options.name is None:
        raise SinkError(
            "this runs within foreachBatch, where Spark runs it again with its micro-batch: name "
            'it, option("name", "..."), and it is committed once; nothing was appended'
        )
    return Ticket(
        options.name,
        _NAMED if numbered else told.query,
        told.run_of_each,
        plan.number,
        (options.batch_id or 0) if numbered else int(told.batch),
        gaps=True,
        adopt=options.adopt,
    )


def _property(name: str) -> str:
    context: Any = TaskContext.get()
    if context is None:
        raise SinkError("this is not a task of Spark's")
    return context.getLocalProperty(name) or ""


class TaskWriter:
    """Appends what one attempt of a task has, pending. One thread, and one that signs."""

    def __init__(self, place: Place, ticket: Ticket, stream: str = "") -> None:
        """Join the batch; ``stream``: where its rows go, which tells them, too.

        Raises ``Fenced``, ``CheckpointWentBack``, ``PredecessorMismatch``.
        """
        self._place = place
        self._where = zlib.crc32(stream.encode())
        self._attempt = TaskAttempt(ticket, secrets.token_bytes(16))
        until_answered(place, self._attempt.join)
        limits = place.engine.limits
        self._entries = min(_ENTRIES, limits.entries)
        self._bytes = min(_BYTES, limits.append_bytes)
        self._lock = threading.Lock()
        self._rows = self._size = self._count = 0

    @property
    def replayed(self) -> bool:
        """Whether its batch was committed before."""
        return self._attempt.replayed

    def write(self, messages: Iterable[RowMessage], content: Content | None = None) -> TaskResult:
        """Append them all; of a batch that is committed already nothing, and it is told so.

        ``content``: of these rows, once they were taken; None: not compared. Raises ``Fenced`` once
        another plan took over; ``LogUnavailable`` if the log does not say in time what became of
        an append: nothing commits it then.
        """
        if self._attempt.replayed:
            for _ in self._counted(messages):
                pass
        else:
            with self._signing():
                for group in self._groups(self._counted(messages)):
                    self._append(group)
        total = self._where * self._rows + (0 if content is None else content.sum)
        sample = None if content is None else content.sample()
        return self._attempt.result(self._rows, total, self._size, self._count, sample)

    def _counted(self, messages: Iterable[RowMessage]) -> Iterator[Placed]:
        for message, rows in messages:
            self._rows += rows
            self._size += message.size
            self._count += 1
            yield message

    def _groups(self, messages: Iterator[Placed]) -> Iterator[list[Placed]]:
        """Gather what one append takes."""
        for first in messages:
            group, size = [first], first.size
            left = self._bytes - size
            for each in itertools.islice(messages, self._entries - 1):
                if each.size > left:
                    yield group
                    group, left = [], self._bytes
                group.append(each)
                left -= each.size
            yield group

    def _append(self, group: list[Placed]) -> None:
        sent = pending(group)
        # Of this and the thread that signs the first one is granted a producer.
        with nullcontext() if self._attempt.granted else self._lock:
            until_known(self._place, lambda: self._attempt.append(sent))

    def _grant(self) -> None:
        with self._lock:
            until_answered(self._place, self._attempt.grant)

    @contextmanager
    def _signing(self) -> Iterator[None]:
        """Have a thread show that the task is there, however long its next row takes."""
        over = threading.Event()
        thread = threading.Thread(target=self._sign, args=(over,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _sign(self, over: threading.Event) -> None:
        while not over.wait(_SIGN_S):
            try:
                self._grant()
                self._place.run(self._attempt.sign())
            except Fenced:
                # The next append says so.
                return
            except LogError:
                pass


def now_us() -> int:
    """Return the time by this machine's clock."""
    return time.time_ns() // 1000
