"""One call on the server, step by step (DESIGN §4), for any store and any shell.

The rules are generators. They yield what has to be waited for or done outside,
the shell does it, blocking or awaiting, and sends the result back in; so the
order of the steps stands in one place for sync and aio.

What they yield:

- a ``Later`` of the store: wait for its result and send that back; its error is
  thrown in.
- ``Wait``: wait, within the deadline and the bounds, for another arrival's
  attempt; send back False if that took too long.
- ``Fetch``: read a record from the store; send back it or None.
- an ``Attempt``: run its handler to the end; send back what it ended with.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple, Protocol

from rifl.core._serving.client_entry import Attempt
from rifl.core._serving.client_table import match_payload
from rifl.core._serving.decision import Decision
from rifl.core._serving.held import LARGE_BYTES, Held
from rifl.core._serving.later import Later
from rifl.core._serving.namespace import is_namespace
from rifl.core._serving.policy import Kind, MethodPolicy
from rifl.core._serving.sendable import cut
from rifl.core._serving.verdict import Verdict
from rifl.core._shared.call import Call
from rifl.core._shared.codes import CODE_NUMBERS
from rifl.core._shared.errors import (
    AnswerLost,
    InProgress,
    NotExecuted,
    NotRecorded,
    OutcomeUnknown,
    RecordPending,
    ResponseTooLarge,
    RiflError,
    StaleRpc,
    StoreUnavailable,
    WindowExceeded,
)
from rifl.core._shared.outcome import Outcome
from rifl.core._shared.record import CompletionRecord

# Each decision more means that a record went, or an attempt ended without one.
_MAX_DECISIONS = 100
# gRPC's own, in bytes.
DEFAULT_RECEIVE_LIMIT = 4 << 20
# Of an error of ours; it travels twice, as the status and in its details.
_MAX_TEXT_BYTES = 1000
_ATOMIC, _NEW = Kind.ATOMIC, Verdict.NEW


class Wait(NamedTuple):
    """Wait for the end of another arrival's attempt."""

    attempt: Attempt


class Fetch(NamedTuple):
    """Read the record of a completed call."""

    call: Call


class HandlerResult(NamedTuple):
    """What the handler did: its answer, and whether it raised instead of deciding.

    ``broken``: it did not get to its end, and why: its request stream broke off, or it was
    cancelled. ``undone``: the transaction of an atomic handler is known not to have been
    committed, unless its record stands.
    """

    record: CompletionRecord
    raised: bool = False
    broken: str = ""
    undone: bool = False


class Answer(NamedTuple):
    """What leaves: the record, and the outcome this arrival is told."""

    record: CompletionRecord
    outcome: Outcome


# What a handler ended with: the record of one that decided, or what says more.
Handled = CompletionRecord | HandlerResult
# The rest of a call's steps, for a shell to drive; they return its answer.
Steps = Generator[Any, Any, Answer]
# The rest of its admission, which may return the attempt to execute.
Admission = Generator[Any, Any, Answer | Attempt]


class Records(Protocol):
    """Where decisions are made and records kept: a store, as the rules see it.

    A method that has to wait returns a ``Later``; else it returns its result, so
    that a store in memory costs no hand-over.
    """

    @property
    def held(self) -> Held:
        """What answers take that are kept."""

    def claim(self, call: Call, policy: MethodPolicy) -> Decision | Later:
        """Decide about a call and claim it if new: one atomic step."""

    def start(self, attempt: Attempt) -> Later | None:
        """Make durable what has to be before the handler runs."""

    def committed(self, attempt: Attempt) -> CompletionRecord | Later | None:
        """Return the record that the handler's own transaction committed."""

    def finish(self, attempt: Attempt, record: CompletionRecord) -> Later | None:
        """Make the record durable, then settle the attempt with it.

        A ``Later`` whose result is a record says that this one stands instead.
        """

    def may_have_run(self, attempt: Attempt) -> bool:
        """Whether a claimed call may have run without a trace, before a crash."""

    def adopt(self, attempt: Attempt, record: CompletionRecord) -> Later | None:
        """Settle the attempt with a record that is durable already."""

    def abandon(self, attempt: Attempt) -> Later | None:
        """Make the call new again, durably, and wake its waiters.

        Where ``attempt.ran`` is set ``may_have_run`` says so of the next one.
        """


