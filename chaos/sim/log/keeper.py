"""Driver of the product's trimming and sweeping: two processes that take turns (§12, §13)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from chaos.sim.faults import Fault, Point
from chaos.sim.log.cast import Cast
from chaos.sim.log.course import Course, count
from chaos.sim.log.onlooker import RETENTION_S, SILENT_S, who_of
from chaos.sim.loop import Process
from sharedlog._core import sweeping
from sharedlog._core.duty import Duty
from sharedlog._core.errors import Fenced, LogError, TrimmedLog
from sharedlog._core.fences import Fence
from sharedlog._core.trim import Committers, trim

__all__ = ["Keeper", "Sweeping", "Trimmer"]

_PATIENCE_S = 1.5


class Keeper:
    """Looks again and again whether it has the duty; through its lives."""

    def __init__(self, cast: Cast, duty: str, index: int, every_s: float) -> None:
        self._cast = cast
        self.name = f"{duty} {index}"
        self._duty_name = duty
        self._every_s = every_s
        self._lives = 0
        self.courses: dict[Course, None] = {}
        self.process = Process(cast.loop, self.name)
        self.process.alive = False

    def start(self) -> None:
        """Begin a life, under another identity than before."""
        if self.process.alive or self._cast.over:
            return
        self._lives += 1
        self.process = self._cast.life(f"{self.name}.{self._lives}", self.name)
        self.courses.clear()
        self._duty = Duty(self._duty_name, who_of(self.process.name), _PATIENCE_S)
        self.begin()
        self._round()

    def begin(self) -> None:
        """Forget what another life knew."""

    def crash(self, seconds: float) -> None:
        """Die; another life is another one's duty."""
        if self.process.alive:
            count(self._cast, self, Fault.CRASH)
            self.process.kill()
            self._cast.loop.after(seconds, self.start)

    def act(self, fence: Fence) -> None:
        """Do the work that is due, and call ``again``."""
        raise NotImplementedError

    def again(self) -> None:
        """Make the next round in a while."""
        self.process.after(self._every_s, self._round)

    def course(
        self, point: Point, make: Callable[[], Any], done: Callable[[Any, LogError | None], None]
    ) -> None:
        """Carry a rule out."""
        Course(self._cast, self, make, point, done).go()

    def refused(self, error: LogError | None) -> None:
        """Judge what ended a round."""
        if error is not None and not isinstance(error, Fenced | TrimmedLog):
            self._cast.oracle.broken("refused", f"{self.process.name}: {error!r}")

    def _round(self) -> None:
        process, duty = self.process, self._duty
        self.course(Point.DUTY, lambda: duty.take(process.clock()), self._took)

    def _took(self, fence: Fence | None, error: LogError | None) -> None:
        if fence is None:
            self.refused(error)
            self.again()
        else:
            self.act(fence)


class Trimmer(Keeper):
    """Trims what is older than the retention, by its own clock."""

    def __init__(self, cast: Cast, index: int) -> None:
        super().__init__(cast, "trimmer", index, 0.4)

    def begin(self) -> None:
        """Remember no markers."""
        self._committers = Committers()

    def act(self, fence: Fence) -> None:
        """Trim once."""
        process, committers = self.process, self._committers

        def rule() -> Any:
            now_us = int(process.wall_clock() * 1e6)
            return trim(committers, now_us, int(RETENTION_S * 1e6), fence=fence)

        def done(_: object, error: LogError | None) -> None:
            self.refused(error)
            self.again()

        self.course(Point.TRIMMING, rule, done)


class Sweeping(Keeper):
    """Retires who is silent, but for those whose home is a store: their successor decides."""

    def __init__(self, cast: Cast, index: int) -> None:
        super().__init__(cast, "sweeper", index, 0.6)

    def begin(self) -> None:
        """Begin a life that has seen no producer yet."""
        self._silences = sweeping.Silences[int, int](SILENT_S)

    def act(self, fence: Fence) -> None:
        """Look who is silent."""

        def looked(there: dict[int, int] | None, error: LogError | None) -> None:
            if there is None:
                self.refused(error)
                self.again()
                return
            homeless = {each: seq for each, seq in there.items() if each not in self._cast.homes}
            silent = self._silences.look(homeless, self.process.clock())
            retire_next(list(silent.items()))

        def retire_next(silent: list[tuple[int, int]]) -> None:
            if not silent:
                self.again()
                return
            (producer, seq), *others = silent

            def done(_: object, error: LogError | None) -> None:
                self.refused(error)
                retire_next(others)

            self._cast.trace(self.process.name, f"retires {producer} at {seq}")
            rule = partial(sweeping.retire_silent, producer, seq, fence)
            self.course(Point.RETIRING, rule, done)

        self.course(Point.DUTY, sweeping.unfinished, looked)
