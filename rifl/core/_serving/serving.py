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
from typing import Any, Final, NamedTuple, Protocol

from rifl.core._serving.client_entry import Attempt
from rifl.core._serving.client_table import match_payload
from rifl.core._serving.decision import Decision
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
# Smaller answers are bounded by the window well enough: 8 MiB of a client by default.
LARGE_BYTES = 16 << 10
# The most of an error's text, which travels twice: as the status, and in its details.
_MAX_TEXT_BYTES = 1000


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


# What a store says to a question: the result, a ``Later`` of it, or the error it raises.
Reply = Any
# In the place of a reply: the store was not asked yet.
NOT_ASKED: Final = object()
# What a handler ended with: the record of one that decided, or what says more.
Handled = CompletionRecord | HandlerResult
# The rest of a call's steps, for a shell to drive; they return its answer.
Steps = Generator[Any, Any, Answer]
# The rest of its admission, which may return the attempt to execute.
Admission = Generator[Any, Any, Answer | Attempt]


class Held(Protocol):
    """Counts what answers take that nobody acknowledged yet. Any thread."""

    # Whether anything is counted at all: of most servers nothing ever is.
    active: bool

    def admit(self, attempt: Attempt) -> None:
        """Raise ``WindowExceeded`` for a new call whose answer would have no room."""

    def note(self, attempt: Attempt, size: int) -> None:
        """Note that an answer of so many bytes is kept."""


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
    """Serve a call, from step 2 on, for a shell that is not cancelled.

    What ``rifl.core._serving.fast_path`` does of it without waiting is the same, and what it
    cannot do it hands over to the generators here.
    """
    admitted = yield from admit(store, call, policy)
    if isinstance(admitted, Answer):
        return admitted
    return (yield from execute(store, admitted))


def execute(store: Records, attempt: Attempt, started: Reply = NOT_ASKED) -> Steps:
    """Run a claimed call to its durable end (steps 6 and 7).

    ``started`` is what the store said to ``start`` where it was asked already. Never to be
    cancelled: the effect may be there. Raises ``StoreUnavailable``, or whatever else the
    store refuses with, if nothing ran, ``RecordPending`` if the handler ran but its record is
    not durable yet (the store goes on trying). If another replica took the call over
    meanwhile, what it answers is the answer.
    """
    try:
        # Step 6: the intent, or what else has to be durable before the handler runs.
        try:
            if store.held.active:
                _admit_answer(store, attempt)
            if started is NOT_ASKED:
                started = store.start(attempt)
            elif isinstance(started, Exception):
                raise started
            # Not by ``_waited``: it is what most calls on a disk wait for.
            if started is not None:
                yield started
        except Exception:
            # Left behind, the claim would never end.
            yield from _waited(store.abandon(attempt))
            raise
        result: Handled = yield attempt
        # Step 7.
        return (yield from conclude(store, attempt, result))
    except InProgress:
        return (yield from _elsewhere(store, attempt))


def conclude(store: Records, attempt: Attempt, handled: Handled) -> Steps:
    """End a call whose handler has ended (step 7): its record is durable, then it is the answer.

    Where nothing happened the call is new again instead. Raises as ``execute`` does, and
    ``InProgress`` where another replica took the call over.
    """
    result = handled if isinstance(handled, HandlerResult) else HandlerResult(handled)
    if attempt.policy.kind is Kind.ATOMIC:
        try:
            standing = yield from _committed(store, attempt)
        except NotRecorded as error:
            return (yield from _give_up(store, attempt, refusal_record(error), ran=False))
        if standing is not None:
            # It stands, whatever the handler did then.
            if standing.response is not None:
                store.held.note(attempt, len(standing.response))
            yield from _waited(store.adopt(attempt, standing))
            return Answer(standing, standing.outcome)
    record, ran = _judge(attempt, result)
    if ran is not None:
        return (yield from _give_up(store, attempt, record, ran=ran))
    return (yield from record_answer(store, attempt, bounded(record, attempt, store.held)))


