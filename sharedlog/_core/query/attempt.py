"""An attempt of a task: what it appends of its batch, and what it tells who commits (§16)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sharedlog._core.entry import ProducerDecision
from sharedlog._core.errors import InvalidRequest
from sharedlog._core.producers import NewMessage
from sharedlog._core.query.closing import BatchSummary
from sharedlog._core.query.joining import join
from sharedlog._core.query.state import Joined, Ticket
from sharedlog._core.query.tasks import Task, begin_task, grant_task, pend_task, sign
from sharedlog._core.steps import Rule

# What a batch's content is told by is a sum of so many bits.
CONTENT = (1 << 64) - 1
_NOT_IN = "a task joins its batch before it appends"


class Sample(NamedTuple):
    """Hashes of rows, eight bytes each, of those whose lowest ``bits`` bits are 0."""

    hashes: bytes
    bits: int = 0


@dataclass(frozen=True, slots=True)
class TaskResult:
    """What a task tells who commits (``BatchSummary``); ``appends``: how many, of ``bytes``.

    ``sample``: of the rows of a batch that was committed before, to tell them from that one's.
    """

    ticket: Ticket
    decision: ProducerDecision | None
    rows: int
    content: int
    replayed: bool
    appends: int = 0
    bytes: int = 0
    entries: int = 0
    sample: Sample | None = None


class TaskAttempt:
    """One attempt: it joins, is granted a producer, appends and signs, in this order.

    Each of its rules may be run again, made anew, until it is known what became of it.
    """

    def __init__(self, ticket: Ticket, token: bytes) -> None:
        self.ticket = ticket
        self._token = token
        self._joined: Joined | None = None
        self._task: Task | None = None
        self._seq = self._signs = 0
        self._begins: dict[str, int] = {}

    @property
    def replayed(self) -> bool:
        """Whether its batch was committed before; it appends nothing then."""
        return self._joined is not None and self._joined.committed

    @property
    def granted(self) -> bool:
        """Whether it has a producer."""
        return self._task is not None

    def join(self) -> Rule[None]:
        """Be in; raises as ``joining.join``."""
        self._joined = yield from join(self.ticket)

    def grant(self) -> Rule[None]:
        """Have a producer from here on; raises ``Fenced`` if the batch is open no more."""
        if self._joined is None:
            raise InvalidRequest(_NOT_IN)
        if self._task is None:
            self._task = yield from grant_task(self._joined, self.ticket, self._token)

    def append(self, messages: Sequence[NewMessage]) -> Rule[None]:
        """Append what comes next, pending; run again it is there once, or rolled back.

        Without a producer it is granted one in the same step. Raises ``Fenced``.
        """
        if self._joined is None:
            raise InvalidRequest(_NOT_IN)
        if self._task is None:
            task, found = yield from begin_task(self._joined, self.ticket, self._token, messages)
            self._task, seq = task, 1
        else:
            seq = self._seq + 1
            found = yield from pend_task(self._task, seq, messages, sorted(self._begins))
        self._begins.update(found.begins)
        self._seq = seq

    def sign(self) -> Rule[None]:
        """Show that the task is there, though it appends nothing; raises ``Fenced``."""
        yield from self.grant()
        if self._task is not None:
            self._signs += 1
            yield from sign(self._task, self._signs)

    def result(
        self,
        rows: int,
        content: int,
        size: int = 0,
        entries: int = 0,
        sample: Sample | None = None,
    ) -> TaskResult:
        """Return what it tells, with the rows that it had, their content, bytes and entries."""
        decision = None
        if self._task is not None and self._seq:
            decision = ProducerDecision(self._task.producer.id, self._seq, dict(self._begins))
        told = (rows, content & CONTENT, self.replayed, self._seq, size, entries, sample)
        return TaskResult(self.ticket, decision, *told)


def batch_of(results: Sequence[TaskResult]) -> BatchSummary:
    """Return what the tasks of a batch told together; raises ``InvalidRequest`` for several."""
    if len({each.ticket for each in results}) > 1:
        raise InvalidRequest("tasks of one write belong to different batches")
    return BatchSummary(
        tuple(each.decision for each in results if each.decision is not None),
        sum(each.rows for each in results),
        sum(each.content for each in results) & CONTENT,
        replayed=any(each.replayed for each in results),
        entries=sum(each.entries for each in results),
    )
