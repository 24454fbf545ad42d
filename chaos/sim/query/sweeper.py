"""Driver of the product's cleaning: it abandons plans whose tasks are silent (§13, C2)."""

from __future__ import annotations

from functools import partial

from chaos.sim.faults import Point
from chaos.sim.log.cast import Cast
from chaos.sim.log.keeper import Keeper
from chaos.sim.log.onlooker import SILENT_S
from sharedlog._core import sweeping
from sharedlog._core.errors import LogError
from sharedlog._core.fences import Fence
from sharedlog._core.sweeping import Plan, Signs

__all__ = ["PlanSweeper"]


class PlanSweeper(Keeper):
    """One of two that have the duty in turn."""

    def __init__(self, cast: Cast, index: int) -> None:
        super().__init__(cast, "sweeper", index, 0.6)

    def begin(self) -> None:
        """Begin a life that has seen no plan yet."""
        self._silences = sweeping.Silences[Plan, Signs](SILENT_S)

    def act(self, fence: Fence) -> None:
        """Look which plans are silent."""

        def looked(there: dict[Plan, Signs] | None, error: LogError | None) -> None:
            if there is None:
                self.refused(error)
                self.again()
                return
            silent = self._silences.look(there, self.process.clock())
            abandon_next(list(silent))

        def abandon_next(silent: list[Plan]) -> None:
            if not silent:
                self.again()
                return
            plan, *others = silent

            def done(_: object, error: LogError | None) -> None:
                self.refused(error)
                abandon_next(others)

            self._cast.trace(self.process.name, f"abandons {plan}")
            rule = partial(sweeping.abandon_silent, plan, fence)
            self.course(Point.ABANDONING, rule, done)

        self.course(Point.DUTY, sweeping.unfinished_plans, looked)
