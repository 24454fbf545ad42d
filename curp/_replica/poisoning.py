"""The notes in a group's engine of calls that killed who ran them (DESIGN §7, invariant 12)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from curp._core.poison import Ledger
from curp._core.poison_notes import NoteDown
from curp._core.setting_aside import Conclude, CountDeaths, Left
from curp._wire.poison import ledger_from_bytes, ledger_to_bytes, notes_from_bytes, notes_to_bytes
from curp.log._commits import GroupLog
from curp.log._errors import ConditionFailed
from curp.log._values import MetadataCondition
from rifl.core._shared.identity import RpcId

# The cases; and what runs now, which only the leader writes, under its number.
LEDGER_KEY = "curp-poison"
NOTES_KEY = "curp-running"
_TRIES = 20


def read_ledger(engine: GroupLog) -> Ledger:
    """Return the cases. Raises ``LogError``."""
    return ledger_from_bytes(engine.metadata(LEDGER_KEY))


def read_left(engine: GroupLog) -> Left:
    """Return the cases, and what the last leader noted. Raises ``LogError``."""
    # In this order: a death goes from the notes to the ledger, and never back.
    notes, configuration = notes_from_bytes(engine.metadata(NOTES_KEY))
    return Left(read_ledger(engine), notes, configuration)


def note_down(engine: GroupLog, step: NoteDown) -> Ledger | None:
    """Put down what runs now; the cases, if these changed, too. Raises ``LogError``."""
    notes = notes_to_bytes(step.notes, step.configuration) if step.notes else None
    engine.put_metadata({NOTES_KEY: notes}, configuration=step.configuration)
    if not step.closed:
        return None
    return update_ledger(engine, step.configuration, lambda ledger: ledger.close(step.closed))


def count_deaths(engine: GroupLog, configuration: int, step: CountDeaths, now_us: int) -> Ledger:
    """Count in one step with taking the notes away. Raises ``LogError``."""
    return update_ledger(
        engine,
        configuration,
        lambda ledger: ledger.died(step.fatal, now_us, configuration=step.configuration),
        {NOTES_KEY: None},
    )


def await_decision(engine: GroupLog, configuration: int, rpc_id: RpcId) -> Ledger:
    """Put down that the group waits for an operator's decision. Raises ``LogError``."""
    return update_ledger(engine, configuration, lambda ledger: ledger.wait([rpc_id]))


def conclude(engine: GroupLog, configuration: int, step: Conclude) -> Ledger:
    """Put down what came of a recovery. Raises ``LogError``."""
    return update_ledger(
        engine,
        configuration,
        lambda ledger: ledger.close(step.closed).forget(step.answered),
    )


def update_ledger(
    engine: GroupLog,
    configuration: int,
    change: Callable[[Ledger], Ledger],
    more: Mapping[str, bytes | None] | None = None,
) -> Ledger:
    """Change the cases as they are now, which operators change, too; the new ones.

    ``more``: metadata that is written with them. Raises ``LogError``.
    """
    for _ in range(_TRIES):
        before = engine.metadata(LEDGER_KEY)
        ledger = change(ledger_from_bytes(before))
        try:
            engine.put_metadata(
                {**(more or {}), LEDGER_KEY: ledger_to_bytes(ledger) or None},
                configuration=configuration,
                condition=MetadataCondition(LEDGER_KEY, before),
            )
        except ConditionFailed:
            continue
        return ledger
    raise ConditionFailed("the ledger of calls that kill changes all the time")
