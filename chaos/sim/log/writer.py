"""A writer: appends, transactions, markers over spans of others, by one producer after another."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from chaos.sim.faults import Fault, Point
from chaos.sim.log.cast import Cast
from chaos.sim.log.course import Course, count
from chaos.sim.log.onlooker import RETENTION_S
from chaos.sim.log.oracle import Outcome
from chaos.sim.log.sweeper import Sweeper
from chaos.sim.loop import Process
from chaos.sim.planned import PlannedCall, Setting
from sharedlog._core.entry import Decision
from sharedlog._core.errors import (
    AnswerGone,
    Fenced,
    LogError,
    OutOfOrder,
    ProducerRetired,
    SeqReused,
    SpanGone,
    UnknownProducer,
)
from sharedlog._core.fences import Fence, raise_fence
from sharedlog._core.producers import Appended, NewMessage, Producer, append, grant
from sharedlog._core.spans import Pended, decide, pend, retire

__all__ = ["Writer"]

_AGAIN_S = 0.02
# Every so many transactions are open for longer than messages are kept.
_DAWDLES = 13
_GONE = (ProducerRetired, UnknownProducer)


class _Note(NamedTuple):
    """What a writer's own store commits: the marker that is to be in the log, whoever dies."""

    call: int
    producer: Producer
    seq: int
    decisions: tuple[Decision, ...]


@dataclass
class _Transaction:
    """One that is under way in this life."""

    call: PlannedCall
    fence: Fence | None
    parts: list[list[NewMessage]]
    first: int
    begins: dict[str, int] = field(default_factory=dict)
    opened: list[str] = field(default_factory=list)
    sent: int = 0
    unanswered: set[int] = field(default_factory=set)
    # The lowest seq that was refused, and by what.
    failed: tuple[int, LogError] | None = None


