"""Driver of the product's retiring and fences: an operator who never dies."""

from __future__ import annotations

from functools import partial

from chaos.sim.faults import Point
from chaos.sim.log.cast import Cast
from chaos.sim.log.course import Course
from chaos.sim.loop import Process
from sharedlog._core.entry import ProducerDecision
from sharedlog._core.errors import LogError, ProducerRetired, SpanGone, UnknownProducer
from sharedlog._core.fences import raise_fence
from sharedlog._core.producers import ProducerId, grant
from sharedlog._core.spans import decide, retire

__all__ = ["Sweeper"]


class Sweeper:
    """One process with courses of its own."""

    def __init__(self, cast: Cast) -> None:
        self._cast = cast
        self.courses: dict[Course, None] = {}
        self.process = Process(cast.loop, "sweeper")

    def start(self) -> None:
        """It lives."""

    def crash(self, seconds: float) -> None:
        """Go on: another one would do the same."""

    def begin_again(self) -> None:
        """Be another process, with none of what the last one was about."""
        self.process.kill()
        self.courses.clear()
        self.process = Process(self._cast.loop, "sweeper")

    def retire(self, producer: int) -> None:
        """End a producer."""
        self._cast.trace("sweeper", f"retires {producer}")
        Course(self._cast, self, partial(retire, producer), Point.RETIRING, self._ended).go()

    def take_over(self, name: str) -> None:
        """Raise a fence, as a process that takes its holder for dead."""
        self._cast.trace("sweeper", f"raises {name}")
        Course(self._cast, self, partial(raise_fence, name), Point.FENCING, self._ended).go()

    def roll_back(self, decision: ProducerDecision) -> None:
        """Decide what another producer has pending, as who takes its writer for dead."""
        self._cast.trace("sweeper", f"rolls {decision.producer} back")

        def granted(producer: ProducerId | None, error: LogError | None) -> None:
            if producer is None:
                self._ended(None, error)
                return
            self._cast.oracle.fenced(producer.id, 1, None)
            rule = partial(decide, producer, 1, (decision,), commits=False)
            Course(self._cast, self, rule, Point.MARKER, decided).go()

        def decided(found: object, error: LogError | None) -> None:
            # Another process was first.
            self._ended(found, None if isinstance(error, SpanGone | ProducerRetired) else error)

        token = self._cast.random.randbytes(16)
        Course(self._cast, self, partial(grant, token), Point.GRANTING, granted).go()

    def _ended(self, found: object, error: LogError | None) -> None:
        if error is not None and not (
            isinstance(error, UnknownProducer) and self._cast.oracle.restored
        ):
            self._cast.oracle.broken("refused", f"sweeper: {error!r}")
