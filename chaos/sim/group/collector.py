"""Tells witnesses what is synced, and runs what is stuck on them (invariant 12)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from chaos.sim.loop import Process
from chaos.sim.machine import Machine
from chaos.sim.witness import GROUP, Witness
from chaos.sim.world import World
from curp.core.collection import Collectable, Collection
from curp.core.recovery import WitnessedCall, WitnessList
from curp.core.state import GroupState, Witnessed
from curp.core.witness_table import WitnessVerdict
from curp.replica.group_store import Arrival, GroupStore
from curp.replica.witnesses import read_held
from rifl.core.client_table import Attempt
from rifl.core.errors import RiflError
from rifl.core.later import Later
from rifl.core.policy import MethodPolicy
from rifl.core.serving import HandlerResult, execute

__all__ = ["Collector"]

_ROUND_S = 0.02
_RETRY_S = 0.2
_MAX_TOLD = 1000
_POLICY = MethodPolicy()


class Collector:
    """What ``curp.replica.collector`` is a thread for, as events of one leadership."""

    def __init__(
        self,
        world: World,
        process: Process,
        store: GroupStore,
        state: GroupState,
        machine: Machine,
        witness: Callable[[str], Witness],
        listed: WitnessList,
    ) -> None:
        self._world = world
        self._process = process
        self._store = store
        self._state = state
        self._machine = machine
        self._witness = witness
        self._configuration = listed.configuration
        self._collection = Collection(listed.witnesses)
        self._pending = False
        self._stopped = False

    def stop(self) -> None:
        """Tell nobody anything more."""
        self._stopped = True

    def synced(self, collectable: list[Collectable]) -> None:
        """Take requests that are in the log."""
        for each in collectable:
            self._collection.synced(each)
        self._soon(_ROUND_S)

    def _soon(self, delay_s: float) -> None:
        if not self._pending:
            self._pending = True
            self._process.after(delay_s, self._round)

    def _round(self) -> None:
        self._pending = False
        if self._stopped:
            return
        for name in self._collection.witnesses:
            taken = self._collection.take(name, _MAX_TOLD)
            if taken:
                self._witness(name).collect(
                    self._process,
                    GROUP,
                    self._configuration,
                    taken,
                    lambda reply, name=name, taken=taken: self._told(  # type: ignore[misc]
                        name, taken, reply
                    ),
                )

    def _told(self, name: str, taken: list[Collectable], reply: Any) -> None:
        if self._stopped:
            return
        if reply is None:
            self._collection.not_told(name, taken)
            self._soon(_RETRY_S)
            return
        verdict, stuck = reply
        if verdict is not WitnessVerdict.ACCEPTED:
            return
        for witnessed in read_held(stuck, self._machine):  # type: ignore[arg-type]  # as services
            self._stuck(witnessed)

    def _stuck(self, witnessed: WitnessedCall) -> None:
        call = witnessed.call
        found = self._state.witnessed(call)
        self._world.trace(self._process.name, f"{call.rpc_id} is stuck: {found.value}")
        if found is Witnessed.RUNNING:
            return
        if found is not Witnessed.FRESH:
            self.synced([Collectable(call.client_id, call.seq, call.key, witnessed.keys)])
            return
        call.configuration = self._configuration
        call.extra = Arrival(witnessed.request, witnessed.keys, call.configuration, 1, ())
        try:
            decision = self._store.claim(call, _POLICY)
        except RiflError:
            return
        attempt = decision.attempt
        if attempt is not None and not attempt.ended and attempt.call is call:
            self._drive(execute(self._store, attempt), witnessed, None)

    def _drive(self, steps: Any, witnessed: WitnessedCall, value: Any) -> None:
        try:
            while True:
                step = steps.send(value)
                value = None
                if isinstance(step, Attempt):
                    record = self._machine.run(step.call, witnessed.request)
                    value = HandlerResult(record)
                elif isinstance(step, Later):
                    step.add_callback(  # type: ignore[attr-defined]
                        lambda done: self._resume(steps, witnessed, done)
                    )
                    return
                else:
                    return
        except (StopIteration, RiflError):
            return

    def _resume(self, steps: Any, witnessed: WitnessedCall, done: Any) -> None:
        if done.error is None:
            self._process.after(0.0, self._drive, steps, witnessed, done.result)