class Writer:
    """Through its lives. ``keeps``: it has a store, and its successor retires what it left."""

    def __init__(
        self, cast: Cast, index: int, setting: Setting, sweeper: Sweeper, *, keeps: bool
    ) -> None:
        self._cast = cast
        self.index = index
        self.name = f"writer{index}"
        self.fence = f"f{index}"
        self.keeps = keeps
        self._window = setting.window
        self._sweeper = sweeper
        self.courses: dict[Course, None] = {}
        self.process = Process(cast.loop, self.name)
        self.process.alive = False
        self.waiting: deque[PlannedCall] = deque()
        self._running: dict[int, PlannedCall] = {}
        # Of appends that are not answered, by call.
        self._seqs: dict[int, int] = {}
        # In its store, if it has one.
        self._note: _Note | None = None
        self._left: int | None = None
        # Of this life.
        self.producer: Producer | None = None
        self.helper: Producer | None = None
        self._number = 0
        self._seq = 1
        self._alone = False
        # Its producer was retired: another one is to be granted.
        self._gone = False
        # How often the log had been restored before it was granted, and its helper.
        self._granted_in = self._helped_in = 0

    # -- life ----------------------------------------------------------------------------

    def start(self) -> None:
        """Take over: the fence, then what the store says is committed, then what was left."""
        if self.process.alive or self._cast.over:
            return
        self.process = self._cast.life(self.name)
        self.courses.clear()
        self.producer = self.helper = None
        self._running.clear()
        self._seqs.clear()
        self._alone = self._gone = False
        self._course(Point.FENCING, partial(raise_fence, self.fence), self._raised)

    def crash(self, seconds: float) -> None:
        """Die with whatever is under way; nobody knows what became of that."""
        if not self.process.alive:
            return
        count(self._cast, self, Fault.CRASH)
        self._cast.trace(self.name, f"dies with {list(self._running)}")
        self.process.kill()
        for left in (self.helper, None if self.keeps else self.producer):
            if left is not None:
                later = 2.0 * self._cast.random.random()
                self._cast.loop.after(later, self._sweeper.retire, left.id)
        self._cast.loop.after(seconds, self.start)

    def idle(self) -> bool:
        """Whether nothing is left to be done."""
        return self.process.alive and not (self.waiting or self._running or self._note)

    def under_fence(self) -> bool:
        """Whether it appends under its fence."""
        return any(call.behaviour == "fenced" for call in self._running.values())

    def call(self, planned: PlannedCall) -> None:
        """Take what is asked for."""
        self.waiting.append(planned)
        self._next()

    def _course(
        self,
        point: Point,
        make: Callable[[], Any],
        done: Callable[[Any, LogError | None], None],
    ) -> None:
        Course(self._cast, self, make, point, done).go()

    def _raised(self, number: int | None, error: LogError | None) -> None:
        if number is None:
            self._broken("raising its fence", error)
            return
        self._number = number
        if self._note is not None:
            self._finish(self._note)
        else:
            self._retire_left()

    def _finish(self, note: _Note) -> None:
        def done(appended: Appended | None, error: LogError | None) -> None:
            self._note = None
            if appended is not None:
                self._ended(note.call, Outcome.ALL, appended.lsn)
            elif not self._cast.oracle.restored:
                self._broken(f"finishing {note.call}", error)
            self._retire_left()

        self._course(
            Point.MARKER,
            lambda: decide(note.producer, note.seq, note.decisions, commits=True),
            done,
        )

    def _retire_left(self) -> None:
        def done(highest: int | None, error: LogError | None) -> None:
            if error is not None and not self._cast.oracle.restored:
                self._broken("retiring what was left", error)
            self._left = None
            self._grant()

        if self.keeps and self._left is not None:
            self._course(Point.RETIRING, partial(retire, self._left), done)
        else:
            self._grant()

    def _grant(self) -> None:
        def done(producer: Producer | None, error: LogError | None) -> None:
            if producer is None:
                self._broken("being granted a producer", error)
                return
            self.producer, self._seq = producer, 1
            if self.keeps:
                self._cast.homes.add(producer.id)
            self._left = producer.id
            self._alone = False
            self._next()

        self.producer = None
        self._granted_in = self._cast.oracle.restores
        token = self._cast.random.randbytes(16)
        self._course(Point.GRANTING, partial(grant, token, self._window), done)

    def _lost_producer(self) -> None:
        """Go on with another one when nothing is under way by the last."""
        self._gone = True
        if not self._running:
            self._gone, self.producer = False, None
            self._retire_left()

    # -- calls ---------------------------------------------------------------------------

    def _next(self) -> None:
        while self.waiting and self.producer is not None and self.process.alive:
            planned = self.waiting[0]
            alone = planned.method != "append" or planned.behaviour == "fenced"
            # A slot of the window is free when all before it are answered.
            full = self._running and self._seq - min(self._seqs.values(), default=0) >= self._window
            if self._gone or self._alone or full or (self._running and alone):
                return
            self.waiting.popleft()
            self._running[planned.number] = planned
            self._alone = alone
            getattr(self, f"_begin_{planned.method}")(self.producer, planned)

    def _end(self, planned: PlannedCall, outcome: Outcome, lsn: int | None = None) -> None:
        self._ended(planned.number, outcome, lsn)
        self._leave(planned)

    def _leave(self, planned: PlannedCall) -> None:
        self._running.pop(planned.number, None)
        self._seqs.pop(planned.number, None)
        self._alone = False
        if self._gone:
            self._lost_producer()

    def _ended(self, call: int, outcome: Outcome, lsn: int | None) -> None:
        if self._cast.loop.tracing:
            self._cast.trace(self.name, f"call {call}: {outcome.value} {lsn or ''}")
        self._cast.oracle.ended(call, outcome, lsn)

    def _broken(self, what: str, error: LogError | None) -> None:
        self._cast.oracle.broken("refused", f"{self.name}, {what}: {error!r}")

    def _stale(self) -> bool:
        """Whether its producer may be of a log that is not there any more."""
        return self._granted_in < self._cast.oracle.restores

    def _may_be_gone(self, error: LogError | None) -> bool:
        if self._stale() and not self._cast.server.knows(self.producer):
            return isinstance(error, UnknownProducer)
        gone = UnknownProducer | OutOfOrder | SeqReused | AnswerGone | SpanGone
        return isinstance(error, ProducerRetired) or (self._stale() and isinstance(error, gone))

    def _waits_for_others(self, error: LogError | None, seq: int) -> bool:
        """Whether an append came before those that it follows."""
        return isinstance(error, OutOfOrder) and error.expected < seq and not self._stale()

    def _under(self, planned: PlannedCall) -> Fence | None:
        return Fence(self.fence, self._number) if planned.behaviour == "fenced" else None

    def _take_fence_back(self) -> None:
        """Hold the fence again, which somebody raised."""

        def done(number: int | None, error: LogError | None) -> None:
            if number is None:
                self._broken("raising its fence", error)
                return
            self._number = number
            self._alone = False
            self._next()

        self._alone = True
        self._course(Point.FENCING, partial(raise_fence, self.fence), done)

    def _begin_append(self, producer: Producer, planned: PlannedCall) -> None:
        cast = self._cast
        seq, self._seq = self._seq, self._seq + 1
        self._seqs[planned.number] = seq
        messages = cast.messages(planned.number, 0, planned.messages)
        fence = self._under(planned)
        cast.oracle.begin(planned.number, self.index, messages)
        cast.oracle.fenced(producer.id, seq, fence)
        rule = partial(append, producer, seq, messages, fence=fence)

        def done(appended: Appended | None, error: LogError | None) -> None:
            if appended is not None:
                self._end(planned, Outcome.ALL, appended.lsn)
                self._repeat(planned, producer, seq, messages, appended.lsn)
            elif self._waits_for_others(error, seq):
                # Another one is on its way before it.
                self.process.after(_AGAIN_S, self._course, Point.APPEND, rule, done)
                return
            elif isinstance(error, Fenced):
                self._end(planned, Outcome.NONE)
                self._seq = seq
                self._take_fence_back()
                return
            else:
                if not self._may_be_gone(error):
                    self._broken(f"call {planned.number}", error)
                self._gone = True
                self._end(planned, Outcome.ANY)
                return
            self._next()

        self._course(Point.APPEND, rule, done)

    def _repeat(
        self,
        planned: PlannedCall,
        producer: Producer,
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
            fine = fine or self._may_be_gone(error)
            if lies:
                fine = fine or isinstance(error, SeqReused)
            elif appended is not None:
                fine = appended.lsn == lsn or self._cast.oracle.restored
            if not fine:
                what = f"call {planned.number}, seq {seq} again: {appended} {error!r}"
                self._cast.oracle.broken("answers", f"{self.name}, {what}, not {lsn}")

        rule = partial(append, producer, seq, list(messages))
        restores = self._cast.oracle.restores

        def send() -> None:
            # A log that went back may not have the seq: then this would be the first.
            if restores == self._cast.oracle.restores:
                self._course(Point.APPEND, rule, done)

        self.process.after(0.5 * self._cast.random.random(), send)

    def _begin_transaction(self, producer: Producer, planned: PlannedCall) -> None:
        parts = [
            self._cast.messages(planned.number, part, planned.messages)
            for part in range(planned.amount)
        ]
        self._cast.oracle.begin(
            planned.number, self.index, [each for part in parts for each in part]
        )
        under_way = _Transaction(planned, self._under(planned), parts, self._seq)
        together = len(parts) if planned.behaviour == "pipelined" else 1
        for _ in range(min(together, self._window)):
            self._pend(producer, under_way)

    def _pend(self, producer: Producer, under_way: _Transaction) -> None:
        messages = under_way.parts[under_way.sent]
        under_way.sent += 1
        seq, self._seq = self._seq, self._seq + 1
        under_way.unanswered.add(seq)
        opened = tuple(under_way.opened)
        under_way.opened = sorted({*opened, *(tag for each in messages for tag in each.tags)})
        self._cast.oracle.fenced(producer.id, seq, _pair(under_way.fence))
        rule = partial(pend, producer, seq, messages, opened, fence=under_way.fence)

        def done(pended: Pended | None, error: LogError | None) -> None:
            failed = under_way.failed
            if self._waits_for_others(error, seq) and failed is None:
                self.process.after(_AGAIN_S, self._course, Point.PENDING, rule, done)
                return
            under_way.unanswered.remove(seq)
            if pended is not None:
                under_way.begins.update(pended.begins)
            elif error is not None and (failed is None or seq < failed[0]):
                under_way.failed = seq, error
            self._pended(producer, under_way)

        self._course(Point.PENDING, rule, done)

    def _pended(self, producer: Producer, under_way: _Transaction) -> None:
        unanswered = under_way.unanswered
        more = under_way.failed is None and under_way.sent < len(under_way.parts)
        if more and self._seq - min(unanswered, default=self._seq) < self._window:
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
                self.process.after(1.2 * RETENTION_S, mark)
            return
        seq, error = under_way.failed
        self._seq = seq
        if isinstance(error, Fenced):
            self._roll_back(producer, under_way)
            return
        if not self._may_be_gone(error):
            self._broken(f"call {planned.number}", error)
        # Nothing commits it any more.
        self._gone = True
        self._end(planned, Outcome.NONE)

    def _roll_back(self, producer: Producer, under_way: _Transaction) -> None:
        """End a try that failed before the next one begins."""
        if under_way.begins:
            self._mark(producer, under_way, commits=False, fence=None)
        else:
            self._end(under_way.call, Outcome.NONE)
            self._take_fence_back()

    def _mark(
        self, producer: Producer, under_way: _Transaction, *, commits: bool, fence: Fence | None
    ) -> None:
        planned = under_way.call
        seq, self._seq = self._seq, self._seq + 1
        decisions = (Decision(producer.id, seq - 1, dict(under_way.begins)),)
        self._cast.oracle.fenced(producer.id, seq, _pair(fence))
        noted = self.keeps and commits and fence is None
        if noted:
            self._note = _Note(planned.number, producer, seq, decisions)
            self._ended(planned.number, Outcome.ALL, None)

        def done(appended: Appended | None, error: LogError | None) -> None:
            self._note = None
            if appended is not None:
                lsn = appended.lsn if commits else None
                self._end(planned, Outcome.ALL if commits else Outcome.NONE, lsn)
                if under_way.failed is not None:
                    self._take_fence_back()
                else:
                    self._next()
            elif isinstance(error, Fenced) and fence is not None:
                self._seq = seq
                under_way.failed = seq, error
                self._roll_back(producer, under_way)
            else:
                gone = self._may_be_gone(error)
                gone = gone or (isinstance(error, SpanGone) and self._cast.oracle.restored)
                if not gone or (noted and not self._cast.oracle.restored):
                    self._broken(f"the marker of {planned.number}", error)
                self._gone = True
                self._end(planned, Outcome.ANY if commits else Outcome.NONE)

        rule = partial(decide, producer, seq, decisions, commits=commits, fence=fence)
        self._course(Point.MARKER, rule, done)

    # -- a marker over what another producer has pending --------------------------------------

    def _begin_joint(self, producer: Producer, planned: PlannedCall) -> None:
        parts = [
            self._cast.messages(planned.number, part, planned.messages)
            for part in range(planned.amount)
        ]
        self._cast.oracle.begin(
            planned.number, self.index, [each for part in parts for each in part]
        )
        begins: dict[str, int] = {}

        def granted(helper: Producer | None, error: LogError | None) -> None:
            if helper is None:
                self._broken("being granted a helper", error)
                return
            self.helper = helper
            pend_next(helper, 1)

        def pend_next(helper: Producer, seq: int) -> None:
            if seq > len(parts):
                self._decide_joint(producer, planned, helper, Decision(helper.id, seq - 1, begins))
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
                    # Somebody decided it meanwhile.
                    self._end_joint(planned, helper, Outcome.NONE, None)
                    return
                pend_next(helper, seq + 1)

            self._course(Point.PENDING, partial(pend, helper, seq, parts[seq - 1], opened), done)

        self._helped_in = self._cast.oracle.restores
        token = self._cast.random.randbytes(16)
        self._course(Point.GRANTING, partial(grant, token, self._window), granted)

    def _decide_joint(
        self, producer: Producer, planned: PlannedCall, helper: Producer, decision: Decision
    ) -> None:
        cast = self._cast
        commits = planned.op == "commit"
        seq, self._seq = self._seq, self._seq + 1
        cast.oracle.fenced(producer.id, seq, None)
        if planned.behaviour == "straggler":
            # It goes on though it has said that it is done.
            extra = cast.messages(planned.number, planned.amount, 2)
            cast.oracle.never(extra)
            late = partial(pend, helper, decision.through + 1, extra, sorted(decision.begins))
            self._course(Point.PENDING, late, lambda pended, error: None)
        elif planned.behaviour == "rival":
            # Somebody who took this writer for dead rolls back what it has pending.
            self._sweeper.roll_back(decision)

        def done(appended: Appended | None, error: LogError | None) -> None:
            if appended is not None and commits:
                self._end_joint(planned, helper, Outcome.ALL, None, appended.lsn)
            elif appended is not None:
                self._end_joint(planned, helper, Outcome.NONE, None)
            else:
                if isinstance(error, SpanGone):
                    self._seq = seq
                unknown = commits and isinstance(error, _GONE)
                self._end_joint(planned, helper, Outcome.ANY if unknown else Outcome.NONE, error)

        rule = partial(decide, producer, seq, (decision,), commits=commits)
        later = 0.004 * cast.random.random()
        self.process.after(later, self._course, Point.MARKER, rule, done)

    def _end_joint(
        self,
        planned: PlannedCall,
        helper: Producer,
        outcome: Outcome,
        error: LogError | None,
        lsn: int | None = None,
    ) -> None:
        stale = self._stale() or self._helped_in < self._cast.oracle.restores
        if not (error is None or isinstance(error, SpanGone | ProducerRetired) or stale):
            self._broken(f"call {planned.number}", error)

        # It is known from now on, of the log as it is now.
        self._ended(planned.number, outcome, lsn)

        def retired(highest: int | None, error: LogError | None) -> None:
            if error is not None and not self._cast.oracle.restored:
                self._broken("retiring its helper", error)
            self.helper = None
            self._gone = lost
            self._leave(planned)
            self._next()

        lost = error is not None and not isinstance(error, SpanGone)
        self._course(Point.RETIRING, partial(retire, helper.id), retired)


def _pair(fence: Fence | None) -> tuple[str, int] | None:
    return None if fence is None else (fence.name, fence.number)
