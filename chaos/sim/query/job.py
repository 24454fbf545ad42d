"""Driver of the product's batch writes: by a name until one is committed, or once without."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from chaos.sim.faults import Fault, Point
from chaos.sim.log.cast import Cast
from chaos.sim.log.course import Course, count
from chaos.sim.query.batch import Batch
from chaos.sim.query.parts import given
from sharedlog._core.errors import Fenced, LogError, LogUnavailable
from sharedlog._core.query.closing import Closed, forget, remove_write
from sharedlog._core.query.joining import begin_write
from sharedlog._core.query.state import WRITE, Ticket, draw_plan

__all__ = ["Job"]

_TASKS = 3


class Job:
    """One user's write. ``named``: he runs it again until it is committed, else it is run once.

    ``forgotten``: then an operator has its name forgotten.
    """

    def __init__(
        self, cast: Cast, name: str, rows: Sequence[bytes], *, named: bool, forgotten: bool = False
    ) -> None:
        self._cast = cast
        self.name = name
        self.rows = rows
        self.named = named
        self.forgotten = forgotten
        self.courses: dict[Course, None] = {}
        self.process = cast.life(name)
        self.process.alive = False
        self.batch: Batch | None = None
        self.committed = self.over = False
        self._runs = 0

    def start(self) -> None:
        """Run the job, unless it is done."""
        if self.process.alive or self._cast.over or self.over:
            return
        self._runs += 1
        self.process = self._cast.life(f"{self.name}#{self._runs}")
        self.courses.clear()
        rule = draw_plan if self.named else partial(begin_write, self.name)
        self._course(Point.PLANNING, rule, self._planned)

    def crash(self, seconds: float) -> None:
        """Die; what its tasks are about goes on for a while."""
        if self.process.alive:
            count(self._cast, self, Fault.CRASH)
            self._die()
            # A job that was committed and forgotten does not run again.
            self.over = self.committed or not self.named
            self._cast.loop.after(seconds, self.start)

    def idle(self) -> bool:
        """Whether it is done."""
        return self.over

    def _die(self) -> None:
        self.process.kill()
        if self.batch is not None:
            self.batch.abandon()
            self.batch = None

    def _planned(self, plan: int | None, error: LogError | None) -> None:
        if plan is None:
            self._failed(error)
            return
        ticket = Ticket(self.name, "job" if self.named else WRITE, "", plan, 0)
        if self._cast.loop.tracing:
            self._cast.trace(self.process.name, f"plans {ticket}")
        parts = [given(self.rows[at::_TASKS]) for at in range(_TASKS)]
        self.batch = Batch(self._cast, self, ticket, parts, self._closed)
        self.batch.start()

    def _closed(self, closed: Closed | None, error: LogError | None) -> None:
        self.batch = None
        if closed is None:
            self._failed(error)
            return
        self.committed = True
        if self.forgotten:
            self._course(Point.CLOSING, partial(forget, self.name), lambda *_: self._end())
        elif self.named:
            self._end()
        else:
            self._removed()

    def _end(self) -> None:
        self.over = True
        self.process.kill()

    def _failed(self, error: LogError | None) -> None:
        if error is not None and not isinstance(error, Fenced | LogUnavailable):
            self._cast.oracle.broken("refused", f"{self.process.name}: {error!r}")
            self.over = True
        if self.named or self.over:
            self._die()
            self._cast.loop.after(0.2 + self._cast.random.random(), self.start)
        else:
            # Spark's abort: appends of late tasks belong to no plan.
            self._removed()

    def _removed(self) -> None:
        rule = partial(remove_write, self.name)
        self._course(Point.CLOSING, rule, lambda *_: self._end())

    def _course(self, point: Point, make: Callable[[], Any], done: Callable[..., None]) -> None:
        Course(self._cast, self, make, point, done).go()
