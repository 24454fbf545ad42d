"""Driver of the product's loops of a replica, which are events of a process here."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from chaos.sim.loop import Process, Timer
from chaos.sim.machine import Killed
from curp._core.appending import AppendBatch, LetBegin, Settle
from curp._core.poison_notes import NoteDown
from curp._core.read_lease import Renew
from curp._core.role import AwaitEntry
from curp._core.steps import Rest
from curp._replica.driver import Bounded, Do, Driver, Nested, Once, Rule
from curp.log._errors import LogError
from rifl._stores.pending import Pending
from rifl.core._serving.later import Later

__all__ = ["Bell", "Course", "Renewing", "SimulatedDriver"]

# Between what a step gave, and the next one.
_STEP_S = 0.0002
_REPLY_S = 0.0003
_AT_ONCE = frozenset((AppendBatch, NoteDown, Settle, LetBegin, Renew))
# What most steps give: nothing to wait for.
_PLAIN = frozenset((type(None), bool))


class Renewing(NamedTuple):
    """A renewal is in flight: for faults that are aimed at that."""


class Bell:
    """Stands for a condition, where no lock is needed: wakes the courses that rest on it."""

    def __init__(self) -> None:
        self._resting: list[Course] = []

    def __enter__(self) -> None:
        return None

    def __exit__(self, *exc: object) -> None:
        return None

    def rest(self, course: Course) -> None:
        """Have a course woken by the next one who rings."""
        if course not in self._resting:
            self._resting.append(course)

    def notify(self) -> None:
        """Wake the one that has rested longest."""
        if self._resting:
            self._resting.pop(0).wake()

    def notify_all(self) -> None:
        """Wake everyone."""
        while self._resting:
            self.notify()


class Course:
    """One rule on its way to its end; events of its process."""

    def __init__(
        self,
        driver: SimulatedDriver,
        rule: Rule,
        do: Do,
        done: Callable[[Any], object],
        failed: Callable[[Exception], object],
        bell: Bell | None = None,
    ) -> None:
        self._driver = driver
        self._rule = rule
        self._do = do
        self._done = done
        self._failed = failed
        self._bell = bell
        self._begun = self._resting = False
        self._over = Once()
        # What happens next, unless something is waited for.
        self._timer: Timer | None = None
        self._planned: tuple[Callable[..., None], tuple[Any, ...]] | None = None

    def start(self) -> None:
        """Begin."""
        self._begun = True
        self._plan(0.0, self._go_on, None)

    def go_on_now(self) -> None:
        """Begin, in the event that happens."""
        self._go_on(None)

    def ended(self) -> Pending:
        """Return what is done when it has ended; it is where it never began."""
        if not self._begun:
            self._over.end()
        return self._over

    def wake(self) -> None:
        """Look again, if it rests."""
        if self._resting:
            self._resting = False
            self._plan(0.0, self._go_on, None)

    def flush(self) -> None:
        """Do now whatever needs no waiting for anything else."""
        if self._resting:
            self.wake()
        while self._planned is not None and not self._resting:
            if self._timer is not None:
                self._timer.cancel()
            self._carry_on()

    def _plan(self, delay_s: float, action: Callable[..., None], *arguments: Any) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._resting = False
        self._planned = action, arguments
        self._timer = self._driver.process.after(delay_s, self._carry_on)

    def _carry_on(self) -> None:
        if self._planned is not None:
            action, arguments = self._planned
            self._timer = self._planned = None
            self._resting = False
            action(*arguments)

    def _go_on(self, answer: Any, error: Exception | None = None) -> None:
        rule = self._rule
        try:
            step = rule.send(answer) if error is None else rule.throw(error)
        except StopIteration as stop:
            self._done(stop.value)
            self._over.end()
            return
        except Exception as raised:  # noqa: BLE001 - for its starter
            self._failed(raised)
            self._over.end()
            return
        kind = type(step)
        if kind is Rest:
            self._rest(step)
            return
        if kind is Renew:
            self._driver.renew(step, self._do, self._next)
            return
        delay_s = self._driver.delay_s(step)
        if delay_s:
            self._plan(delay_s, self._take, step)
        else:
            self._take(step)

    def _rest(self, step: Rest) -> None:
        if self._bell is not None:
            self._bell.rest(self)
        if step.seconds is not None:
            self._plan(step.seconds, self._go_on, None)
        self._resting = True

    def _take(self, step: Any) -> None:
        try:
            answer = self._do(step)
        except Killed:
            return
        except Exception as error:  # noqa: BLE001 - the rule's to judge
            self._next(step, None, error)
            return
        if type(answer) in _PLAIN:
            self._next(step, answer, None)
            return
        process = self._driver.process
        if isinstance(answer, Nested):
            Course(
                self._driver,
                answer.rule,
                answer.do,
                lambda found: self._next(step, found, None),
                lambda error: self._next(step, None, error),
            ).go_on_now()
        elif isinstance(answer, Bounded):
            self._wait_for(step, answer)
        elif isinstance(answer, Pending):
            answer.add_callback(
                lambda done: process.after(0.0, self._next, step, done.result, done.error)
            )
        elif isinstance(answer, Later):
            raise TypeError(f"{step!r} gave {answer!r}, which no event ends")
        else:
            self._next(step, answer, None)

    def _wait_for(self, step: Any, bounded: Bounded) -> None:
        process = self._driver.process
        over = False

        def end(answer: bool, error: Exception | None) -> None:
            nonlocal over
            if not over:
                over = True
                self._next(step, answer, error)

        process.after(bounded.seconds, end, False, bounded.late)
        bounded.pending.add_callback(
            lambda done: process.after(0.0, end, done.error is None, done.error)
        )

    def _next(self, step: Any, answer: Any, error: Exception | None) -> None:
        if error is None:
            self._driver.did(step, answer)
        if type(step) in _AT_ONCE:
            self._go_on(answer, error)
        else:
            self._plan(_STEP_S, self._go_on, answer, error)


class SimulatedDriver(Driver):
    """Carries the product's rules out in one process, each step in an event of its own.

    ``did`` is told of each step that was done, and what it gave.
    """

    def __init__(self, process: Process, random: Random, did: Callable[[Any, Any], None]) -> None:
        self.process = process
        self.did = did
        self._random = random

    def clock(self) -> float:
        """Return the process's monotonic seconds."""
        return self.process.clock()

    def work(self) -> Bell:
        """Return what wakes loops."""
        return Bell()

    def loop(self, name: str, rule: Rule, do: Do, work: Any, ended: Do) -> Course:
        """Return a loop, which is not begun yet."""
        return Course(self, rule, do, lambda found: ended(None), ended, work)

    def begin(
        self,
        nested: Nested,
        done: Callable[[Any], object] = lambda found: None,
        failed: Callable[[Exception], object] = lambda error: None,
    ) -> None:
        """Carry a rule out, and tell what came of it."""
        Course(self, nested.rule, nested.do, done, failed).go_on_now()

    def delay_s(self, step: Any) -> float:
        """Return how long it takes until a step is done."""
        kind = type(step)
        if kind is AppendBatch:
            return 0.0003 + 0.001 * self._random.random()
        if kind is AwaitEntry:
            return 0.1 * (0.5 + self._random.random())
        return 0.0003 if kind is NoteDown else 0.0

    def renew(self, step: Renew, do: Do, done: Callable[[Any, Any, Any], None]) -> None:
        """Renew the leadership's lease by a request and its reply.

        The request arrives, though the leader be suspended by then; and what is asked of one
        that was may be answered before it learns that it leads no more.
        """
        process = self.process

        self.did(Renewing(), None)

        def arrive() -> None:
            if not process.alive:
                return
            refused: Exception | None = None
            try:
                do(step)
            except LogError as error:
                refused = error
            process.after(_REPLY_S, done, step, None, refused)

        process.loop.after(0.0005 + 0.002 * self._random.random(), arrive)
