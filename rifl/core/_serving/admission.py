"""The admission of a call: its answer, where there is one, or the attempt that may run."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from rifl.core._serving.answer import Answer, replayed
from rifl.core._serving.client_entry import Attempt
from rifl.core._serving.client_table import match_payload
from rifl.core._serving.decision import Decision
from rifl.core._serving.later import Later
from rifl.core._serving.policy import MethodPolicy
from rifl.core._serving.records import Records, waited
from rifl.core._serving.verdict import Verdict
from rifl.core._shared.call import Call
from rifl.core._shared.errors import InProgress, StaleRpc

# Each decision more means that a record went, or an attempt ended without one.
_MAX_DECISIONS = 100


class Wait(NamedTuple):
    """Have a call wait for the end of another arrival's attempt."""

    attempt: Attempt
    call: Call


class Fetch(NamedTuple):
    """Read the record of a completed call."""

    call: Call


# The rest of a call's steps, for a shell to drive; they return its answer.
Steps = Generator[Any, Any, Answer]
# The rest of its admission, which may return the attempt to execute.
Admission = Generator[Any, Any, Answer | Attempt]


def admit(
    store: Records,
    call: Call,
    policy: MethodPolicy,
    first: Decision | Later | None = None,
    waits: Callable[[], None] | None = None,
) -> Admission:
    """Decide about an arriving call: its answer, or the attempt to execute.

    ``first`` is the store's decision where it was asked already; ``waits`` is called before a
    wait for another arrival. Raises a ``RiflError`` to refuse the call.
    """
    for _ in range(_MAX_DECISIONS):
        decision = store.claim(call, policy) if first is None else first
        first = None
        if isinstance(decision, Later):
            decision = yield decision
        if decision.verdict is Verdict.NEW:
            return decision.attempt  # type: ignore[return-value]
        if decision.verdict is Verdict.STALE:
            raise StaleRpc(f"{call.rpc_id} was acknowledged")
        if decision.verdict is Verdict.COMPLETED:
            record = decision.record
            if record is None:
                record = yield Fetch(call)
            if record is not None:
                return Answer(record, replayed(record))
            # Acknowledged between the decision and the read: decide again.
            continue
        if waits is not None:
            waits()
        if not (yield Wait(decision.attempt, call)):  # type: ignore[arg-type]
            raise InProgress(f"{call.rpc_id} is still running")
        elif (record := decision.attempt.record) is not None:  # type: ignore[union-attr]
            # A request stream's payload may have become known only now.
            match_payload(call, decision.attempt.call.fingerprint)  # type: ignore[union-attr]
            # The same answer, even if its client is forgotten by now.
            return Answer(record, replayed(record))
    raise InProgress(f"{call.rpc_id} changed too often while it was looked at: ask again")


def admit_stream(store: Records, call: Call, policy: MethodPolicy, rest: Later) -> Admission:
    """Decide about a call whose request stream has not ended yet, by its identity.

    ``call`` has no fingerprint so far. ``rest`` reads the stream to its end,
    keeping nothing, and sets it: for a known call, whose payload is verified then.
    A call that turns out new after that is refused, for its payload is gone.
    """
    decision = store.claim(call, policy)
    if isinstance(decision, Later):
        decision = yield decision
    if decision.verdict is Verdict.NEW:
        return decision.attempt  # type: ignore[return-value]
    if decision.verdict is Verdict.COMPLETED and not decision.verified:
        record = decision.record
        if record is None:
            record = yield Fetch(call)
        if record is not None:
            return Answer(record, replayed(record))
    if decision.verdict is not Verdict.STALE:
        yield rest
    return (yield from admit_known(store, call, policy))


def admit_known(store: Records, call: Call, policy: MethodPolicy) -> Steps:
    """Admit a call that this arrival cannot run: what it needs was read, or sent, already."""
    admitted = yield from admit(store, call, policy)
    if isinstance(admitted, Attempt):
        yield from waited(store.abandon(admitted))
        raise InProgress(f"{call.rpc_id} is new again: send it once more")
    return admitted
