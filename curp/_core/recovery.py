"""The recovery by which a replica becomes the leader (CURP §3.3; DESIGN §7, invariants 5 and 6).

The rule is a generator, as in ``rifl.core._serving.serving``: it yields steps, the
shell carries each out and sends the result back in. Whatever the shell raises ends it; then
nothing was served, and the next recovery begins at the front.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

from curp._core.entries import (
    ApplicationVersion,
    Entry,
    LeaderStarted,
    Operation,
    SecretsPut,
    SetAside,
)
from curp._core.leader import LeaderBounds
from curp._core.poison import POISON_DEATHS, Case, PoisonWatch, unknown_record
from curp._core.setting_aside import SettingAside
from curp._core.state import GroupState, Witnessed
from curp._core.steps import VisibleWait
from curp._core.witness_list import Publish, WitnessList, start_witnesses
from curp._core.witnessed_call import WitnessedCall
from curp.log._errors import LogError, may_pass
from rifl.core._serving.answer import refusal_record
from rifl.core._shared.call import Call
from rifl.core._shared.errors import NotExecuted, ResponseTooLarge
from rifl.core._shared.identity import RpcId
from rifl.core._shared.record import CompletionRecord

_ROUND_WAIT_S = 0.2
_RETRY_S = 0.1
# What a leader's own first entries have together, at most.
_EVENTS_BYTES = 4096


class AcceptedLoss(NamedTuple):
    """An operator's word: what only the witnesses of that number held is given up."""

    configuration: int
    who: str
    why: str


class TakeNumber(NamedTuple):
    """Take a new configuration number; send it back."""


class ReadWitnessList(NamedTuple):
    """Read the newest witness list from the engine; send back it, or None."""


class ReadToEnd(NamedTuple):
    """Apply the log to its end; send back its tail."""


class Freeze(NamedTuple):
    """Freeze witnesses under the old number, all asked at once.

    Send back the address and the requests of the first that can tell; None if none can: it
    cannot be asked, or has restarted under that number.
    """

    addresses: tuple[str, ...]
    configuration: int


class ReadAcceptedLoss(NamedTuple):
    """Read from the engine what an operator accepted last; send back it, or None."""


class CheckNumbers(NamedTuple):
    """Raise if a witness served a number of this log that the log never gave: it went back."""


class RunRecovered(NamedTuple):
    """Run the call's handler; send back its completion record."""

    witnessed: WitnessedCall


class Append(NamedTuple):
    """Append entries behind ``expected_tail``, with the witness list (if any) in one step.

    The same step given again is the same append, whose outcome was unknown.
    """

    entries: tuple[Entry, ...]
    expected_tail: int
    configuration: int
    witnesses: WitnessList | None


class Recovered(NamedTuple):
    """What is served from now on, and what was found.

    ``frozen``: whose requests were replayed, empty if there was no witness to ask. ``watch``:
    what may have killed those who led before.
    """

    witnesses: WitnessList
    tail: int
    frozen: str
    held: int
    replayed: int
    dropped: int
    watch: PoisonWatch = PoisonWatch()


