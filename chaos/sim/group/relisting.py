"""Puts other witness lists in force (invariant 11)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from chaos.sim.group.steps import LATER, Drive, Shell, Steps
from curp._core.recovery import WitnessList
from curp._core.upkeep import Upkeep
from curp._core.witness_change import HoldBack, NextNumber, Serve, change_witnesses
from curp._replica.metadata import LIST_KEY
from curp._wire import secrets_to_message, witness_list_to_bytes
from rifl._stores.pending import Pending
from rifl.core._shared.errors import NotLeader

__all__ = ["Relisted", "Relisting"]


def _nobody() -> None:
    """Nobody waits for it."""


class Relisted(Protocol):
    """The leadership whose list it is."""

    configuration: int
    over: bool

    def serve(self, listed: WitnessList) -> None:
        """Go on under that list."""

    def give_up(self, error: Exception) -> None:
        """End the leadership: whether the number was taken may not be known."""


class Relisting(Steps):
    """What ``Leading`` does with its list, as events of one leadership."""

    def __init__(
        self, replica: Shell, leadership: Relisted, listed: WitnessList, term_s: float
    ) -> None:
        super().__init__(replica, lambda: leadership.over)
        self._leadership = leadership
        self._term_s = term_s
        self._changing = False
        self._stopped = False
        self._upkeep = Upkeep(listed, replica.state.secrets, replica.process.clock())
        self.table |= {
            HoldBack: self._hold_back,
            NextNumber: self._next_number,
            Serve: self._serve,
        }

    def change(
        self, wanted: Sequence[str], configuration: int, done: Callable[[], None] = _nobody
    ) -> bool:
        """Put a list in force, unless another number than the caller's is, or will be.

        Whether it is begun; ``done`` is called when the list is in force.
        """
        leadership = self._leadership
        stopped = self._stopped or self.over()
        if self._changing or configuration != leadership.configuration or stopped:
            return False
        self._changing = True
        replica = self.replica
        replica.world.trace(replica.process.name, f"changes witnesses to {','.join(wanted)}")

        def changed(listed: WitnessList) -> None:
            self._changed(listed)
            done()

        self.carry_out(change_witnesses(configuration, wanted), changed, leadership.give_up)
        return True

    def stop(self) -> bool:
        """Begin no change any more; whether one is under way, which ends at its next step."""
        self._stopped = True
        return self._changing

    def relist(self, configuration: int) -> None:
        """Begin a new number with the wanted list: a witness forgot, or is back."""
        wanted = self._upkeep.again(configuration)
        if wanted is not None:
            self.change(wanted, configuration)

    def keep_up(self) -> None:
        """Look after those that were left out, and tell those that serve of new secrets."""
        replica, upkeep = self.replica, self._upkeep
        listed, secrets = upkeep.listed, replica.state.secrets
        for address in upkeep.to_tell(secrets):
            replica.witness(address).start(
                replica.process,
                replica.group_id,
                listed.configuration,
                secrets_to_message(secrets),
                replica.machine.conflicts(),
                lambda accepted: None,
                refresh=True,
            )

        def answered(address: str, anything: bool) -> None:
            if anything:
                upkeep.answers(address)
                self.relist(listed.configuration)

        for address in upkeep.missing(replica.process.clock()):
            replica.witness(address).status(replica.process, partial(answered, address))

    def _changed(self, listed: WitnessList) -> None:
        self._changing = False
        replica = self.replica
        replica.world.trace(
            replica.process.name,
            f"leads {listed.configuration} with {','.join(listed.witnesses)}",
        )
        self.pass_by("relisted")

    def _hold_back(self, step: HoldBack, drive: Drive) -> int:
        leader = self.replica.store.leader
        if leader is None:
            raise NotLeader("the leadership is over")
        return leader.begin_change()

    def _next_number(self, step: NextNumber, drive: Drive) -> Any:
        store = self.replica.store

        def take() -> None:
            drive.take(self._take_number, step)

        if store.appending is None or not store.appending.between((take, Pending())):
            raise NotLeader("the leadership is over")
        store.work.notify_all()
        return LATER

    def _take_number(self, step: NextNumber, drive: Drive) -> int:
        number = self.replica.log.next_configuration(
            step.configuration,
            {LIST_KEY: witness_list_to_bytes(step.witnesses)},
            term_s=self._term_s,
        )
        # Renewals are under it from now on.
        self._leadership.configuration = number
        self.replica.store.changed(number, witnessed=False)
        self.pass_by("numbered")
        return number

    def _serve(self, step: Serve, drive: Drive) -> None:
        self._upkeep.in_force(step.witnesses, self.replica.process.clock())
        self._leadership.serve(step.witnesses)
