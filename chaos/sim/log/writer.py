"""Driver of the product's appends and transactions: a writer that is asked for them."""

from __future__ import annotations

from collections.abc import Callable

from chaos.sim.log.cast import Cast
from chaos.sim.log.joint_transaction import JointTransactions
from chaos.sim.log.long_transaction import LongTransactions
from chaos.sim.log.publisher import Publisher
from chaos.sim.log.single_append import SingleAppends
from chaos.sim.log.sweeper import Sweeper
from chaos.sim.planned import PlannedCall, Setting
from sharedlog._core.producers import ProducerId

__all__ = ["Writer"]


class Writer(Publisher):
    """A publisher with calls that wait for each other: as many appends as its window holds."""

    def __init__(
        self, cast: Cast, index: int, setting: Setting, sweeper: Sweeper, *, keeps: bool
    ) -> None:
        super().__init__(cast, index, setting, sweeper, keeps=keeps)
        self._begin: dict[str, Callable[[ProducerId, PlannedCall], None]] = {
            "append": SingleAppends(self).begin,
            "transaction": LongTransactions(self).begin,
            "joint": JointTransactions(self).begin,
        }

    def under_fence(self) -> bool:
        """Whether it appends under its fence."""
        return any(call.behaviour == "fenced" for call in self.running.values())

    def call(self, planned: PlannedCall) -> None:
        """Take what is asked for."""
        self.waiting.append(planned)
        self.next_call()

    def next_call(self) -> None:
        """See ``Publisher``."""
        while self.waiting and self.producer is not None and self.process.alive:
            planned = self.waiting[0]
            alone = planned.method != "append" or planned.behaviour == "fenced"
            # A slot of the window is free when all before it are answered.
            full = self.running and self.seq - min(self.seqs.values(), default=0) >= self.window
            if self.gone or self.alone or full or (self.running and alone):
                return
            self.waiting.popleft()
            self.running[planned.number] = planned
            self.alone = alone
            self._begin[planned.method](self.producer, planned)
