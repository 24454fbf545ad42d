"""Carries out what a core rule asks for, step by step."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from random import Random
from typing import Any, Protocol

from chaos.sim.loop import Process
from chaos.sim.machine import Machine
from chaos.sim.witness import Witness
from chaos.sim.world import World
from curp._core.recovery import Publish, StartWitnesses, Wait
from curp._core.state import GroupState
from curp._core.steps import Sync
from curp._replica.follower import Follower
from curp._replica.group_store import GroupStore
from curp._replica.metadata import LIST_KEY
from curp._replica.survival import Survival
from curp._wire import secrets_to_message, witness_list_to_bytes
from curp.log._engine import LogEngine
from curp.log._errors import LogError
from rifl._stores.pending import Pending
from rifl.core._shared.errors import RiflError

__all__ = ["LATER", "Drive", "Shell", "Steps"]

_STEP_S = 0.0002
# In the place of an answer that comes by itself.
LATER = object()


class Shell(Protocol):
    """The replica whose leadership it is."""

    world: World
    process: Process
    random: Random
    log: LogEngine
    store: GroupStore
    follower: Follower
    machine: Machine
    survival: Survival

    @property
    def state(self) -> GroupState:
        """What it knows."""

    @property
    def group_id(self) -> str:
        """What witnesses know the group by."""

    def witness(self, address: str) -> Witness:
        """Return the witness at an address."""


class Drive:
    """One rule on its way to its end, unless the leadership is over before."""

    def __init__(
        self,
        steps: Steps,
        rule: Generator[Any, Any, Any],
        done: Callable[[Any], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._steps = steps
        self._rule = rule
        self._done = done
        self._failed = failed

    def go_on(self, answer: Any = None) -> None:
        """Send an answer in, and do what is asked for next."""
        steps = self._steps
        if steps.over():
            return
        try:
            step = self._rule.send(answer)
        except StopIteration as stop:
            self._done(stop.value)
            return
        except RiflError as error:
            self._failed(error)
            return
        self.take(steps.table[type(step)], step)

    def take(self, do: Callable[[Any, Drive], Any], step: Any) -> None:
        """Do a step."""
        if self._steps.over():
            return
        try:
            answer = do(step, self)
        except (LogError, RiflError) as error:
            self._failed(error)
        else:
            if answer is not LATER:
                self._steps.replica.process.after(_STEP_S, self.go_on, answer)

    def fail(self, error: Exception) -> None:
        """End the rule."""
        if not self._steps.over():
            self._failed(error)


class Steps:
    """The steps that several rules of a leadership ask for; more are added to ``table``."""

    def __init__(self, replica: Shell, over: Callable[[], bool]) -> None:
        self.replica = replica
        self.over = over
        self.table: dict[type, Callable[[Any, Drive], Any]] = {
            Sync: self._sync,
            Wait: self._wait,
            StartWitnesses: self._start_witnesses,
            Publish: self._publish,
        }

    def carry_out(
        self,
        rule: Generator[Any, Any, Any],
        done: Callable[[Any], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """Drive a rule to its end; ``done`` is given what it returns."""
        Drive(self, rule, done, failed).go_on()

    def pass_by(self, point: str) -> None:
        """Let a fault strike here, if one was aimed at the point."""
        if self.replica.store.fault is not None:
            self.replica.store.fault(point)

    def _sync(self, step: Sync, drive: Drive) -> Any:
        pending = self.replica.store.synced(step.lsn)
        if pending is None:
            return None
        pending.add_callback(
            lambda done: self.replica.process.after(0.0, self._synced, drive, done)
        )
        return LATER

    def _synced(self, drive: Drive, done: Pending) -> None:
        if done.error is None:
            drive.go_on()
        else:
            drive.fail(done.error)

    def _wait(self, step: Wait, drive: Drive) -> Any:
        self.replica.process.after(step.seconds, drive.go_on)
        return LATER

    def _start_witnesses(self, step: StartWitnesses, drive: Drive) -> Any:
        replica = self.replica
        started: dict[str, bool] = {}

        def told(address: str, accepted: bool) -> None:
            started[address] = accepted
            if len(started) == len(step.addresses):
                drive.go_on([each for each in started if started[each]])

        for address in step.addresses:
            replica.witness(address).start(
                replica.process,
                replica.group_id,
                step.configuration,
                secrets_to_message(replica.state.secrets),
                replica.machine.conflicts(),
                partial(told, address),
            )
        return LATER

    def _publish(self, step: Publish, drive: Drive) -> None:
        self.replica.log.put_metadata(
            {LIST_KEY: witness_list_to_bytes(step.witnesses)},
            configuration=step.witnesses.configuration,
        )
