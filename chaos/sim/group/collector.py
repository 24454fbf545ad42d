"""Tells witnesses what is synced, and runs what is stuck on them (invariant 12)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from chaos.sim.loop import Process, Timer
from chaos.sim.machine import Killed, Machine
from chaos.sim.witness import Witness
from chaos.sim.world import World
from curp._core.collecting import Collecting, Tell
from curp._core.collection import Collectable
from curp._core.recovery import WitnessedCall, WitnessList
from curp._core.rest import Rest
from curp._core.state import GroupState
from curp._replica.arrival import Arrival
from curp._replica.group_store import GroupStore
from curp._replica.witnesses import read_held
from rifl.core._serving.client_entry import Attempt
from rifl.core._serving.later import Later
from rifl.core._serving.policy import MethodPolicy
from rifl.core._serving.serving import HandlerResult, execute
from rifl.core._serving.verdict import Verdict
from rifl.core._shared.errors import RiflError

__all__ = ["Collector"]

_POLICY = MethodPolicy()


class Collector:
    """What ``curp._replica.collector`` is a thread for, as events of one leadership."""

    def __init__(
        self,
        world: World,
        process: Process,
        store: GroupStore,
        state: GroupState,
        machine: Machine,
        witness: Callable[[str], Witness],
        group_id: str,
        listed: WitnessList,
        relist: Callable[[int], None],
    ) -> None:
        """``relist``: called with the number under which a witness forgot what it held."""
        self._world = world
        self._process = process
        self._store = store
        self._state = state
        self._machine = machine
        self._witness = witness
        self._group_id = group_id
        self._collecting = Collecting()
        self._collecting.serve(listed.configuration, listed.witnesses)
        self._relist = relist
        self._timer: Timer | None = None
        self._stopped = False

    def serve(self, listed: WitnessList) -> None:
        """Tell the witnesses of another list from now on."""
        self._collecting.serve(listed.configuration, listed.witnesses)

    def stop(self) -> None:
        """Tell nobody anything more."""
        self._stopped = True

    def synced(self, collectable: list[Collectable]) -> None:
        """Take requests that are in the log."""
        self._collecting.synced(collectable, self._process.clock())
        self._look()

    def _look(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._stopped:
            return
        while not isinstance(step := self._collecting.next(self._process.clock()), Rest):
            if isinstance(step, Tell):
                self._tell(step)
            else:
                self._relist(step.configuration)
        if step.seconds is not None:
            self._timer = self._process.after(step.seconds, self._look)

    def _tell(self, tell: Tell) -> None:
        self._witness(tell.witness).collect(
            self._process,
            self._group_id,
            tell.configuration,
            tell.requests,
            lambda reply: self._told(tell, reply),
        )

    def _told(self, tell: Tell, reply: Any) -> None:
        if self._stopped:
            return
        verdict, stuck = (None, []) if reply is None else reply
        self._collecting.told(tell, verdict, self._process.clock())
        for witnessed in read_held(stuck, self._machine):  # type: ignore[arg-type]  # as services
            self._stuck(witnessed)
        self._look()

    def _stuck(self, witnessed: WitnessedCall) -> None:
        call = witnessed.call
        found = self._state.witnessed(call)
        self._world.trace(self._process.name, f"{call.rpc_id} is stuck: {found.value}")
        if not self._collecting.stuck(witnessed, found, self._process.clock()):
            return
        call.configuration = self._collecting.configuration
        call.extra = Arrival(witnessed.request, witnessed.keys, call.configuration, 1, ())
        try:
            decision = self._store.claim(call, _POLICY)
        except RiflError:
            return
        attempt = decision.attempt
        new = decision.verdict is Verdict.NEW
        if new and attempt is not None and not attempt.ended and attempt.call is call:
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
        except (StopIteration, RiflError, Killed):
            return

    def _resume(self, steps: Any, witnessed: WitnessedCall, done: Any) -> None:
        if done.error is None:
            self._process.after(0.0, self._drive, steps, witnessed, done.result)