def admit(
    store: Records, call: Call, policy: MethodPolicy, first: Decision | Later | None = None
) -> Admission:
    """Decide about an arriving call: its answer, or the attempt to execute.

    ``first`` is the store's decision where it was asked already. Raises a
    ``RiflError`` to refuse the call.
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
        elif not (yield Wait(decision.attempt)):  # type: ignore[arg-type]
            raise InProgress(f"{call.rpc_id} is still running")
        elif (record := decision.attempt.record) is not None:  # type: ignore[union-attr]
            # A request stream's payload may have become known only now.
            match_payload(call, decision.attempt.call.fingerprint)  # type: ignore[union-attr]
            # The same answer, even if its client is forgotten by now.
            return Answer(record, replayed(record))
    raise InProgress(f"{call.rpc_id} has changed under our hands too often: ask again")


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
    return (yield from _answered(store, call, policy))


def serve(store: Records, call: Call, policy: MethodPolicy) -> Steps:
    """Admit a call and, if it is new, execute it: for a shell that is not cancelled."""
    begun = begin(store, call, policy)
    if isinstance(begun, Attempt):
        return (yield from _or_elsewhere(store, begun, _run(store, begun)))
    return (yield from begun)


def claim(store: Records, call: Call, policy: MethodPolicy) -> Attempt | Admission:
    """Take the steps of ``admit`` up to the first that has to be waited for.

    Returns the attempt to execute, or the steps that are left.
    """
    decision = store.claim(call, policy)
    if isinstance(decision, Decision) and decision.verdict is _NEW:
        return decision.attempt  # type: ignore[return-value]
    return admit(store, call, policy, decision)


def begin(store: Records, call: Call, policy: MethodPolicy) -> Attempt | Steps:
    """Take the steps of ``serve`` up to the first that has to be waited for.

    Returns the attempt whose handler is to run now, its result to be given to
    ``end``; or the steps that are left. A store in memory makes nobody wait: most
    of its calls are ``begin``, the handler, ``end``, without a generator between.
    """
    claimed = claim(store, call, policy)
    if isinstance(claimed, Attempt):
        return start(store, claimed)
    return _admit_and_execute(store, claimed)


def start(store: Records, attempt: Attempt) -> Attempt | Steps:
    """Take the steps of ``execute`` up to the first that has to be waited for.

    Returns what ``begin`` does.
    """
    try:
        if store.held.active:
            _admit_answer(store, attempt)
        pending = store.start(attempt)
    except Exception as error:  # noqa: BLE001 - raised again when the claim is undone
        return _or_elsewhere(store, attempt, _undo(store, attempt, error))
    if pending is None:
        return attempt
    return _or_elsewhere(store, attempt, _start_and_run(store, attempt, pending))


def end(store: Records, attempt: Attempt, result: Handled) -> CompletionRecord | Steps:
    """Take the steps after the handler up to the first that has to be waited for.

    Returns the record as which the call was executed, or the steps that are left, which
    return the answer. Raises as ``execute`` does.
    """
    if isinstance(result, HandlerResult):
        if result.raised:
            return _or_elsewhere(store, attempt, _end_otherwise(store, attempt, result))
        result = result.record
    policy = attempt.policy
    code = result.code
    if policy.kind is _ATOMIC or (code and code in policy.unrecorded):
        otherwise = _end_otherwise(store, attempt, HandlerResult(result))
        return _or_elsewhere(store, attempt, otherwise)
    return _record(store, attempt, result)


def execute(store: Records, attempt: Attempt) -> Steps:
    """Run a claimed call to its durable end (steps 6 and 7).

    Never to be cancelled: the effect may be there. Raises ``StoreUnavailable``,
    or whatever else the store refuses with, if nothing ran, ``RecordPending`` if
    the handler ran but its record is not durable yet (the store goes on trying).
    If another replica took the call over meanwhile, what it answers is the answer.
    """
    started = start(store, attempt)
    if isinstance(started, Attempt):
        started = _or_elsewhere(store, attempt, _run(store, attempt))
    if not attempt.call.streamed:
        return (yield from started)
    try:
        return (yield from started)
    except InProgress:
        return (yield from _answered(store, attempt.call, attempt.policy))


def _or_elsewhere(store: Records, attempt: Attempt, steps: Steps) -> Steps:
    """Take an attempt's steps; if another replica took the call over, its answer counts."""
    try:
        return (yield from steps)
    except InProgress:
        if attempt.call.streamed:
            raise
        return (yield from serve(store, attempt.call, attempt.policy))


def _answered(store: Records, call: Call, policy: MethodPolicy) -> Steps:
    """Admit a call that this arrival cannot run: what it needs was read, or sent, already."""
    admitted = yield from admit(store, call, policy)
    if isinstance(admitted, Attempt):
        if (pending := store.abandon(admitted)) is not None:
            yield pending
        raise InProgress(f"{call.rpc_id} has just become new again: send it once more")
    return admitted


