"""Driver of the product's ``Witnesses``: as one replica asks them, over the network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from chaos.sim.loop import Process
from chaos.sim.machine import Machine
from chaos.sim.witness import GROUP, Witness
from curp._core.garbage_collection import Collectable
from curp._core.witness_asking import Frozen, freeze_witness, start_witness
from curp._core.witness_table import WitnessVerdict, group_of_log
from curp._replica.witnesses import read_held
from curp.v1 import curp_pb2 as pb
from rifl._stores.pending import Pending

__all__ = ["SimulatedWitnesses"]


class SimulatedWitnesses:
    """Asks; each answer comes later, since no thread blocks here."""

    def __init__(
        self, process: Process, witness: Callable[[str], Witness], machine: Machine
    ) -> None:
        self._process = process
        self._witness = witness
        self._machine = machine
        self._group = GROUP
        # See ``Witnesses``: no log goes back here.
        self.ahead = ("", 0)

    def of_log(self, store_id: int) -> None:
        """Take the id of the group's log."""
        self._group = group_of_log(GROUP, store_id)

    def freeze(self, addresses: Sequence[str], configuration: int) -> Pending:
        """Freeze witnesses; the first that can tell what it holds, None if none can."""
        found = Pending()
        asked = set(addresses)

        def frozen(address: str, came: Frozen | None) -> None:
            asked.discard(address)
            held = None if came is None else came.held
            if found.done or (held is None and asked):
                return
            if held is not None:
                found.result = address, self._read(held)
            found.succeed()

        for address in addresses:
            self._witness(address).drive(
                self._process, freeze_witness(configuration), self._group, partial(frozen, address)
            )
        return found

    def start(
        self, addresses: Sequence[str], configuration: int, secrets: pb.SecretsPut
    ) -> Pending:
        """Start witnesses, empty, under a number; those that said yes."""
        return self._of_all(
            addresses,
            lambda witness, told: self._start(witness, configuration, secrets, told),
        )

    def refresh(self, addresses: Sequence[str], configuration: int, secrets: pb.SecretsPut) -> None:
        """Tell witnesses the secrets that are valid now."""
        for address in addresses:
            self._start(
                self._witness(address), configuration, secrets, lambda said: None, refresh=True
            )

    def _start(
        self,
        witness: Witness,
        configuration: int,
        secrets: pb.SecretsPut,
        told: Callable[[bool], None],
        *,
        refresh: bool = False,
    ) -> None:
        witness.drive(
            self._process,
            start_witness(self._group, configuration, refresh=refresh),
            self._group,
            lambda came: told(came is not None and came.verdict is WitnessVerdict.ACCEPTED),
            pb.StartRequest(secrets=secrets, methods=self._machine.conflicts()),
        )

    def collect(self, address: str, configuration: int, synced: Sequence[Collectable]) -> Pending:
        """Have it drop what is synced; its verdict and what is stuck. None: not asked."""
        found = Pending()

        def told(reply: Any) -> None:
            if reply is not None:
                verdict, stuck = reply
                found.result = verdict, self._read(stuck)
            found.succeed()

        self._witness(address).collect(self._process, self._group, configuration, synced, told)
        return found

    def serving(self, addresses: Sequence[str], configuration: int, timeout_s: float) -> Pending:
        """Return of those that say how they are whether they serve that number."""

        def ask(witness: Witness, told: Callable[[WitnessVerdict | None], None]) -> None:
            witness.status(
                self._process,
                lambda serves: told(serves and serves.judge(self._group, configuration)),
            )

        return self._of_all(addresses, ask)

    def _of_all(
        self, addresses: Sequence[str], ask: Callable[[Witness, Callable[[Any], None]], None]
    ) -> Pending:
        """Ask each, and wait for all; what those said that said yes, in that order."""
        found = Pending()
        said: dict[str, Any] = {}

        def told(address: str, answer: Any) -> None:
            said[address] = answer
            if len(said) == len(addresses):
                found.result = {at: answer for at, answer in said.items() if answer}
                found.succeed()

        for address in addresses:
            ask(self._witness(address), partial(told, address))
        return found

    def _read(self, messages: Sequence[pb.WitnessedCall]) -> list[Any]:
        return read_held(messages, self._machine)  # type: ignore[arg-type]  # as services
