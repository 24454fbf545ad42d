"""Driver of the product's commit of a batch: it may outlive its driver, and run again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from chaos.sim.faults import Fault, Point
from chaos.sim.log.cast import Cast
from chaos.sim.log.course import Course, count
from chaos.sim.query.attempt import Owner
from sharedlog._core.errors import LogError
from sharedlog._core.query.attempt import TaskResult, batch_of
from sharedlog._core.query.cleaning import OPERATIONS
from sharedlog._core.query.closing import Closed, close

__all__ = ["Closer"]


class Closer:
    """Commits what tasks told; in some runs twice."""

    def __init__(
        self,
        cast: Cast,
        owner: Owner,
        name: str,
        results: Sequence[TaskResult],
        told: Callable[[Closed | None, LogError | None], None],
    ) -> None:
        self._cast = cast
        self.owner = owner
        self.courses: dict[Course, None] = {}
        self.process = cast.life(name)
        self._ticket = results[0].ticket
        self._batch = batch_of(results)
        self._told = told
        self._twice = cast.random.random() < 0.2

    def start(self) -> None:
        """Commit."""
        self._go(self._closed)

    def crash(self, seconds: float) -> None:
        """Have the driver die."""
        count(self._cast, self, Fault.CRASH)
        self.owner.crash(seconds)

    def kill(self) -> None:
        """End it without a word to any process."""
        self.process.kill()

    def _go(self, done: Callable[[Closed | None, LogError | None], None]) -> None:
        # Some are frozen first, as those of many tasks are.
        at_once = OPERATIONS * (self._ticket.plan % 2)
        rule = partial(close, self._ticket, self._batch, at_once=at_once)
        Course(self._cast, self, rule, Point.CLOSING, done).go()

    def _closed(self, closed: Closed | None, error: LogError | None) -> None:
        if self._cast.loop.tracing:
            self._cast.trace(self.process.name, f"{closed or error!r}")
        if closed is not None and self._twice:
            self._go(partial(self._again, closed))
        else:
            self._told(closed, error)

    def _again(self, first: Closed, closed: Closed | None, error: LogError | None) -> None:
        if closed is not None and (not closed.again or closed.query.lsn != first.query.lsn):
            self._cast.oracle.broken("twice", f"{self.process.name}: {closed} after {first}")
        # Refused it was too late: another run is in by now.
        self._told(first, None)
