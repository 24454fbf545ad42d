"""Driver of the product's producers: what queries read; it never dies."""

from __future__ import annotations

from functools import partial

from chaos.sim.faults import Point
from chaos.sim.log.cast import Cast
from chaos.sim.log.course import Course
from chaos.sim.query.parts import IN, placed
from sharedlog._core.entry import ProducerDecision
from sharedlog._core.errors import LogError
from sharedlog._core.producers import Appended, ProducerId, append, grant
from sharedlog._core.publishing import committing, pending
from sharedlog._core.spans import Pended, decide, pend

__all__ = ["Publisher"]

_MOST = 12


class Publisher:
    """One process; what comes while it is about something waits."""

    def __init__(self, cast: Cast) -> None:
        self._cast = cast
        self.courses: dict[Course, None] = {}
        self.process = cast.life("publisher")
        self._producer: ProducerId | None = None
        self._waiting: list[bytes] = []
        self._busy = True
        self._seq = 0

    def start(self) -> None:
        """Be granted a producer, once."""
        if self._producer is None and not self.courses:
            token = self._cast.random.randbytes(16)
            Course(self._cast, self, partial(grant, token), Point.GRANTING, self._granted).go()

    def crash(self, seconds: float) -> None:
        """Go on: another one would do the same."""

    def publish(self, row: bytes) -> None:
        """Publish a row, when its turn comes."""
        self._waiting.append(row)
        if not self._busy:
            # With what comes at once.
            self._busy = True
            self.process.after(0.05, self._next)

    def idle(self) -> bool:
        """Whether everything is in the log."""
        return not (self._waiting or self.courses)

    def _granted(self, producer: ProducerId | None, error: LogError | None) -> None:
        if producer is None:
            self._broken(error)
            return
        self._producer = producer
        self._next()

    def _next(self) -> None:
        if self._producer is None or not self._waiting:
            self._busy = False
            return
        self._busy = True
        rows = self._waiting[:_MOST]
        del self._waiting[:_MOST]
        self._seq += 1
        if self._cast.loop.tracing:
            self._cast.trace("publisher", f"publishes {b', '.join(rows).decode()}")
        if self._cast.random.random() < 0.7:
            messages = committing(placed(IN, rows))
            rule = partial(append, self._producer, self._seq, messages)
            Course(self._cast, self, rule, Point.APPEND, self._appended).go()
        else:
            messages = pending(placed(IN, rows))
            begun = partial(pend, self._producer, self._seq, messages, ())
            Course(self._cast, self, begun, Point.PENDING, self._pended).go()

    def _pended(self, found: Pended | None, error: LogError | None) -> None:
        if found is None or self._producer is None:
            self._broken(error)
            return
        decision = ProducerDecision(self._producer.id, self._seq, dict(found.begins))
        self._seq += 1
        rule = partial(decide, self._producer, self._seq, [decision], commits=True)
        Course(self._cast, self, rule, Point.MARKER, self._appended).go()

    def _appended(self, found: Appended | None, error: LogError | None) -> None:
        if found is None:
            self._broken(error)
        else:
            self._next()

    def _broken(self, error: LogError | None) -> None:
        self._cast.oracle.broken("refused", f"publisher: {error!r}")
