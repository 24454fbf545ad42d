"""Driver of the product's appends that commit themselves, and what is sent again."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from chaos.sim.faults import Point
from chaos.sim.log.oracle import Outcome
from chaos.sim.log.publisher import AGAIN_S, Publisher
from chaos.sim.planned import PlannedCall
from sharedlog._core.errors import AnswerGone, Fenced, LogError, SeqReused
from sharedlog._core.producers import Appended, NewMessage, ProducerId, append

__all__ = ["SingleAppends"]


class SingleAppends:
    """Makes the calls of one writer that are one append each."""

    def __init__(self, writer: Publisher) -> None:
        self._writer = writer
        self._cast = writer.cast

    def begin(self, producer: ProducerId, planned: PlannedCall) -> None:
        """See ``Writer``."""
        cast = self._cast
        seq, self._writer.seq = self._writer.seq, self._writer.seq + 1
        self._writer.seqs[planned.number] = seq
        messages = cast.messages(planned.number, 0, planned.messages)
        fence = self._writer.under(planned)
        cast.oracle.begin(planned.number, self._writer.index, messages)
        cast.oracle.fenced(producer.id, seq, fence)
        rule = partial(append, producer, seq, messages, fence=fence)

        def done(appended: Appended | None, error: LogError | None) -> None:
            if appended is not None:
                self._writer.end(planned, Outcome.ALL, appended.lsn)
                self._repeat(planned, producer, seq, messages, appended.lsn)
            elif self._writer.waits_for_others(error, seq):
                # Another one is on its way before it.
                self._writer.process.after(AGAIN_S, self._writer.course, Point.APPEND, rule, done)
                return
            elif isinstance(error, Fenced):
                self._writer.end(planned, Outcome.NONE)
                self._writer.seq = seq
                self._writer.take_fence_back()
                return
            else:
                if not self._writer.may_be_gone(error):
                    self._writer.broken(f"call {planned.number}", error)
                self._writer.gone = True
                self._writer.end(planned, Outcome.ANY)
                return
            self._writer.next_call()

        self._writer.course(Point.APPEND, rule, done)

    def _repeat(
        self,
        planned: PlannedCall,
        producer: ProducerId,
        seq: int,
        messages: Sequence[NewMessage],
        lsn: int,
    ) -> None:
        """Send the seq again some time later, with the same content or another."""
        lies = planned.behaviour == "lies"
        if not lies and planned.behaviour != "again":
            return
        if lies:
            messages = [NewMessage(b"lie " + each.envelope, each.tags) for each in messages]
            self._cast.oracle.never(messages)

        def done(appended: Appended | None, error: LogError | None) -> None:
            restored = self._cast.oracle.restored
            fine = isinstance(error, AnswerGone) or (error is not None and restored)
            fine = fine or self._writer.may_be_gone(error)
            if lies:
                fine = fine or isinstance(error, SeqReused)
            elif appended is not None:
                fine = appended.lsn == lsn or self._cast.oracle.restored
            if not fine:
                what = f"call {planned.number}, seq {seq} again: {appended} {error!r}"
                self._cast.oracle.broken("answers", f"{self._writer.name}, {what}, not {lsn}")

        rule = partial(append, producer, seq, list(messages))
        restores = self._cast.oracle.restores

        def send() -> None:
            # A log that went back may not have the seq: then this would be the first.
            if restores == self._cast.oracle.restores:
                self._writer.course(Point.APPEND, rule, done)

        self._writer.process.after(0.5 * self._cast.random.random(), send)
