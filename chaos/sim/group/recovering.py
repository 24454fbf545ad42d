"""Carries out a recovery (invariant 5)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from chaos.sim.group.steps import LATER, Drive, Shell, Steps
from chaos.sim.machine import Killed
from curp._core.notes import NoteDown
from curp._core.poison import Ledger
from curp._core.recovery import (
    Append,
    Freeze,
    Publish,
    ReadAcceptedLoss,
    ReadToEnd,
    ReadWitnessList,
    Run,
    TakeNumber,
)
from curp._core.setting_aside import Conclude, CountDeaths, Left, ReadPoison
from curp._replica.metadata import LIST_KEY, TRANSFER_KEY, read_store_id, read_witness_list
from curp._replica.poisoning import NOTES_KEY, conclude, count_deaths, note_down, read_left
from curp._replica.witnesses import read_held
from curp._wire import entry_to_bytes, witness_list_to_bytes
from curp.log._engine import NewEntry
from curp.log._errors import LogError, may_pass
from rifl.core._shared.record import CompletionRecord

__all__ = ["Recovering"]

_RETRY_S = 0.1


class Recovering(Steps):
    """What ``recover`` asks for, under a number that was taken."""

    def __init__(self, replica: Shell, over: Callable[[], bool], number: int) -> None:
        super().__init__(replica, over)
        self._number = number
        self.table |= {
            TakeNumber: lambda step, drive: self._number,
            ReadWitnessList: self._read_list,
            ReadAcceptedLoss: lambda step, drive: None,
            ReadToEnd: self._read_to_end,
            Freeze: self._freeze,
            ReadPoison: self._read_poison,
            CountDeaths: self._count_deaths,
            NoteDown: self._note_down,
            Conclude: lambda step, drive: conclude(self.replica.log, self._number, step),
            Run: self._run,
            Append: self._append,
            Publish: self._publish_first,
        }

    def _read_list(self, step: ReadWitnessList, drive: Drive) -> Any:
        # Before any witness is asked.
        read_store_id(self.replica.log, self._number, self.replica.random.randbytes)
        return read_witness_list(self.replica.log)

    def _read_to_end(self, step: ReadToEnd, drive: Drive) -> int:
        return self.replica.follower.apply_to_end()

    def _freeze(self, step: Freeze, drive: Drive) -> Any:
        replica = self.replica
        asked = set(step.addresses)

        def frozen(address: str, messages: list[Any] | None) -> None:
            if address not in asked:
                # Another one was faster.
                return
            asked.remove(address)
            if messages is None:
                if not asked:
                    drive.go_on(None)
                return
            asked.clear()
            if replica.random.random() < 0.5:
                # Else what is aimed here strikes between two pieces.
                self.pass_by("frozen")
            drive.go_on((address, read_held(messages, replica.machine)))  # type: ignore[arg-type]  # services

        for address in step.addresses:
            replica.witness(address).freeze(
                replica.process, replica.group_id, step.configuration, partial(frozen, address)
            )
        return LATER

    def _read_poison(self, step: ReadPoison, drive: Drive) -> Left:
        self.replica.survival.tell()
        return read_left(self.replica.log)

    def _count_deaths(self, step: CountDeaths, drive: Drive) -> Ledger:
        now_us = int(self.replica.process.clock() * 1e6)
        return count_deaths(self.replica.log, self._number, step, now_us)

    def _note_down(self, step: NoteDown, drive: Drive) -> None:
        note_down(self.replica.log, step)

    def _run(self, step: Run, drive: Drive) -> CompletionRecord | object:
        try:
            return self.replica.machine.run(step.witnessed.call, step.witnessed.request)
        except Killed:
            return LATER

    def _append(self, step: Append, drive: Drive) -> Any:
        tail = self._try_to_append(step, drive)
        if tail is not LATER and step.witnesses is None:
            self.pass_by("frozen")
        return tail

    def _try_to_append(self, step: Append, drive: Drive) -> Any:
        try:
            return self.replica.log.append(
                [NewEntry(entry_to_bytes(entry)) for entry in step.entries],
                configuration=step.configuration,
                expected_tail=step.expected_tail,
                # Named by what it is, so that it is recognised when it is asked again.
                append_id=b"rec%05d%08d" % (step.configuration, step.expected_tail),
                metadata=None
                if step.witnesses is None
                else {LIST_KEY: witness_list_to_bytes(step.witnesses)},
            )
        except LogError as error:
            if not may_pass(error):
                raise
            self.replica.process.after(_RETRY_S, drive.take, self._append, step)
            return LATER

    def _publish_first(self, step: Publish, drive: Drive) -> None:
        # Whoever was to lead next: somebody leads.
        self.replica.log.put_metadata(
            {
                LIST_KEY: witness_list_to_bytes(step.witnesses),
                TRANSFER_KEY: None,
                NOTES_KEY: None,
            },
            configuration=step.witnesses.configuration,
        )
