"""The steps of ``curp._core.recovery``, carried out by a replica that takes over (DESIGN §7)."""

from __future__ import annotations

import contextlib
import time
from typing import Any

from _rifl_ground.log import get_logger
from curp._core.poison import Ledger
from curp._core.poison_notes import NoteDown
from curp._core.recovery import (
    Append,
    CheckNumbers,
    Freeze,
    ReadAcceptedLoss,
    ReadToEnd,
    ReadWitnessList,
    RunRecovered,
    TakeNumber,
    recover,
)
from curp._core.setting_aside import AwaitDecision, Conclude, CountDeaths, ReadPoison
from curp._core.witness_list import Publish, StartWitnesses
from curp._replica.driver import Rule
from curp._replica.follower import EntryApplier
from curp._replica.metadata import (
    BACK_KEY,
    LIST_KEY,
    TRANSFER_KEY,
    read_accepted_loss,
    read_went_back,
    read_witness_list,
)
from curp._replica.parts import Parts
from curp._replica.poisoning import (
    NOTES_KEY,
    await_decision,
    conclude,
    count_deaths,
    note_down,
    read_left,
)
from curp._replica.survival import Survival
from curp._wire.entries import entry_to_bytes, secrets_to_message
from curp._wire.metadata import witness_list_to_bytes
from curp.log._errors import CorruptLog, LogError
from curp.log._states import check_state
from curp.log._values import NewLogEntry

_log = get_logger("curp.replica")
_SECRET_BYTES = 32
# For so long a recovery asks witnesses in vain before it lets others try.
_PATIENCE_TERMS = 2


class RecoverySteps:
    """Does what ``recover`` asks for, under a number that was taken."""

    def __init__(self, parts: Parts, follower: EntryApplier, survival: Survival) -> None:
        self._parts = parts
        self._engine = parts.engine
        self._witnesses = parts.witnesses
        self._follower = follower
        self._survival = survival
        self._number = 0
        # The append that was asked for last, and what it is named by.
        self._append_step: Append | None = None
        self._append_id = b""

    def rule(self, number: int) -> Rule:
        """Recover; gives what is served then, None where that was given up."""
        parts, settings = self._parts, self._parts.settings
        self._number = number
        check_state(self._engine)
        went_back = read_went_back(self._engine)
        if went_back:
            raise CorruptLog(went_back)
        # Before any witness is asked: two groups of one name may share one.
        self._witnesses.of_log(parts.picture.store_id)
        return recover(
            settings.name,
            self._follower.state,
            settings.witnesses,
            parts.store.now,
            secret=parts.random_bytes(_SECRET_BYTES),
            bounds=settings.bounds.within(self._engine.limits),
            patience_s=_PATIENCE_TERMS * settings.tuning.lease_term_s,
            application_version=settings.application_version,
            poison_deaths=settings.tuning.poison_deaths,
        )

    def step(self, step: Any) -> Any:
        """Do a step of it, but for waiting."""
        if isinstance(step, TakeNumber):
            return self._number
        if isinstance(step, ReadWitnessList):
            return read_witness_list(self._engine)
        if isinstance(step, ReadToEnd):
            return self._follower.apply_to_end()
        if isinstance(step, Freeze):
            return self._witnesses.freeze(step.addresses, step.configuration)
        if isinstance(step, CheckNumbers):
            return self._check_numbers()
        if isinstance(step, ReadAcceptedLoss):
            return read_accepted_loss(self._engine)
        if isinstance(step, RunRecovered):
            return self._parts.services.run(step.witnessed.call, step.witnessed.request)
        if isinstance(step, ReadPoison):
            # What this process noted itself, before it stepped down, did not kill it.
            self._survival.tell()
            left = read_left(self._engine)
            self._saw(left.ledger)
            self._follower.require(left.ledger)
            return left
        if isinstance(step, NoteDown):
            note_down(self._engine, step)
            return None
        if isinstance(step, CountDeaths):
            for case in step.fatal:
                _log.warning(
                    "died_running",
                    call=str(case.rpc_id),
                    method=case.method,
                    how=case.how,
                    alone=len(step.fatal) == 1,
                )
            now_us = time.time_ns() // 1000
            return self._saw(count_deaths(self._engine, self._number, step, now_us))
        if isinstance(step, AwaitDecision):
            return self._saw(await_decision(self._engine, self._number, step.rpc_id))
        if isinstance(step, Conclude):
            for rpc_id in step.closed:
                _log.warning("call_set_aside", call=str(rpc_id))
            return self._saw(conclude(self._engine, self._number, step))
        if isinstance(step, Append):
            return self._append(step)
        if isinstance(step, StartWitnesses):
            secrets = secrets_to_message(self._follower.state.secrets)
            return self._witnesses.start(step.addresses, step.configuration, secrets)
        if isinstance(step, Publish):
            self._engine.put_metadata(
                {
                    LIST_KEY: witness_list_to_bytes(step.witnesses),
                    TRANSFER_KEY: None,
                    # What was replayed is in the log.
                    NOTES_KEY: None,
                },
                configuration=step.witnesses.configuration,
            )
            return None
        raise RuntimeError(f"no such step: {step!r}")

    def _saw(self, ledger: Ledger) -> Ledger:
        self._parts.store.ledger = ledger
        return ledger

    def _check_numbers(self) -> None:
        """Raise ``CorruptLog`` if a witness served a number of this log that it never gave.

        Ours counts, too: each was seen before we started it.
        """
        address, seen = self._witnesses.ahead
        if seen < self._number:
            return
        # Asked for after the witness: a number is in the log before any witness hears of it.
        leadership = self._engine.leadership()
        given = 0 if leadership is None else leadership.configuration
        if self._number < seen <= given:
            return
        why = (
            f"the log went back: witness {address} served its configuration {seen}, and it had "
            f"given {self._number - 1}. This is an older copy: bring the newest one back. If that "
            "is lost, start the witnesses on new data directories, and accept the loss: curp "
            "recover"
        )
        # The next one takes a higher number, and may see nothing amiss.
        with contextlib.suppress(LogError):
            self._engine.put_metadata({BACK_KEY: why.encode()}, configuration=self._number)
        raise CorruptLog(why)

    def _append(self, step: Append) -> int:
        if step is not self._append_step:
            self._append_step, self._append_id = step, self._parts.random_bytes(16)
        listed = step.witnesses
        return self._engine.append(
            [NewLogEntry(entry_to_bytes(entry)) for entry in step.entries],
            configuration=step.configuration,
            expected_tail=step.expected_tail,
            append_id=self._append_id,
            metadata=None if listed is None else {LIST_KEY: witness_list_to_bytes(listed)},
        )
