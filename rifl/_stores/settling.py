"""Settlements of calls whose outcome is unknown, by an operator or a program (DESIGN §4)."""

from __future__ import annotations

import enum
import json
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Any, NamedTuple

from _rifl_ground.audit import acted
from rifl._stores.codec import RecordCodec
from rifl._stores.errors import StoreLocked
from rifl._stores.inspection import CallRow, Inspection
from rifl._stores.opening import open_inspection
from rifl.core._serving.answer import refusal_record
from rifl.core._shared.errors import AnswerLost, NotExecuted
from rifl.core._shared.identity import RpcId
from rifl.core._shared.record import CompletionRecord

# A verdict is short; what is longer is an answer, and need not be read.
_LONGEST_VERDICT = 2_000
_LONGEST_TEXT = 500

# A call that runs for longer is listed as stuck.
STUCK_S = 60.0


class Settlement(NamedTuple):
    """The outcome of calls, who found it out and how: kept with the store.

    ``executed`` with a ``response`` (the serialised message): every later attempt gets that
    answer. Without one each gets ``AnswerLost``: the call ran, and its answer is lost. Not
    executed: the call is forgotten, and its next attempt runs it. If a handler may run without
    a claim (``Inspection.refuse``), its later attempts are told that it did not run instead.
    """

    executed: bool
    who: str
    why: str
    response: bytes | None = None

    def record(self, rpc_id: RpcId) -> CompletionRecord:
        """Return the record that answers later attempts of the call, if they do not run it."""
        if not self.executed:
            return refusal_record(NotExecuted(f"{rpc_id} did not run: {self.who} found it out"))
        if self.response is not None:
            return CompletionRecord(response=self.response)
        return refusal_record(
            AnswerLost(f"{rpc_id} ran, and its answer is lost: {self.who} found it out")
        )

    def note(self) -> dict[str, Any]:
        """Return what is remembered of it."""
        return {
            "decision": "executed" if self.executed else "not-executed",
            "with_response": self.response is not None,
            "who": self.who[:_LONGEST_TEXT],
            "why": self.why[:_LONGEST_TEXT],
            "at_unix_s": int(time.time()),
        }


class Settled(enum.Enum):
    """The result of settling one call."""

    EXECUTED = "executed"
    NOT_EXECUTED = "not-executed"
    # Its client has ended, or its retention has passed: no later attempt is answered.
    GONE = "gone"
    # It has an answer, which stands.
    ANSWERED = "answered"


class UnknownState(enum.Enum):
    """In which way a call's outcome is not known."""

    # Arrivals are told OUTCOME_UNKNOWN.
    UNKNOWN = "unknown"
    # It was begun, and the process that did is gone: its next arrival is told so.
    BEGUN = "begun"
    # It has been running for long.
    STUCK = "stuck"
    # It was unknown; its client has ended, or its retention has passed.
    OVER = "over"
    # An operator settled it.
    SETTLED = "settled"


class UnknownCall(NamedTuple):
    """One call whose outcome is, or was, not known; ``note`` is ``Settlement.note``'s."""

    rpc_id: RpcId
    method: str
    state: UnknownState
    since_unix_s: int | None
    owner: str | None = None
    note: dict[str, Any] | None = None


def list_unknown(store: Inspection, stuck_s: float = STUCK_S) -> Iterator[UnknownCall]:
    """Return the calls whose outcome is unknown, and those that run for ``stuck_s`` or longer.

    Then those that were settled, or have ended, as far as the store remembers.
    """
    notes = {rpc_id: (method, at, note) for rpc_id, method, at, note in store.remembered()}
    now = time.time()
    for call in store.calls():
        state = _state(store, call, now - stuck_s)
        if state is not None:
            notes.pop(call.rpc_id, None)
            yield UnknownCall(
                call.rpc_id, call.method, state, call.changed_at_unix_s, _owner(store, call)
            )
    for rpc_id, (method, at_unix_s, text) in notes.items():
        note = None if text is None else json.loads(text)
        state = UnknownState.OVER if note is None else UnknownState.SETTLED
        yield UnknownCall(rpc_id, method, state, at_unix_s, None, note)


