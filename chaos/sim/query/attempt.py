"""Driver of the product's ``TaskAttempt`` of a task: it may outlive its driver, and be late."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, Protocol

from chaos.sim.faults import Fault, Point
from chaos.sim.log.cast import Cast
from chaos.sim.log.course import Course, count
from chaos.sim.query.parts import Part, written
from sharedlog._core.errors import Fenced, LogError
from sharedlog._core.query.attempt import TaskAttempt, TaskResult
from sharedlog._core.query.state import Ticket

__all__ = ["Owner", "TaskRun"]

_SIGN_S = 0.8


class Owner(Protocol):
    """Who has a batch run: it dies, and what it began goes on for a while."""

    def start(self) -> None:
        """Begin another life."""

    def crash(self, seconds: float) -> None:
        """Die, and begin again so much later."""


class TaskRun:
    """Reads its part, appends it, and tells its driver, if that lives."""

    def __init__(
        self,
        cast: Cast,
        owner: Owner,
        name: str,
        ticket: Ticket,
        part: Part,
        told: Callable[[TaskResult | None, LogError | None], None],
    ) -> None:
        """``told`` gets what it tells, or what it failed with; None of both: it died."""
        self._cast = cast
        self.owner = owner
        self.courses: dict[Course, None] = {}
        self.process = cast.life(name)
        self._rules = TaskAttempt(ticket, cast.random.randbytes(16))
        self._reading = part()
        self._told = told
        self._rows = self._content = 0
        # Some are slow.
        self._pace_s = cast.random.choice((0.0, 0.0, 0.02, 0.3))
        # Some have signed before they append.
        self._granted_first = ticket.batch % 2 == 1
        self._over = False

    def start(self) -> None:
        """Join."""
        self._course(Point.JOINING, self._rules.join, self._joined)

    def crash(self, seconds: float) -> None:
        """Have the driver die: what it began may go on."""
        count(self._cast, self, Fault.CRASH)
        self.owner.crash(seconds)

    def fail(self) -> None:
        """End, in the midst of it."""
        if self.process.alive and not self._over:
            count(self._cast, self, Fault.TASK_FAILED)
            self._cast.trace(self.process.name, "fails")
            self._end(None, None)

    def kill(self) -> None:
        """End it without a word to any process."""
        self.process.kill()

    def _joined(self, _: object, error: LogError | None) -> None:
        if error is None:
            self._say("has joined, and is told of a commit" if self._rules.replayed else "joined")
            self._read()
            self.process.after(_SIGN_S, self._sign)
        else:
            self._end(None, error)

    def _read(self) -> None:
        self._course(Point.FOLLOWING, self._reading.read, self._took)

    def _took(self, rows: list[bytes] | None, error: LogError | None) -> None:
        if rows is None:
            self._end(None, error)
        elif not rows:
            self._say(f"tells {self._rows} rows")
            self._end(self._rules.result(self._rows, self._content), None)
        else:
            self._rows += len(rows)
            self._content += sum(zlib.crc32(each) for each in rows)
            self._say(f"has read {b', '.join(rows).decode()}")
            if self._rules.replayed:
                self._read()
            elif self._granted_first:
                self._grant(rows)
            else:
                self._append(rows)

    def _grant(self, rows: list[bytes]) -> None:
        def done(_: object, error: LogError | None) -> None:
            if error is None:
                self._append(rows)
            else:
                self._end(None, error)

        self._course(Point.GRANTING, self._rules.grant, done)

    def _append(self, rows: list[bytes]) -> None:
        def done(_: object, error: LogError | None) -> None:
            if error is None:
                self._say(f"appended {len(rows)}")
                self.process.after(self._pace_s, self._read)
            else:
                self._end(None, error)

        messages = written(rows)
        self._course(Point.PENDING, lambda: self._rules.append(messages), done)

    def _sign(self) -> None:
        def done(_: object, error: LogError | None) -> None:
            if not isinstance(error, Fenced):
                self.process.after(_SIGN_S, self._sign)

        if self._rules.granted and not self._over:
            self._course(Point.SIGNING, self._rules.sign, done)
        elif not self._over:
            self.process.after(_SIGN_S, self._sign)

    def _course(self, point: Point, make: Callable[[], Any], done: Callable[..., None]) -> None:
        Course(self._cast, self, make, point, done).go()

    def _say(self, text: str) -> None:
        if self._cast.loop.tracing:
            self._cast.trace(self.process.name, text)

    def _end(self, result: TaskResult | None, error: LogError | None) -> None:
        self._over = True
        self.process.kill()
        if error is not None:
            self._say(f"fails: {error!r}")
        # The driver hears of it a moment later, if it is there.
        self._cast.loop.after(0.002 * self._cast.random.random(), self._told, result, error)
