"""Driver of the product's named appends: two processes that publish under one name (§12, L3).

Each asks for the name's highest seq and publishes the next. Of two that take the same one has it;
what one was about when it died, its next life does again, as the same turn.
"""

from __future__ import annotations

import hashlib
from functools import partial
from typing import NamedTuple

from chaos.sim.faults import Fault, Point
from chaos.sim.log.cast import Cast
from chaos.sim.log.course import Course, count
from chaos.sim.log.oracle import Outcome
from chaos.sim.loop import Process
from sharedlog._core.entry import ProducerDecision
from sharedlog._core.errors import (
    AlreadyCommitted,
    LogError,
    PredecessorMismatch,
    ProducerRetired,
    SpanGone,
    UnknownProducer,
)
from sharedlog._core.named import Turn, append_named, decide_named, highest_of
from sharedlog._core.producers import Appended, NewMessage, ProducerId, grant
from sharedlog._core.spans import Pended, pend

__all__ = ["NAME", "Relay"]

NAME = "relay"
_TURNS = 14
_PAUSE_S = 1.5
# Before the numbers of what relays publish.
_FIRST_CALL = 100_000


class _UnderWay(NamedTuple):
    """In its store: the turn it is about."""

    call: int
    turn: Turn
    messages: list[NewMessage]

    @property
    def content(self) -> bytes:
        joined = b"\n".join(each.envelope for each in self.messages)
        return hashlib.blake2b(joined, digest_size=16).digest()


class Relay:
    """Through its lives."""

    def __init__(self, cast: Cast, index: int) -> None:
        self._cast = cast
        self._index = index
        self.name = f"relay{index}"
        self.courses: dict[Course, None] = {}
        self.process = Process(cast.loop, self.name)
        self.process.alive = False
        self._left = _TURNS
        self._under_way: _UnderWay | None = None

    def start(self) -> None:
        """Begin a life with what the last one was about."""
        if self.process.alive or self._cast.over:
            return
        self.process = self._cast.life(self.name)
        self.courses.clear()
        self._go_on()

    def crash(self, seconds: float) -> None:
        """Die; its next life does the same turn."""
        if self.process.alive:
            count(self._cast, self, Fault.CRASH)
            self.process.kill()
            self._cast.loop.after(seconds, self.start)

    def idle(self) -> bool:
        """Whether nothing is left to be done."""
        return self.process.alive and not self._left and self._under_way is None

    def _go_on(self) -> None:
        if self._under_way is not None:
            self._send(self._under_way)
        elif self._left:
            later = _PAUSE_S * self._cast.random.random()
            self.process.after(later, self._ask)

    def _ask(self) -> None:
        Course(self._cast, self, partial(highest_of, NAME), Point.NAMED, self._asked).go()

    def _asked(self, highest: int | None, error: LogError | None) -> None:
        if highest is None:
            self._broken("asking for its highest seq", error)
            return
        dice = self._cast.random
        self._left -= 1
        # Some skip a turn, which is not allowed.
        follows = highest + (dice.random() < 0.15)
        call = _FIRST_CALL * (1 + self._index) + self._left
        messages = self._cast.messages(call, 0, dice.randint(1, 3))
        self._cast.oracle.begin(call, _FIRST_CALL + self._index, messages)
        self._under_way = _UnderWay(call, Turn(NAME, follows + 1, follows), messages)
        self._send(self._under_way)

    def _send(self, mine: _UnderWay) -> None:
        if mine.call % 3 == 0:
            self._pend(mine)
            return
        rule = partial(append_named, mine.turn, mine.content, mine.messages)
        Course(self._cast, self, rule, Point.NAMED, partial(self._ended, mine)).go()

    def _pend(self, mine: _UnderWay) -> None:
        """Have a producer of its own hold the messages, until the name's marker commits them."""

        def granted(producer: ProducerId | None, error: LogError | None) -> None:
            if producer is None:
                self._broken("being granted a producer", error)
                return
            rule = partial(pend, producer, 1, mine.messages, ())
            done = partial(pended, producer)
            Course(self._cast, self, rule, Point.PENDING, done).go()

        def pended(producer: ProducerId, found: Pended | None, error: LogError | None) -> None:
            if found is None:
                self._ended(mine, None, error)
                return
            decision = ProducerDecision(producer.id, 1, dict(found.begins))
            rule = partial(decide_named, mine.turn, mine.content, [decision])
            Course(self._cast, self, rule, Point.NAMED, partial(self._ended, mine)).go()

        token = self._cast.random.randbytes(16)
        Course(self._cast, self, partial(grant, token), Point.GRANTING, granted).go()

    def _ended(self, mine: _UnderWay, found: Appended | None, error: LogError | None) -> None:
        oracle = self._cast.oracle
        if found is not None:
            self._cast.trace(self.name, f"seq {mine.turn.seq} is at {found.lsn}")
            oracle.ended(mine.call, Outcome.ALL, found.lsn)
        elif isinstance(error, SpanGone | ProducerRetired | UnknownProducer):
            # Taken for dead: as the same turn, by another producer.
            self.process.after(0.1, self._send, mine)
            return
        elif isinstance(error, PredecessorMismatch):
            oracle.ended(mine.call, Outcome.NONE)
        elif isinstance(error, AlreadyCommitted):
            # Passed over, it may have been its own; in a log that went back, too.
            other = "with other content" in str(error) and not oracle.restored
            oracle.ended(mine.call, Outcome.NONE if other else Outcome.ANY)
        else:
            self._broken(f"seq {mine.turn.seq}", error)
        self._under_way = None
        self._go_on()

    def _broken(self, what: str, error: LogError | None) -> None:
        self._cast.oracle.broken("refused", f"{self.name}, {what}: {error!r}")
