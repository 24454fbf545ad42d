"""Driver of the product's pending appends and markers: transactions of several appends."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from chaos.sim.faults import Point
from chaos.sim.log.onlooker import RETENTION_S
from chaos.sim.log.oracle import Outcome
from chaos.sim.log.publisher import AGAIN_S, Note, Publisher
from chaos.sim.planned import PlannedCall
from sharedlog._core.entry import ProducerDecision
from sharedlog._core.errors import Fenced, LogError, SpanGone
from sharedlog._core.fences import Fence
from sharedlog._core.producers import Appended, NewMessage, ProducerId
from sharedlog._core.spans import Pended, decide, pend

__all__ = ["LongTransactions"]

# Every so many transactions are open for longer than messages are kept.
_DAWDLES = 13


@dataclass
class _UnderWay:
    """One that is open in this life."""

    call: PlannedCall
    fence: Fence | None
    parts: list[list[NewMessage]]
    begins: dict[str, int] = field(default_factory=dict)
    opened: list[str] = field(default_factory=list)
    sent: int = 0
    unanswered: set[int] = field(default_factory=set)
    # The lowest seq that was refused, and by what.
    failed: tuple[int, LogError] | None = None


class LongTransactions:
    """Makes the calls of one writer that are such a transaction, one at a time."""

    def __init__(self, writer: Publisher) -> None:
        self._writer = writer
        self._cast = writer.cast

    def begin(self, producer: ProducerId, planned: PlannedCall) -> None:
        """See ``Writer``."""
        parts = [
            self._cast.messages(planned.number, part, planned.messages)
            for part in range(planned.amount)
        ]
        self._cast.oracle.begin(
            planned.number, self._writer.index, [each for part in parts for each in part]
        )
        under_way = _UnderWay(planned, self._writer.under(planned), parts)
        together = len(parts) if planned.behaviour == "pipelined" else 1
        for _ in range(min(together, self._writer.window)):
            self._pend(producer, under_way)

    def _pend(self, producer: ProducerId, under_way: _UnderWay) -> None:
        messages = under_way.parts[under_way.sent]
        under_way.sent += 1
        seq, self._writer.seq = self._writer.seq, self._writer.seq + 1
        under_way.unanswered.add(seq)
        opened = tuple(under_way.opened)
        under_way.opened = sorted({*opened, *(tag for each in messages for tag in each.tags)})
        self._cast.oracle.fenced(producer.id, seq, _pair(under_way.fence))
        rule = partial(pend, producer, seq, messages, opened, fence=under_way.fence)

        def done(pended: Pended | None, error: LogError | None) -> None:
            failed = under_way.failed
            if self._writer.waits_for_others(error, seq) and failed is None:
                self._writer.process.after(AGAIN_S, self._writer.course, Point.PENDING, rule, done)
                return
            under_way.unanswered.remove(seq)
            if pended is not None:
                under_way.begins.update(pended.begins)
            elif error is not None and (failed is None or seq < failed[0]):
                under_way.failed = seq, error
            self._pended(producer, under_way)

        self._writer.course(Point.PENDING, rule, done)

    def _pended(self, producer: ProducerId, under_way: _UnderWay) -> None:
        unanswered = under_way.unanswered
        more = under_way.failed is None and under_way.sent < len(under_way.parts)
        seq = self._writer.seq
        if more and seq - min(unanswered, default=seq) < self._writer.window:
            self._pend(producer, under_way)
        if unanswered:
            return
        planned = under_way.call
        if under_way.failed is None:
            commits = planned.op == "commit"
            mark = partial(self._mark, producer, under_way, commits=commits, fence=under_way.fence)
            if planned.number % _DAWDLES:
                mark()
            else:
                # What it has pending is old by then, and what came later is trimmed.
                self._writer.process.after(1.2 * RETENTION_S, mark)
            return
        seq, error = under_way.failed
        self._writer.seq = seq
        if isinstance(error, Fenced):
            self._roll_back(producer, under_way)
            return
        # Sent again after its span was decided: that is said, and no marker follows.
        if not isinstance(error, SpanGone) and not self._writer.may_be_gone(error):
            self._writer.broken(f"call {planned.number}", error)
        # Nothing commits it any more.
        self._writer.gone = True
        self._writer.end(planned, Outcome.NONE)

    def _roll_back(self, producer: ProducerId, under_way: _UnderWay) -> None:
        """End a try that failed before the next one begins."""
        if under_way.begins:
            self._mark(producer, under_way, commits=False, fence=None)
        else:
            self._writer.end(under_way.call, Outcome.NONE)
            self._writer.take_fence_back()

    def _mark(
        self, producer: ProducerId, under_way: _UnderWay, *, commits: bool, fence: Fence | None
    ) -> None:
        planned = under_way.call
        seq, self._writer.seq = self._writer.seq, self._writer.seq + 1
        decisions = (ProducerDecision(producer.id, seq - 1, dict(under_way.begins)),)
        self._cast.oracle.fenced(producer.id, seq, _pair(fence))
        noted = self._writer.keeps and commits and fence is None
        if noted:
            self._writer.note = Note(planned.number, producer, seq, decisions)
            self._writer.ended(planned.number, Outcome.ALL, None)

        def done(appended: Appended | None, error: LogError | None) -> None:
            self._writer.note = None
            if appended is not None:
                lsn = appended.lsn if commits else None
                self._writer.end(planned, Outcome.ALL if commits else Outcome.NONE, lsn)
                if under_way.failed is not None:
                    self._writer.take_fence_back()
                else:
                    self._writer.next_call()
            elif isinstance(error, Fenced) and fence is not None:
                self._writer.seq = seq
                under_way.failed = seq, error
                self._roll_back(producer, under_way)
            else:
                gone = self._writer.may_be_gone(error)
                gone = gone or (isinstance(error, SpanGone) and self._cast.oracle.restored)
                if not gone or (noted and not self._cast.oracle.restored):
                    self._writer.broken(f"the marker of {planned.number}", error)
                self._writer.gone = True
                self._writer.end(planned, Outcome.ANY if commits else Outcome.NONE)

        rule = partial(decide, producer, seq, decisions, commits=commits, fence=fence)
        self._writer.course(Point.MARKER, rule, done)


def _pair(fence: Fence | None) -> tuple[str, int] | None:
    return None if fence is None else (fence.name, fence.number)
