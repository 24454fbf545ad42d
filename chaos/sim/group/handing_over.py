"""Lets a leadership go (invariant 10)."""

from __future__ import annotations

from collections.abc import Callable

from chaos.sim.group.steps import Drive, Shell, Steps
from curp._core.handover import (
    ChangesUnderWay,
    CountRunning,
    EndLease,
    EndNumber,
    RefuseCalls,
    StepDown,
)

__all__ = ["HandingOver"]


class HandingOver(Steps):
    """What ``hand_over`` asks for, as events of one leadership."""

    def __init__(
        self,
        replica: Shell,
        over: Callable[[], bool],
        stop_changes: Callable[[], bool],
        end_number: Callable[[], None],
        end_lease: Callable[[], None],
    ) -> None:
        super().__init__(replica, over)
        self._end_lease = end_lease
        self.table[ChangesUnderWay] = lambda step, drive: stop_changes()
        self.table[EndNumber] = lambda step, drive: end_number()
        self.table[RefuseCalls] = self._refuse_calls
        self.table[CountRunning] = self._count_running
        self.table[StepDown] = self._step_down
        self.table[EndLease] = self._let_go

    def _refuse_calls(self, step: RefuseCalls, drive: Drive) -> None:
        store = self.replica.store
        store.serving = False
        if store.leader is not None:
            store.leader.begin_change()
        self.pass_by("handing-over")

    def _count_running(self, step: CountRunning, drive: Drive) -> int:
        return self.replica.store.count_running()

    def _step_down(self, step: StepDown, drive: Drive) -> None:
        self.replica.store.step_down()

    def _let_go(self, step: EndLease, drive: Drive) -> None:
        self._end_lease()