def settle(store: Inspection, rpc_id: RpcId, settlement: Settlement) -> Settled:
    """Settle one call, durably; an answer that stands is never touched.

    Raises ``StoreLocked`` where a process that may live runs the call, or would not notice
    that it is forgotten (a SQLite store's owner).
    """
    verb = "settle_executed" if settlement.executed else "settle_not_executed"
    try:
        found = _settle(store, rpc_id, settlement)
    except StoreLocked:
        # Nothing was done.
        raise
    except Exception as error:
        acted(settlement.who, verb, str(rpc_id), error)
        raise
    if found is not Settled.ANSWERED:
        acted(settlement.who, verb, str(rpc_id))
    return found


def _settle(store: Inspection, rpc_id: RpcId, settlement: Settlement) -> Settled:
    call = store.call(rpc_id)
    note = json.dumps(settlement.note())
    if call is None:
        if not settlement.executed and store.refuse(rpc_id, None, *_verdict(settlement, rpc_id)):
            return Settled.NOT_EXECUTED
        store.remember(rpc_id, note)
        return Settled.GONE
    seen = store.stored(rpc_id)
    if seen is not None and not RecordCodec.is_unknown(seen):
        return Settled.ANSWERED
    if (seen is None or not settlement.executed) and (holder := store.holder(rpc_id)):
        raise StoreLocked(
            f"{rpc_id}: {holder} may still run it, or would not notice: stop it first"
        )
    if settlement.executed:
        data = RecordCodec().to_bytes(settlement.record(rpc_id), None)
        if not store.replace(rpc_id, seen, data, note):
            raise StoreLocked(f"{rpc_id} was recorded or taken over just now; look again")
        return Settled.EXECUTED
    if store.refuse(rpc_id, seen, *_verdict(settlement, rpc_id)):
        return Settled.NOT_EXECUTED
    # Before: what was forgotten without a note would be a riddle.
    store.remember(rpc_id, note)
    store.release(rpc_id)
    return Settled.NOT_EXECUTED


def _verdict(settlement: Settlement, rpc_id: RpcId) -> tuple[bytes, str]:
    return RecordCodec().to_bytes(settlement.record(rpc_id), None), json.dumps(settlement.note())


def unknown_calls(url: str, stuck_s: float = STUCK_S) -> list[UnknownCall]:
    """Return ``list_unknown`` of the store at a URL. Raises a ``StoreError``."""
    with closing(open_inspection(url)) as store:
        return list(list_unknown(store, stuck_s))


def settle_unknown(
    url: str, rpc_ids: Iterable[RpcId], settlement: Settlement
) -> dict[RpcId, Settled]:
    """Settle many calls in the store at a URL, one after the other.

    An error ends it there, with those before settled: repeated with the same calls, it goes
    on, since settled calls are left alone. Raises a ``StoreError``.
    """
    with closing(open_inspection(url)) as store:
        return {rpc_id: settle(store, rpc_id, settlement) for rpc_id in rpc_ids}


def _state(store: Inspection, call: CallRow, before_unix_s: float) -> UnknownState | None:
    if call.record_bytes is None:
        if not store.holder(call.rpc_id):
            return UnknownState.BEGUN
        since = call.changed_at_unix_s
        # Whole seconds, rounded in either way.
        return UnknownState.STUCK if since - 1 <= before_unix_s else None
    if call.record_bytes > _LONGEST_VERDICT:
        return None
    seen = store.stored(call.rpc_id)
    return UnknownState.UNKNOWN if seen is not None and RecordCodec.is_unknown(seen) else None


def _owner(store: Inspection, call: CallRow) -> str | None:
    return store.holder(call.rpc_id) if call.record_bytes is None else None
