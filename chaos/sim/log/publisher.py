"""Driver of the product's producers: a process that publishes by one after another."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from chaos.sim.faults import Fault, Point
from chaos.sim.log.cast import Cast
from chaos.sim.log.course import Course, count
from chaos.sim.log.oracle import Outcome
from chaos.sim.log.sweeper import Sweeper
from chaos.sim.loop import Process
from chaos.sim.planned import PlannedCall, Setting
from sharedlog._core.entry import ProducerDecision
from sharedlog._core.errors import (
    AnswerGone,
    LogError,
    OutOfOrder,
    ProducerRetired,
    SeqReused,
    SpanGone,
    UnknownProducer,
)
from sharedlog._core.fences import Fence, raise_fence
from sharedlog._core.producers import Appended, ProducerId, grant
from sharedlog._core.spans import decide, retire

__all__ = ["AGAIN_S", "Note", "Publisher"]

AGAIN_S = 0.02


class Note(NamedTuple):
    """What a writer's own store commits: the marker that must be in the log after any crash."""

    call: int
    producer: ProducerId
    seq: int
    decisions: tuple[ProducerDecision, ...]


class Publisher(ABC):
    """Through its lives. ``keeps``: it has a store, and its successor retires what it left."""

    def __init__(
        self, cast: Cast, index: int, setting: Setting, sweeper: Sweeper, *, keeps: bool
    ) -> None:
        self.cast = cast
        self.index = index
        self.name = f"writer{index}"
        self.fence = f"f{index}"
        self.keeps = keeps
        self.window = setting.window
        self.sweeper = sweeper
        self.courses: dict[Course, None] = {}
        self.process = Process(cast.loop, self.name)
        self.process.alive = False
        self.waiting: deque[PlannedCall] = deque()
        self.running: dict[int, PlannedCall] = {}
        # Of appends that are not answered, by call.
        self.seqs: dict[int, int] = {}
        # In its store, if it has one.
        self.note: Note | None = None
        self._left: int | None = None
        # Of this life.
        self.producer: ProducerId | None = None
        self.helper: ProducerId | None = None
        self._number = 0
        self.seq = 1
        self.alone = False
        # Its producer was retired: it needs another one.
        self.gone = False
        # How often the log had been restored before it was granted, and its helper.
        self._granted_in = self.helped_in = 0

    # -- life ----------------------------------------------------------------------------

    def start(self) -> None:
        """Take over: the fence, then what the store says is committed, then what was left."""
        if self.process.alive or self.cast.over:
            return
        self.process = self.cast.life(self.name)
        self.courses.clear()
        self.producer = self.helper = None
        self.running.clear()
        self.seqs.clear()
        self.alone = self.gone = False
        self.course(Point.FENCING, partial(raise_fence, self.fence), self._raised)

    def crash(self, seconds: float) -> None:
        """Die with all that is in flight, whose outcome is unknown then."""
        if not self.process.alive:
            return
        count(self.cast, self, Fault.CRASH)
        self.cast.trace(self.name, f"dies with {list(self.running)}")
        self.process.kill()
        for left in (self.helper, None if self.keeps else self.producer):
            if left is not None:
                later = 2.0 * self.cast.random.random()
                self.cast.loop.after(later, self.sweeper.retire, left.id)
        self.cast.loop.after(seconds, self.start)

    def idle(self) -> bool:
        """Whether nothing is left to be done."""
        return self.process.alive and not (self.waiting or self.running or self.note)

    def course(
        self,
        point: Point,
        make: Callable[[], Any],
        done: Callable[[Any, LogError | None], None],
    ) -> None:
        """Carry a rule out, while this life lasts."""
        Course(self.cast, self, make, point, done).go()

    def _raised(self, number: int | None, error: LogError | None) -> None:
        if number is None:
            self.broken("raising its fence", error)
            return
        self._number = number
        if self.note is not None:
            self._finish(self.note)
        else:
            self._retire_left()

    def _finish(self, note: Note) -> None:
        def done(appended: Appended | None, error: LogError | None) -> None:
            self.note = None
            if appended is not None:
                self.ended(note.call, Outcome.ALL, appended.lsn)
            elif not self.cast.oracle.restored:
                self.broken(f"finishing {note.call}", error)
            self._retire_left()

        self.course(
            Point.MARKER,
            lambda: decide(note.producer, note.seq, note.decisions, commits=True),
            done,
        )

    def _retire_left(self) -> None:
        def done(highest: int | None, error: LogError | None) -> None:
            if error is not None and not self.cast.oracle.restored:
                self.broken("retiring what was left", error)
            self._left = None
            self._grant()

        if self.keeps and self._left is not None:
            self.course(Point.RETIRING, partial(retire, self._left), done)
        else:
            self._grant()

    def _grant(self) -> None:
        def done(producer: ProducerId | None, error: LogError | None) -> None:
            if producer is None:
                self.broken("being granted a producer", error)
                return
            self.producer, self.seq = producer, 1
            if self.keeps:
                self.cast.homes.add(producer.id)
            self._left = producer.id
            self.alone = False
            self.next_call()

        self.producer = None
        self._granted_in = self.cast.oracle.restores
        token = self.cast.random.randbytes(16)
        self.course(Point.GRANTING, partial(grant, token, self.window), done)

    def _lost_producer(self) -> None:
        """Go on with another one when nothing is in flight by the last."""
        self.gone = True
        if not self.running:
            self.gone, self.producer = False, None
            self._retire_left()

    def end(self, planned: PlannedCall, outcome: Outcome, lsn: int | None = None) -> None:
        """End a call, which is known from now on."""
        self.ended(planned.number, outcome, lsn)
        self.leave(planned)

    def leave(self, planned: PlannedCall) -> None:
        """Have a call no longer delay others."""
        self.running.pop(planned.number, None)
        self.seqs.pop(planned.number, None)
        self.alone = False
        if self.gone:
            self._lost_producer()

    def ended(self, call: int, outcome: Outcome, lsn: int | None) -> None:
        """Note what became of a call."""
        if self.cast.loop.tracing:
            self.cast.trace(self.name, f"call {call}: {outcome.value} {lsn or ''}")
        self.cast.oracle.ended(call, outcome, lsn)

    def broken(self, what: str, error: LogError | None) -> None:
        """Note that something was refused that nothing may refuse."""
        self.cast.oracle.broken("refused", f"{self.name}, {what}: {error!r}")

    def stale(self) -> bool:
        """Whether its producer may be of a log that is not there any more."""
        return self._granted_in < self.cast.oracle.restores

    def may_be_gone(self, error: LogError | None) -> bool:
        """Whether an error says that the producer is no more, as it may be."""
        if self.stale() and not self.cast.server.knows(self.producer):
            return isinstance(error, UnknownProducer)
        gone = UnknownProducer | OutOfOrder | SeqReused | AnswerGone | SpanGone
        return isinstance(error, ProducerRetired) or (self.stale() and isinstance(error, gone))

    def waits_for_others(self, error: LogError | None, seq: int) -> bool:
        """Whether an append came before those that it follows."""
        return isinstance(error, OutOfOrder) and error.expected < seq and not self.stale()

    def under(self, planned: PlannedCall) -> Fence | None:
        """Return the fence that a call is made under."""
        return Fence(self.fence, self._number) if planned.behaviour == "fenced" else None

    def take_fence_back(self) -> None:
        """Hold the fence again, which another process raised."""

        def done(number: int | None, error: LogError | None) -> None:
            if number is None:
                self.broken("raising its fence", error)
                return
            self._number = number
            self.alone = False
            self.next_call()

        self.alone = True
        self.course(Point.FENCING, partial(raise_fence, self.fence), done)

    @abstractmethod
    def next_call(self) -> None:
        """Begin what waits and may begin."""