def _admit_and_execute(store: Records, admission: Admission) -> Steps:
    admitted = yield from admission
    if isinstance(admitted, Answer):
        return admitted
    return (yield from execute(store, admitted))


def _admit_answer(store: Records, attempt: Attempt) -> None:
    """Refuse a new call whose answer would have no room; raises ``WindowExceeded``."""
    ran = store.may_have_run(attempt)
    # What may have run before needs its answer's room already. Of a namespace that may be
    # every key, and anyone's.
    if ran and not is_namespace(attempt.call.client_id):
        return
    try:
        store.held.admit(attempt)
    except WindowExceeded as refusal:
        if ran:
            refusal.may_have_run()
        raise


def _undo(store: Records, attempt: Attempt, error: Exception) -> Steps:
    """Give up a claim whose handler cannot start: left behind, it would never end."""
    if (pending := store.abandon(attempt)) is not None:
        yield pending
    raise error


def _start_and_run(store: Records, attempt: Attempt, pending: Later) -> Steps:
    try:
        yield pending
    except Exception as error:  # noqa: BLE001 - as in ``start``
        return (yield from _undo(store, attempt, error))
    return (yield from _run(store, attempt))


def _run(store: Records, attempt: Attempt) -> Steps:
    result: Handled = yield attempt
    return (yield from _ended(end(store, attempt, result)))


def _ended(ended: CompletionRecord | Steps) -> Steps:
    if isinstance(ended, CompletionRecord):
        return Answer(ended, ended.outcome)
    return (yield from ended)


def _end_otherwise(store: Records, attempt: Attempt, result: HandlerResult) -> Steps:
    """End what an atomic handler, or one that raised or answered "nothing happened", ran."""
    policy, record = attempt.policy, result.record
    if policy.kind is Kind.ATOMIC:
        undone = result.undone or attempt.undone
        try:
            standing = yield from _left_by_the_handler(store, attempt)
        except NotRecorded as error:
            return (yield from _given_up(store, attempt, refusal_record(error), ran=False))
        if standing is not None:
            if standing.response is not None:
                store.held.note(attempt, len(standing.response))
            if (pending := store.adopt(attempt, standing)) is not None:
                yield pending
            return Answer(standing, standing.outcome)
        if result.raised:
            # As after a crash it runs again: what it did without its record, if anything,
            # it did not do in a transaction of the call's.
            return (yield from _given_up(store, attempt, record, ran=not undone))
        if record.code == 0:
            missing = refusal_record(
                NotRecorded(
                    f"{attempt.call.method} is atomic, and its handler returned without a "
                    "committed record: call rifl.record in its transaction"
                )
            )
            if undone:
                return (yield from _given_up(store, attempt, missing, ran=False))
            # For good: it would do again whatever it did.
            return (yield from _ended(_record(store, attempt, missing)))
    if result.raised and result.broken:
        if policy.kind is Kind.IDEMPOTENT:
            return (yield from _given_up(store, attempt, record, ran=True))
        lost = OutcomeUnknown(f"{result.broken}; what the handler did by then is not known")
        return (yield from _ended(_record(store, attempt, refusal_record(lost))))
    if record.code and record.code in policy.unrecorded and not result.raised:
        return (yield from _given_up(store, attempt, record, ran=False))
    return (yield from _ended(_record(store, attempt, record)))


def _left_by_the_handler(
    store: Records, attempt: Attempt
) -> Generator[Any, Any, CompletionRecord | None]:
    """Return the record that an atomic handler committed, which stands whatever it did then."""
    try:
        standing = store.committed(attempt)
        return (yield standing) if isinstance(standing, Later) else standing
    except (InProgress, NotRecorded):
        raise
    except OutcomeUnknown as error:
        # It stands, and cannot be read now: settled, it is there for who asks later.
        if (pending := store.adopt(attempt, refusal_record(error))) is not None:
            yield pending
        raise
    except (RecordPending, StoreUnavailable) as error:
        # Nothing happened, or nobody can tell now. A later attempt that runs meets the
        # record, if there is one, in its own transaction, and that stands.
        attempt.ran = attempt.ran or isinstance(error, RecordPending)
        store.abandon(attempt)
        raise
    except Exception:
        # A defect, ours or a driver's; kept running, the call would be waited for for ever.
        attempt.ran = True
        if (pending := store.abandon(attempt)) is not None:
            yield pending
        raise


