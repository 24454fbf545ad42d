"""Carries out what a core rule asks for, step by step."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from chaos.sim.loop import Process
from chaos.sim.machine import Machine
from chaos.sim.witness import GROUP, Witness
from curp.core.recovery import (
    Append,
    Freeze,
    Publish,
    ReadToEnd,
    ReadWitnessList,
    Run,
    StartWitness,
    TakeNumber,
    Wait,
    WitnessedCall,
)
from curp.core.state import GroupState
from curp.log.engine import LogEngine, NewEntry
from curp.log.errors import EngineUnavailable, LogError
from curp.replica.group_store import GroupStore
from curp.replica.leading import LIST_KEY
from curp.replica.witnesses import read_held
from curp.wire import (
    entry_to_bytes,
    secrets_to_message,
    witness_list_from_bytes,
    witness_list_to_bytes,
)

__all__ = ["Steps"]

_RETRY_S = 0.1
_STEP_S = 0.0002
_LATER = object()


class Steps:
    """Drives the rules of one leadership, until it is over."""

    def __init__(self, replica: Any, leadership: Any) -> None:
        self._replica = replica
        self._leadership = leadership
        self._process: Process = replica.process
        self._log: LogEngine = replica.log
        self._store: GroupStore = replica.store
        self._state: GroupState = replica.state
        self._machine: Machine = replica.machine
        self._witness: Callable[[str], Witness] = replica.witness

    def carry_out(self, rule: Generator[Any, Any, Any], done: Callable[[Any], None]) -> None:
        """Drive a rule to its end; ``done`` is given what it returns."""
        self._go_on(rule, done, None)

    def _go_on(self, rule: Any, done: Callable[[Any], None], answer: Any) -> None:
        if self._leadership.over:
            return
        try:
            step = rule.send(answer)
        except StopIteration as stop:
            done(stop.value)
            return
        self._try(rule, done, step)

    def _try(self, rule: Any, done: Callable[[Any], None], step: Any) -> None:
        if self._leadership.over:
            return
        go_on = lambda answer: self._go_on(rule, done, answer)  # noqa: E731
        try:
            answer = self._step(step, go_on)
        except EngineUnavailable:
            # The same step again: the rule has not moved.
            self._process.after(_RETRY_S, self._try, rule, done, step)
        except LogError as error:
            self._replica.step_down(error)
        else:
            if answer is not _LATER:
                self._process.after(_STEP_S, go_on, answer)

    def _step(self, step: Any, go_on: Callable[[Any], None]) -> Any:
        """Do it; what is sent back, or ``_LATER`` where ``go_on`` will be called."""
        if isinstance(step, TakeNumber):
            return self._leadership.configuration
        if isinstance(step, ReadWitnessList):
            data = self._log.metadata(LIST_KEY)
            return None if data is None else witness_list_from_bytes(data)
        if isinstance(step, ReadToEnd):
            while self._replica.apply_more():
                pass
            return self._state.applied
        if isinstance(step, Freeze):
            self._witness(step.address).freeze(
                self._process, GROUP, step.configuration, self._held(go_on)
            )
            return _LATER
        if isinstance(step, StartWitness):
            self._witness(step.address).start(
                self._process,
                GROUP,
                step.configuration,
                secrets_to_message(self._state.secrets),
                self._machine.conflicts(),
                go_on,
            )
            return _LATER
        if isinstance(step, Wait):
            self._process.after(step.seconds, go_on, None)
            return _LATER
        if isinstance(step, Run):
            return self._machine.run(step.witnessed.call, step.witnessed.request)
        if isinstance(step, Append):
            return self._append(step)
        if isinstance(step, Publish):
            self._log.put_metadata(
                {LIST_KEY: witness_list_to_bytes(step.witnesses)},
                configuration=step.witnesses.configuration,
            )
            return None
        raise AssertionError(step)

    def _held(self, go_on: Callable[[Any], None]) -> Callable[[Any], None]:
        def frozen(messages: list[Any] | None) -> None:
            if messages is not None and self._store.fault is not None:
                self._store.fault("frozen")
            go_on(None if messages is None else self._read(messages))

        return frozen

    def _read(self, messages: list[Any]) -> list[WitnessedCall]:
        return read_held(messages, self._machine)  # type: ignore[arg-type]  # stands for services

    def _append(self, step: Append) -> int:
        # Named by what it is, so that it is recognised when it is asked again.
        append_id = b"recovery%08d" % step.witnesses.configuration
        return self._log.append(
            [NewEntry(entry_to_bytes(entry)) for entry in step.entries],
            configuration=step.witnesses.configuration,
            expected_tail=step.expected_tail,
            append_id=append_id,
            metadata={LIST_KEY: witness_list_to_bytes(step.witnesses)},
        )
