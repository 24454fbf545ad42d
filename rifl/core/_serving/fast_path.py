"""The fast path of a call: its steps taken without a generator, as long as nothing must be awaited.

Most calls are claimed, run and recorded so over a store in memory, and up to the handler over
most others; where the shell blocks, over every store. Each function here either finishes its
steps as ``rifl.core._serving.serving`` would, or hands over to the generators there: in its last
line, with what the store has said so far. So the shells take ``claim``, ``start``, the handler
and ``end``, and drive whatever they are handed instead.

``remaining_s`` tells of the call's deadline, as ``Later.wait_for_call`` has it. A shell that
blocks gives it, and what the store has yet to say is waited for here; None where it must be
awaited.
"""

from __future__ import annotations

from collections.abc import Callable

from _rifl_ground.refusals import Outcome
from rifl.core._serving.admission import Admission, Steps, admit
from rifl.core._serving.answer import Handled, bounded
from rifl.core._serving.client_entry import Attempt
from rifl.core._serving.decision import Decision
from rifl.core._serving.later import Later
from rifl.core._serving.policy import Kind, MethodPolicy
from rifl.core._serving.records import NOT_ASKED, Records, Reply
from rifl.core._serving.serving import (
    adopted_answer,
    conclude,
    execute,
    is_own,
    note_kept,
    or_elsewhere,
    record_answer,
)
from rifl.core._serving.verdict import Verdict
from rifl.core._shared.call import Call
from rifl.core._shared.record import CompletionRecord

_ATOMIC, _NEW, _EXECUTED = Kind.ATOMIC, Verdict.NEW, Outcome.EXECUTED
Remaining = Callable[[], float | None] | None


def claim(
    store: Records, call: Call, policy: MethodPolicy, remaining_s: Remaining = None
) -> Attempt | Admission:
    """Take steps 2 to 5: the attempt to ``start``, or the rest of ``admit``."""
    decision = store.claim(call, policy)
    if not isinstance(decision, Decision):
        if remaining_s is None:
            return admit(store, call, policy, decision)
        decision = decision.wait_for_call(remaining_s)
    if decision.verdict is _NEW:
        return decision.attempt  # type: ignore[return-value]
    return admit(store, call, policy, decision)


def start(store: Records, attempt: Attempt, remaining_s: Remaining = None) -> Attempt | Steps:
    """Take step 6 up to the handler: the attempt to run it for, or the rest of ``execute``."""
    started: Reply = NOT_ASKED
    if not store.held.active:
        try:
            started = store.start(attempt)
            if started is None:
                return attempt
            if remaining_s is not None:
                started.wait_for_call(remaining_s)
                return attempt
        except Exception as error:  # noqa: BLE001 - a reply as any other
            started = error
    return execute(store, attempt, started)


def end(
    store: Records, attempt: Attempt, handled: Handled, remaining_s: Remaining = None
) -> CompletionRecord | Steps:
    """Take step 7: the record as which the call was executed, or the rest of ``conclude``."""
    policy = attempt.policy
    if policy.kind is _ATOMIC:
        return _end_atomic(store, attempt, handled, remaining_s)
    if isinstance(handled, CompletionRecord) and not (
        handled.code and handled.code in policy.unrecorded
    ):
        record = bounded(handled, attempt, store.held)
        try:
            finished: Reply = store.finish(attempt, record)
            if finished is not None and remaining_s is not None:
                finished = finished.wait_for_call(remaining_s)
            if finished is None:
                return record
        except Exception as error:  # noqa: BLE001 - as above
            finished = error
        steps = record_answer(store, attempt, record, finished)
    else:
        steps = conclude(store, attempt, handled)
    return or_elsewhere(store, attempt, steps)


def _end_atomic(
    store: Records, attempt: Attempt, handled: Handled, remaining_s: Remaining
) -> CompletionRecord | Steps:
    if attempt.unclaimed and attempt.committed is None:
        return or_elsewhere(store, attempt, conclude(store, attempt, handled))
    try:
        standing: Reply = store.committed(attempt)
        # What it mostly is first: to tell a ``Later`` costs ten times as much.
        known = isinstance(standing, CompletionRecord)
        if remaining_s is not None and not known and isinstance(standing, Later):
            standing = standing.wait_for_call(remaining_s)
    except Exception as error:  # noqa: BLE001 - as above
        standing = error
    if not isinstance(standing, CompletionRecord):
        return or_elsewhere(store, attempt, conclude(store, attempt, handled, standing))
    note_kept(store, attempt, standing)
    try:
        adopted: Reply = store.adopt(attempt, standing)
    except Exception as error:  # noqa: BLE001 - as above
        adopted = error
    if adopted is None and standing.outcome is _EXECUTED and is_own(attempt, standing):
        return standing
    return or_elsewhere(store, attempt, adopted_answer(attempt, standing, adopted))