def _judge(attempt: Attempt, result: HandlerResult) -> tuple[CompletionRecord, bool | None]:
    """Decide what becomes of a call whose handler committed no record of its own.

    Returns the record to write, and None; or, where the call is new again, what this arrival
    is told, and whether the run may have had an effect.
    """
    policy, record = attempt.policy, result.record
    if policy.kind is Kind.ATOMIC:
        undone = result.undone or attempt.undone
        if result.raised:
            # As after a crash it runs again: what it did without its record, if anything,
            # it did not do in a transaction of the call's.
            return record, not undone
        if record.code == 0:
            missing = NotRecorded(
                f"{attempt.call.method} is atomic, and its handler returned without a "
                "committed record: call rifl.record in its transaction"
            )
            # Where it is not undone, for good: it would do again whatever it did.
            return refusal_record(missing), False if undone else None
    elif result.raised and result.broken:
        if policy.kind is Kind.IDEMPOTENT:
            return record, True
        lost = OutcomeUnknown(f"{result.broken}; what the handler did by then is not known")
        return refusal_record(lost), None
    if record.code and record.code in policy.unrecorded and not result.raised:
        return record, False
    return record, None


def _committed(store: Records, attempt: Attempt) -> Generator[Any, Any, CompletionRecord | None]:
    """Return the record that an atomic handler's transaction committed."""
    try:
        standing: CompletionRecord | None = yield from _waited(store.committed(attempt))
        return standing
    except (InProgress, NotRecorded):
        raise
    except OutcomeUnknown as error:
        # It stands, and cannot be read now: settled, it is there for who asks later.
        yield from _waited(store.adopt(attempt, refusal_record(error)))
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
        yield from _waited(store.abandon(attempt))
        raise


def record_answer(
    store: Records, attempt: Attempt, record: CompletionRecord, finished: Reply = NOT_ASKED
) -> Steps:
    """Make the answer's record durable, then it is the answer.

    ``finished`` is what the store said to ``finish`` where it was asked already.
    """
    try:
        if finished is NOT_ASKED:
            finished = store.finish(attempt, record)
        elif isinstance(finished, Exception):
            raise finished
        # As above.
        standing = None if finished is None else (yield finished)
    except (AttributeError, TypeError, ValueError) as error:
        # The record cannot be written as it is, and the handler did run: without a
        # record of some kind its duplicates would wait for ever.
        record = refusal_record(OutcomeUnknown(f"the answer cannot be recorded: {error}"))
        yield from _waited(store.finish(attempt, record))
        return Answer(record, Outcome.UNKNOWN)
    if standing is not None:
        # A record stood already, or another replica took the call for lost
        # meanwhile: what stands is the answer.
        return Answer(standing, replayed(standing))
    return Answer(record, record.outcome)


def _give_up(store: Records, attempt: Attempt, record: CompletionRecord, *, ran: bool) -> Steps:
    """Make the call new again, and answer this arrival with what its handler said.

    ``ran``: this run may have had an effect, as far as the shell can tell. The caller is told
    "not executed" only if no earlier run of the call can have had one either.
    """
    ran = ran or attempt.ran or attempt.entry.may_have_run(attempt.call.identity)
    attempt.ran = ran
    # A run that an earlier process began and its crash ended: an idempotent method writes no
    # intent, so only the store can say whether there may have been one. An atomic method's
    # effect is in the transaction of its record, and without the record there is none.
    ran = ran or (attempt.policy.kind is Kind.IDEMPOTENT and store.may_have_run(attempt))
    yield from _waited(store.abandon(attempt))
    return Answer(record, Outcome.UNKNOWN if ran else Outcome.NOT_EXECUTED)


def or_elsewhere(store: Records, attempt: Attempt, steps: Steps) -> Steps:
    """Take the last steps of an attempt, as ``execute`` does."""
    try:
        return (yield from steps)
    except InProgress:
        return (yield from _elsewhere(store, attempt))


def _elsewhere(store: Records, attempt: Attempt) -> Steps:
    """Have another replica, which took the call over, answer it."""
    call, policy = attempt.call, attempt.policy
    if call.streamed:
        return (yield from _answered(store, call, policy))
    return (yield from serve(store, call, policy))


def _answered(store: Records, call: Call, policy: MethodPolicy) -> Steps:
    """Admit a call that this arrival cannot run: what it needs was read, or sent, already."""
    admitted = yield from admit(store, call, policy)
    if isinstance(admitted, Attempt):
        yield from _waited(store.abandon(admitted))
        raise InProgress(f"{call.rpc_id} has just become new again: send it once more")
    return admitted


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


def _waited(reply: Reply) -> Generator[Any, Any, Any]:
    """Return what the store replied: waited for where it is not there yet, raised if an error."""
    if isinstance(reply, Exception):
        raise reply
    return (yield reply) if isinstance(reply, Later) else reply


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
        standing = yield from _waited(store.finish(admitted, record))
    except StoreUnavailable:
        yield from _waited(store.abandon(admitted))
        raise
    if standing is not None:
        return Answer(standing, replayed(standing))
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
