"""A follower of some substreams, whose position is kept with what it did (DESIGN-LOG §13, C4)."""

from __future__ import annotations

from collections.abc import Sequence

from chaos.sim.faults import Fault, Point
from chaos.sim.log.cast import Cast
from chaos.sim.log.course import Course, count
from chaos.sim.log.oracle import Delivered
from chaos.sim.loop import Process
from sharedlog._core.errors import LogError, LogForked
from sharedlog._core.following import Follower as Rules
from sharedlog._core.incarnation import read_incarnation
from sharedlog._core.position import Position
from sharedlog._core.reading import Committed

__all__ = ["Follower"]

_POLL_S = 0.15


class Follower:
    """Reads by rules of the product; what it has done outlives its process."""

    def __init__(self, cast: Cast, index: int, tags: Sequence[str]) -> None:
        self._cast = cast
        self.tags = tags
        self.name = f"follower{index}"
        dice = cast.random
        # How much it reads ahead, bytes.
        self._ahead = dice.choice((1, 2000, 1 << 20))
        # How often it stops within a batch, and forgets the rest.
        self._forgets = dice.choice((0.0, 0.3))
        self.courses: dict[Course, None] = {}
        self.process = Process(cast.loop, self.name)
        self.process.alive = False
        # Durable, together.
        self.read: list[Delivered] = []
        self._position: Position | None = None
        self.forked = False
        self.through = 0
        self._rules: Rules

    def start(self) -> None:
        """Begin a life where the last one had come to."""
        if self.process.alive or self._cast.over or self.forked:
            return
        self.process = Process(self._cast.loop, self.name)
        self.courses.clear()
        Course(self._cast, self, read_incarnation, Point.FOLLOWING, self._opened).go()

    def crash(self, seconds: float) -> None:
        """Die; what was read and not kept is read again."""
        if self.process.alive:
            count(self._cast, self, Fault.CRASH)
            self.process.kill()
            self._cast.loop.after(seconds, self.start)

    def _opened(self, incarnation: str | None, error: LogError | None) -> None:
        if incarnation is None:
            self._refused(error)
            return
        self._begin(incarnation)

    def _begin(self, incarnation: str) -> None:
        self._rules = Rules(self.tags, incarnation, self._position, ahead_bytes=self._ahead)
        self._poll()

    def _poll(self) -> None:
        rules = self._rules
        # The log's own time is not asked for: it has no hold.
        Course(self._cast, self, lambda: rules.read(0), Point.FOLLOWING, self._took).go()

    def _took(self, found: list[Committed] | None, error: LogError | None) -> None:
        if found is None:
            self._refused(error)
            return
        again = len(found) > 1 and self._cast.random.random() < self._forgets
        messages = found[: self._cast.random.randrange(1, len(found))] if again else found
        for message in messages:
            self.read.append((message.envelope, message.position.lsn))
            self._position = message.position
        if messages and self._cast.loop.tracing:
            text = ", ".join(each.envelope.decode() for each in messages)
            self._cast.trace(self.name, f"{', '.join(self.tags)}: {text}")
        self.through = self._rules.through if not messages else 0
        if again and self._position is not None:
            self.process.after(0.001, self._begin, self._position.incarnation)
        else:
            self.process.after(0.001 if messages else _POLL_S, self._poll)

    def _refused(self, error: LogError | None) -> None:
        if isinstance(error, LogForked) and self._cast.oracle.restored:
            self._cast.trace(self.name, f"stops: {error}")
            self.forked = True
            return
        self._cast.oracle.broken("refused", f"{self.name}: {error!r}")
