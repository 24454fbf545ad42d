"""Driver of the product's rules of a log: one on its way to its end, by events."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import Any, Protocol

from chaos.sim.faults import Coverage, Fault, Point
from chaos.sim.log.server import LogServer
from chaos.sim.loop import Loop, Process
from sharedlog._core.commit import Refused
from sharedlog._core.errors import LogError, LogUnavailable
from sharedlog._core.steps import Rule

__all__ = ["Actor", "Course", "Stage", "count"]

_BACKOFF_S = 0.05


class Actor(Protocol):
    """A process through its lives."""

    process: Process
    courses: dict[Course, None]

    def start(self) -> None:
        """Begin a life, unless it lives."""

    def crash(self, seconds: float) -> None:
        """Die, and begin again so much later."""


class Stage(Protocol):
    """What a course needs of the simulated world."""

    loop: Loop
    server: LogServer
    random: Random
    coverage: Coverage

    def reached(self, actor: Actor, point: Point) -> None:
        """Have what waited for this strike."""


class Course:
    """A rule, made anew and run again until it is known what became of it."""

    def __init__(
        self,
        cast: Stage,
        actor: Actor,
        make: Callable[[], Rule[Any]],
        point: Point,
        done: Callable[[Any, LogError | None], None],
        *,
        until: float = math.inf,
    ) -> None:
        """``done`` gets what the rule returned, or what it refused with.

        ``until``: after that time of the world a rule that is not answered is not run again.
        """
        self._cast = cast
        self._actor = actor
        self._process = actor.process
        self._make = make
        self._done = done
        self._until = until
        self.point = point
        self._rule: Rule[Any]
        actor.courses[self] = None

    def go(self) -> None:
        """Begin, or begin again."""
        self._rule = self._make()
        self._carry_on(None)

    def _carry_on(self, answer: Any, refused: Refused | None = None) -> None:
        rule = self._rule
        try:
            step = rule.send(answer) if refused is None else rule.throw(refused)
        except StopIteration as stop:
            self._end(stop.value, None)
        except LogError as error:
            self._end(None, error)
        else:
            self._cast.server.ask(self._process, step, self.point, self._answered)
            self._cast.reached(self._actor, self.point)

    def _answered(self, answer: Any, error: Exception | None) -> None:
        if error is None:
            self._carry_on(answer)
        elif isinstance(error, Refused):
            self._carry_on(None, error)
        elif isinstance(error, LogUnavailable) and self._cast.loop.now < self._until:
            self._process.after(_BACKOFF_S * (0.5 + self._cast.random.random()), self.go)
        elif isinstance(error, LogError):
            self._end(None, error)
        else:
            raise error

    def _end(self, found: Any, error: LogError | None) -> None:
        self._actor.courses.pop(self, None)
        self._done(found, error)


def count(cast: Stage, actor: Actor, fault: Fault) -> None:
    """Count a fault at all that a process is about."""
    for course in actor.courses:
        cast.coverage.hit(fault, course.point)
    if not actor.courses:
        cast.coverage.hit(fault, Point.IDLE)
