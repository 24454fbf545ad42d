"""Model of the world: what Spark does with one plan of a batch, its tasks and its commit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from chaos.sim.log.cast import Cast
from chaos.sim.query.attempt import Owner, TaskRun
from chaos.sim.query.closer import Closer
from chaos.sim.query.parts import Part
from sharedlog._core.errors import LogError
from sharedlog._core.query.attempt import TaskResult
from sharedlog._core.query.closing import Closed
from sharedlog._core.query.state import Ticket

__all__ = ["Batch"]

# As Spark's spark.task.maxFailures.
_FAILURES = 4
# How long what a dead driver began goes on, at most.
_ZOMBIE_S = 4.0


class Batch:
    """Runs all tasks, then commits; its owner hears of its end, while that lives."""

    def __init__(
        self,
        cast: Cast,
        owner: Owner,
        ticket: Ticket,
        parts: Sequence[Part],
        done: Callable[[Closed | None, LogError | None], None],
    ) -> None:
        """``done`` gets what was committed, or what the batch failed with; None: tasks died."""
        self._cast = cast
        self._owner = owner
        self._ticket = ticket
        self._parts = parts
        self._done = done
        self._results: dict[int, TaskResult] = {}
        self._attempts: dict[int, list[TaskRun]] = {at: [] for at in range(len(parts))}
        self._failures = 0
        self._closer: Closer | None = None
        self._over = False

    def start(self) -> None:
        """Launch an attempt of each task."""
        for at in range(len(self._parts)):
            self._launch(at)

    def running(self) -> list[TaskRun]:
        """Return the attempts that are there."""
        if self._over:
            return []
        return [each for those in self._attempts.values() for each in those if each.process.alive]

    def closer(self) -> Closer | None:
        """Return the commit in flight, if there is one."""
        return None if self._over else self._closer

    def speculate(self, slow: TaskRun) -> bool:
        """Launch another attempt beside one that is there; False: it is not."""
        found = next((at for at, those in self._attempts.items() if slow in those), None)
        if self._over or found is None or not slow.process.alive:
            return False
        self._launch(found)
        return True

    def abandon(self) -> None:
        """The driver is dead: what it began goes on for a while, or not."""
        self._over = True
        dice = self._cast.random
        left: list[TaskRun | Closer] = [
            each for those in self._attempts.values() for each in those if each.process.alive
        ]
        if self._closer is not None:
            left.append(self._closer)
        for each in left:
            if dice.random() < 0.4:
                each.kill()
            else:
                self._cast.loop.after(_ZOMBIE_S * dice.random(), each.kill)

    def _launch(self, at: int) -> None:
        ticket, those = self._ticket, self._attempts[at]
        name = f"{ticket.name} {ticket.plan}.{at}.{len(those)}"
        told = partial(self._told, at)
        attempt = TaskRun(self._cast, self._owner, name, ticket, self._parts[at], told)
        those.append(attempt)
        attempt.start()

    def _told(self, at: int, result: TaskResult | None, error: LogError | None) -> None:
        if self._over or at in self._results:
            return
        if result is None:
            self._failed(at, error)
            return
        self._results[at] = result
        for slower in self._attempts[at]:
            # Spark has it killed; where it does not hear of that it goes on.
            if slower.process.alive and self._cast.random.random() < 0.5:
                slower.kill()
        if len(self._results) == len(self._parts):
            self._close()

    def _failed(self, at: int, error: LogError | None) -> None:
        self._failures += 1
        if any(each.process.alive for each in self._attempts[at]):
            return
        if self._failures < _FAILURES:
            self._launch(at)
        else:
            self._end(None, error)

    def _close(self) -> None:
        results = [self._results[at] for at in sorted(self._results)]
        name = f"{self._ticket.name} {self._ticket.plan} closes"
        self._closer = Closer(self._cast, self._owner, name, results, self._closed)
        self._closer.start()

    def _closed(self, closed: Closed | None, error: LogError | None) -> None:
        if not self._over:
            self._end(closed, error)

    def _end(self, closed: Closed | None, error: LogError | None) -> None:
        self.abandon()
        self._done(closed, error)
