"""The fast path of a call: its steps taken without a generator, as long as nobody has to wait.

Most calls are claimed, run and recorded so over a store in memory, and up to the handler over
most others. Each function here either finishes its steps as ``rifl.core._serving.serving`` would,
or hands over to the generators there: in its last line, with what the store has said so far. So
the shells take ``claim``, ``start``, the handler and ``end``, and drive whatever they are
handed instead.
"""

from __future__ import annotations

from rifl.core._serving.admission import Admission, Steps, admit
from rifl.core._serving.answer import Handled, bounded
from rifl.core._serving.client_entry import Attempt
from rifl.core._serving.decision import Decision
from rifl.core._serving.policy import Kind, MethodPolicy
from rifl.core._serving.records import NOT_ASKED, Records, Reply
from rifl.core._serving.serving import conclude, execute, or_elsewhere, record_answer
from rifl.core._serving.verdict import Verdict
from rifl.core._shared.call import Call
from rifl.core._shared.record import CompletionRecord

_ATOMIC, _NEW = Kind.ATOMIC, Verdict.NEW


def claim(store: Records, call: Call, policy: MethodPolicy) -> Attempt | Admission:
    """Take steps 2 to 5: the attempt to ``start``, or the rest of ``admit``."""
    decision = store.claim(call, policy)
    if isinstance(decision, Decision) and decision.verdict is _NEW:
        return decision.attempt  # type: ignore[return-value]
    return admit(store, call, policy, decision)


def start(store: Records, attempt: Attempt) -> Attempt | Steps:
    """Take step 6 up to the handler: the attempt to run it for, or the rest of ``execute``."""
    started: Reply = NOT_ASKED
    if not store.held.active:
        try:
            started = store.start(attempt)
        except Exception as error:  # noqa: BLE001 - a reply as any other
            started = error
        if started is None:
            return attempt
    return execute(store, attempt, started)


def end(store: Records, attempt: Attempt, handled: Handled) -> CompletionRecord | Steps:
    """Take step 7: the record as which the call was executed, or the rest of ``conclude``."""
    policy = attempt.policy
    if (
        isinstance(handled, CompletionRecord)
        and policy.kind is not _ATOMIC
        and not (handled.code and handled.code in policy.unrecorded)
    ):
        record = bounded(handled, attempt, store.held)
        try:
            finished: Reply = store.finish(attempt, record)
        except Exception as error:  # noqa: BLE001 - as above
            finished = error
        if finished is None:
            return record
        steps = record_answer(store, attempt, record, finished)
    else:
        steps = conclude(store, attempt, handled)
    return or_elsewhere(store, attempt, steps)
