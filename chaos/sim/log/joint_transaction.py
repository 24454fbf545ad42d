"""Driver of the product's markers: transactions of a writer and its helper."""

from __future__ import annotations

from functools import partial

from chaos.sim.faults import Point
from chaos.sim.log.oracle import Outcome
from chaos.sim.log.publisher import Publisher
from chaos.sim.planned import PlannedCall
from sharedlog._core.entry import ProducerDecision
from sharedlog._core.errors import LogError, ProducerRetired, SpanGone, UnknownProducer
from sharedlog._core.producers import Appended, ProducerId, grant
from sharedlog._core.spans import Pended, decide, pend, retire

__all__ = ["JointTransactions"]

_GONE = (ProducerRetired, UnknownProducer)


class JointTransactions:
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
        begins: dict[str, int] = {}

        def granted(helper: ProducerId | None, error: LogError | None) -> None:
            if helper is None:
                self._writer.broken("being granted a helper", error)
                return
            self._writer.helper = helper
            pend_next(helper, 1)

        def pend_next(helper: ProducerId, seq: int) -> None:
            if seq > len(parts):
                self._decide_joint(
                    producer, planned, helper, ProducerDecision(helper.id, seq - 1, begins)
                )
                return
            opened = sorted(begins)

            def done(pended: Pended | None, error: LogError | None) -> None:
                if pended is None:
                    self._end_joint(planned, helper, Outcome.NONE, error)
                    return
                begins.update(pended.begins)
                if set(pended.begins) | set(opened) < {
                    tag for m in parts[seq - 1] for tag in m.tags
                }:
                    # Another writer decided it meanwhile.
                    self._end_joint(planned, helper, Outcome.NONE, None)
                    return
                pend_next(helper, seq + 1)

            self._writer.course(
                Point.PENDING, partial(pend, helper, seq, parts[seq - 1], opened), done
            )

        self._writer.helped_in = self._cast.oracle.restores
        token = self._cast.random.randbytes(16)
        self._writer.course(Point.GRANTING, partial(grant, token, self._writer.window), granted)

    def _decide_joint(
        self,
        producer: ProducerId,
        planned: PlannedCall,
        helper: ProducerId,
        decision: ProducerDecision,
    ) -> None:
        cast = self._cast
        commits = planned.op == "commit"
        seq, self._writer.seq = self._writer.seq, self._writer.seq + 1
        cast.oracle.fenced(producer.id, seq, None)
        if planned.behaviour == "straggler":
            # It goes on though it has said that it is done.
            extra = cast.messages(planned.number, planned.amount, 2)
            cast.oracle.never(extra)
            late = partial(pend, helper, decision.through + 1, extra, sorted(decision.begins))
            self._writer.course(Point.PENDING, late, lambda pended, error: None)
        elif planned.behaviour == "rival":
            # A process that took this writer for dead rolls back what it has pending.
            self._writer.sweeper.roll_back(decision)

        def done(appended: Appended | None, error: LogError | None) -> None:
            if appended is not None and commits:
                self._end_joint(planned, helper, Outcome.ALL, None, appended.lsn)
            elif appended is not None:
                self._end_joint(planned, helper, Outcome.NONE, None)
            else:
                if isinstance(error, SpanGone):
                    self._writer.seq = seq
                unknown = commits and isinstance(error, _GONE)
                self._end_joint(planned, helper, Outcome.ANY if unknown else Outcome.NONE, error)

        rule = partial(decide, producer, seq, (decision,), commits=commits)
        later = 0.004 * cast.random.random()
        self._writer.process.after(later, self._writer.course, Point.MARKER, rule, done)

    def _end_joint(
        self,
        planned: PlannedCall,
        helper: ProducerId,
        outcome: Outcome,
        error: LogError | None,
        lsn: int | None = None,
    ) -> None:
        stale = self._writer.stale() or self._writer.helped_in < self._cast.oracle.restores
        if not (error is None or isinstance(error, SpanGone | ProducerRetired) or stale):
            self._writer.broken(f"call {planned.number}", error)

        # It is known from now on, of the present log.
        self._writer.ended(planned.number, outcome, lsn)

        def retired(highest: int | None, error: LogError | None) -> None:
            if error is not None and not self._cast.oracle.restored:
                self._writer.broken("retiring its helper", error)
            self._writer.helper = None
            self._writer.gone = lost
            self._writer.leave(planned)
            self._writer.next_call()

        lost = error is not None and not isinstance(error, SpanGone)
        self._writer.course(Point.RETIRING, partial(retire, helper.id), retired)