def recover(
    replica: str,
    state: GroupState,
    wanted: Sequence[str],
    clock: Callable[[], float],
    *,
    secret: bytes,
    bounds: LeaderBounds | None = None,
    patience_s: float = math.inf,
    application_version: int = 0,
    poison_deaths: int = POISON_DEATHS,
) -> Generator[Any, Any, Recovered | None]:
    """Take over, in the order of invariant 5; ends when serving may begin.

    None if no witness of the old list could tell for ``patience_s`` seconds of ``clock``:
    nothing was done under the number, and a replica that reaches one may try in its turn.

    ``wanted``: the witnesses of a group that never had a list. ``clock``: the state's.
    ``secret``: what client tokens are signed with in a group that has no secret yet.
    ``bounds``: of one append; what a witness held is appended in pieces.
    ``application_version``: the replica's own, with which an empty log begins.
    ``poison_deaths``: so many of who ran a call alone, and it is not run again.

    A crash anywhere leaves a group that the next recovery takes over: the old list
    stays in force until all of its requests are in the log, with the last piece, and the
    new one is marked as serving only when its witnesses were started empty.
    """
    bounds = bounds or LeaderBounds()
    configuration: int = yield TakeNumber()
    # After the number was taken: from then on no other replica can change the list (invariant 5).
    old: WitnessList | None = yield ReadWitnessList()
    tail: int = yield ReadToEnd()
    frozen = accepted = ""
    held: list[WitnessedCall] = []
    if old is not None and old.serving and old.witnesses:
        found = yield from _freeze_one(old, clock, patience_s)
        if found is None:
            return None
        if isinstance(found, AcceptedLoss):
            accepted = f"{found.who}: {found.why}"
        else:
            frozen, held = found
    rule = SettingAside(
        state,
        configuration,
        poison_deaths,
        died=old is not None and old.serving,
        may_be_final=lambda rpc_id: _may_be_final(rpc_id, frozen, old),
        wait=lambda reason: VisibleWait(reason, _ROUND_WAIT_S),
    )
    yield from rule.begin()
    piece: list[Entry] = []
    size = replayed = dropped = 0
    ordered = sorted(held, key=_order)
    for at, witnessed in enumerate(ordered):
        if state.witnessed(witnessed.call) is not Witnessed.FRESH:
            dropped += 1
            continue
        condemned = yield from rule.judge(witnessed)
        if condemned is not None:
            entry = _aside(witnessed, condemned)
        else:
            yield from rule.note(ordered[at:])
            entry = yield from _replay(witnessed, bounds.batch_bytes, application_version)
        if piece and (
            size + entry.at_most_bytes > bounds.batch_bytes or len(piece) >= bounds.append_entries
        ):
            tail = yield from _append(Append(tuple(piece), tail, configuration, None))
            piece, size = [], 0
        # Registered at once (invariant 6): a witness may be asked for the same twice.
        piece.append(entry)
        size += entry.at_most_bytes
        replayed += 1
        state.commit(tail + len(piece), entry, clock())
    events: list[Entry] = [LeaderStarted(configuration, replica, replayed, accepted)]
    events += rule.given_up()
    if not state.secrets:
        # Witnesses check tokens from their start on.
        events.append(SecretsPut(((0, secret),)))
    if not tail and application_version:
        # Nothing in it is older.
        events.append(ApplicationVersion(application_version))
    if piece and (
        len(piece) + len(events) > bounds.append_entries
        or size + _EVENTS_BYTES > bounds.batch_bytes
    ):
        tail = yield from _append(Append(tuple(piece), tail, configuration, None))
        piece = []
    for lsn, event in enumerate(events, tail + len(piece) + 1):
        state.commit(lsn, event, clock())
    asked_for = tuple(wanted) if old is None else old.wanted
    listed = WitnessList(configuration, asked_for, False, asked_for)
    tail = yield from _append(Append((*piece, *events), tail, configuration, listed))
    # A witness whose start was not acknowledged is left out: asked again later it could
    # have restarted meanwhile, and would begin empty under a number that it served.
    started = yield from start_witnesses(asked_for, configuration)
    yield CheckNumbers()
    serving = WitnessList(configuration, started, True, asked_for)
    watch = yield from rule.end()
    yield Publish(serving)
    return Recovered(serving, tail, frozen, len(held), replayed, dropped, watch)


def operation_of(
    call: Call,
    request: bytes,
    record: CompletionRecord,
    keys: frozenset[int],
    *,
    first_incomplete: int = 1,
    completed: Sequence[tuple[int, int]] = (),
    refusal: bool = False,
    application_version: int = 0,
) -> Operation:
    """Return the entry of a call that was executed.

    Without ``first_incomplete`` and ``completed`` its acknowledgements are ignored, as they
    are in replay (invariant 6): a call that it acknowledges may come from the witness after
    it.
    """
    return Operation(
        call.client_id,
        call.seq,
        call.key,
        call.method,
        request,
        record,
        call.stamp,
        keys,
        call.fingerprint,
        first_incomplete,
        tuple(completed),
        call.peer,
        refusal,
        application_version,
    )