def _given_up(store: Records, attempt: Attempt, record: CompletionRecord, *, ran: bool) -> Steps:
    """Make the call new again, and answer this arrival with what its handler said.

    ``ran``: for all that is known it had an effect. So may an earlier run have had.
    """
    ran = ran or attempt.ran or attempt.entry.may_have_run(attempt.call.identity)
    attempt.ran = ran
    # One that a crash ended left no trace, if its method has no intent. Of an atomic one
    # nothing stands without its record.
    ran = ran or (attempt.policy.kind is Kind.IDEMPOTENT and store.may_have_run(attempt))
    if (pending := store.abandon(attempt)) is not None:
        yield pending
    return Answer(record, Outcome.UNKNOWN if ran else Outcome.NOT_EXECUTED)


def _record(store: Records, attempt: Attempt, record: CompletionRecord) -> CompletionRecord | Steps:
    """Make the answer's record durable (step 7), then it is the answer."""
    record = bounded(record, attempt, store.held)
    try:
        pending = store.finish(attempt, record)
    except (AttributeError, TypeError, ValueError, InProgress) as error:
        return _or_elsewhere(store, attempt, _recorded_otherwise(store, attempt, error))
    if pending is not None:
        return _or_elsewhere(store, attempt, _recorded(store, attempt, record, pending))
    return record


def _recorded(store: Records, attempt: Attempt, record: CompletionRecord, pending: Later) -> Steps:
    try:
        standing = yield pending
    except (AttributeError, TypeError, ValueError, InProgress) as error:
        return (yield from _recorded_otherwise(store, attempt, error))
    if standing is not None:
        # A record stood already, or another replica took the call for lost
        # meanwhile: what stands is the answer.
        return Answer(standing, replayed(standing))
    return Answer(record, record.outcome)


def _recorded_otherwise(store: Records, attempt: Attempt, error: Exception) -> Steps:
    if isinstance(error, InProgress):
        raise error
    # The record cannot be written as it is, and the handler did run: without a
    # record of some kind its duplicates would wait for ever.
    record = refusal_record(OutcomeUnknown(f"the answer cannot be recorded: {error}"))
    if (pending := store.finish(attempt, record)) is not None:
        yield pending
    return Answer(record, Outcome.UNKNOWN)


def resolve(store: Records, call: Call, policy: MethodPolicy) -> Generator[Any, Any, Answer]:
    """Find out what became of a call, without running it.

    A call that never arrived is recorded as not executed, so that it never will
    be (as unknown, if a crash can have taken its trace); the answer is final either
    way. Raises like ``admit``.
    """
    admitted = yield from admit(store, call, policy)
    if isinstance(admitted, Answer):
        return admitted
    record = refusal_record(
        OutcomeUnknown(f"{call.rpc_id} left no trace, which a crash may have taken")
        if store.may_have_run(admitted)
        else NotExecuted(f"{call.rpc_id} was resolved before it arrived")
    )
    try:
        if (pending := store.finish(admitted, record)) is not None:
            standing = yield pending
            if standing is not None:
                return Answer(standing, replayed(standing))
    except StoreUnavailable:
        if (pending := store.abandon(admitted)) is not None:
            yield pending
        raise
    return Answer(record, record.outcome)


def bounded(
    record: CompletionRecord, attempt: Attempt, held: Held | None = None
) -> CompletionRecord:
    """Return the record, or the one that says it was too large to keep or to send.

    ``held``, if any, is told of one that is large, or of a caller without a name.
    """
    response = record.response
    if response is None:
        return record
    call = attempt.call
    limit = call.max_response_bytes or DEFAULT_RECEIVE_LIMIT
    if attempt.policy.max_response_bytes < limit:
        limit = attempt.policy.max_response_bytes
    size = len(response)
    if size <= limit:
        if (size >= LARGE_BYTES or call.source) and held is not None:
            held.note(attempt, size)
        return record
    return refusal_record(
        ResponseTooLarge(f"the answer has {len(response)} bytes, more than {limit}")
    )


def refusal_record(error: RiflError) -> CompletionRecord:
    """Return the record of a call that ends with an error of ours."""
    return CompletionRecord(
        CODE_NUMBERS[error.code],
        cut(str(error), _MAX_TEXT_BYTES),
        outcome=error.outcome,
        reason=error.reason,
    )


def replayed(record: CompletionRecord) -> Outcome:
    """Return what an arrival is told that is answered from a record.

    A lost answer is none that could be replayed: every arrival is told that the call ran.
    """
    if record.outcome is not Outcome.EXECUTED or record.reason == AnswerLost.reason:
        return record.outcome
    return Outcome.REPLAYED