def _replay(
    witnessed: WitnessedCall, most_bytes: int, application_version: int
) -> Generator[Any, Any, Operation]:
    """Run a call; the entry, which fits one append."""
    call, keys = witnessed.call, witnessed.keys
    unanswered = operation_of(call, witnessed.request, CompletionRecord(), keys)
    if unanswered.at_most_bytes > most_bytes:
        # No leader took it (it refuses such a call before it runs), and none ever will.
        error = NotExecuted(f"{call.rpc_id} has a request that does not fit the log")
        return operation_of(call, b"", refusal_record(error), keys, refusal=True)
    record: CompletionRecord = yield RunRecovered(witnessed)
    entry = operation_of(
        call, witnessed.request, record, keys, application_version=application_version
    )
    if entry.at_most_bytes > most_bytes:
        too_large = ResponseTooLarge(f"the answer to {call.rpc_id} does not fit the log")
        entry = entry._replace(answer=refusal_record(too_large))
    return entry


def _aside(witnessed: WitnessedCall, case: Case) -> Operation:
    """Return the entry of a call that is not run again."""
    entry = operation_of(witnessed.call, b"", unknown_record(case), witnessed.keys, refusal=True)
    return entry._replace(set_aside=SetAside(case.deaths, case.who, case.why))


def _append(step: Append) -> Generator[Any, Any, int]:
    """Have entries appended: the same step again and again, until it is known whether they are."""
    while True:
        try:
            tail: int = yield step
        except LogError as error:
            if not may_pass(error):
                raise
            yield VisibleWait(f"the log engine: {error}", _RETRY_S)
        else:
            return tail


def _freeze(
    addresses: tuple[str, ...], configuration: int
) -> Generator[Any, Any, tuple[str, list[WitnessedCall]] | None]:
    found: tuple[str, list[WitnessedCall]] | None = yield Freeze(addresses, configuration)
    yield CheckNumbers()
    return found


def _may_be_final(rpc_id: RpcId, frozen: str, old: WitnessList | None) -> Generator[Any, Any, bool]:
    """Whether a request that a witness holds may have been accepted by all (invariant 1).

    Not if another one of the list, frozen, too, does not hold it: it never will.
    """
    if old is None:
        return False
    for address in old.witnesses:
        if address == frozen:
            continue
        found: tuple[str, list[WitnessedCall]] | None
        found = yield from _freeze((address,), old.configuration)
        if found is not None and all(each.call.rpc_id != rpc_id for each in found[1]):
            return False
    return True


def _freeze_one(
    old: WitnessList, clock: Callable[[], float], patience_s: float
) -> Generator[Any, Any, tuple[str, list[WitnessedCall]] | AcceptedLoss | None]:
    gives_up_at = clock() + patience_s
    while True:
        found: tuple[str, list[WitnessedCall]] | None
        found = yield from _freeze(old.witnesses, old.configuration)
        if found is not None:
            return found
        accepted: AcceptedLoss | None = yield ReadAcceptedLoss()
        if accepted is not None and accepted.configuration == old.configuration:
            return accepted
        # Never serve without (invariant 5): what they hold may have been acknowledged. It is said
        # before the leadership is given up, too, as one answer may be waited for as long as that.
        yield VisibleWait(
            f"a witness of configuration {old.configuration} that never restarted under it: "
            + ", ".join(old.witnesses),
            _ROUND_WAIT_S,
        )
        if clock() >= gives_up_at:
            return None


def _order(witnessed: WitnessedCall) -> tuple[bool, int, int, bytes]:
    # Those that are covered commute: any order will do, and the same one each time is easier
    # to follow. No caller was answered first about the others (invariant 3): after all that
    # were, they change no answer.
    call = witnessed.call
    return not witnessed.covered, call.client_id, call.seq or 0, call.key or b""
