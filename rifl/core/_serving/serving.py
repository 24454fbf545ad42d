"""One call on the server, step by step (DESIGN §4), for any store and any shell.

The rules are generators. They yield what must be waited for or done outside,
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
from typing import Any

from _rifl_ground.refusals import Outcome
from rifl.core._serving.admission import Steps, admit, admit_known
from rifl.core._serving.answer import (
    Answer,
    Handled,
    HandlerResult,
    bounded,
    refusal_record,
    replayed,
)
from rifl.core._serving.client_entry import Attempt
from rifl.core._serving.later import Later
from rifl.core._serving.namespace import is_namespace
from rifl.core._serving.policy import Kind, MethodPolicy
from rifl.core._serving.records import NOT_ASKED, Records, Reply, waited
from rifl.core._shared.call import Call
from rifl.core._shared.errors import (
    InProgress,
    LeaseExpired,
    NotExecuted,
    NotRecorded,
    OutcomeUnknown,
    RecordPending,
    RiflError,
    SessionClosed,
    StoreUnavailable,
    WindowExceeded,
)
from rifl.core._shared.record import CompletionRecord


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
        # Step 6: the intent, or what else must be durable before the handler runs.
        try:
            if store.held.active:
                yield from _admit_answer(store, attempt)
            if started is NOT_ASKED:
                started = store.start(attempt)
            elif isinstance(started, Exception):
                raise started
            # Not by ``waited``: it is what most calls on a disk wait for.
            if started is not None:
                yield started
        except Exception:
            # Left behind, the claim would never end.
            yield from waited(store.abandon(attempt))
            raise
        result: Handled = yield attempt
        # Step 7.
        return (yield from conclude(store, attempt, result))
    except InProgress:
        return (yield from _elsewhere(store, attempt))


def conclude(
    store: Records, attempt: Attempt, handled: Handled, committed: Reply = NOT_ASKED
) -> Steps:
    """End a call whose handler has ended (step 7): its record is durable, then it is the answer.

    Where nothing happened the call is new again instead. ``committed`` is what the store said to
    that where it was asked already. Raises as ``execute`` does, and ``InProgress`` where another
    replica took the call over.
    """
    result = handled if isinstance(handled, HandlerResult) else HandlerResult(handled)
    if attempt.policy.kind is Kind.ATOMIC:
        try:
            if attempt.unclaimed and attempt.committed is None:
                standing = yield from _asked(store, attempt, undone=_undone(attempt, result))
            else:
                standing = yield from _committed(store, attempt, committed)
        except NotRecorded as error:
            return (yield from _give_up(store, attempt, refusal_record(error), ran=False))
        if standing is not None:
            # It stands, whatever the handler did then.
            note_kept(store, attempt, standing)
            adopted = store.adopt(attempt, standing)
            return (yield from adopted_answer(attempt, standing, adopted))
    record, ran = _judge(attempt, result)
    if ran is not None and attempt.unclaimed:
        # Of an idempotent method: an earlier copy may have answered.
        standing = yield from _asked(store, attempt, undone=False)
        if standing is not None:
            yield from waited(store.adopt(attempt, standing))
            return Answer(standing, replayed(standing))
    if ran is not None:
        return (yield from _give_up(store, attempt, record, ran=ran))
    return (yield from record_answer(store, attempt, bounded(record, attempt, store.held)))


def note_kept(store: Records, attempt: Attempt, standing: CompletionRecord) -> None:
    """Note what is kept of an answer that a handler's transaction recorded."""
    if standing.response is not None:
        store.held.note(attempt, len(standing.response))


def adopted_answer(attempt: Attempt, standing: CompletionRecord, adopted: Reply) -> Steps:
    """Answer with what stands; ``adopted`` is what the store said to that."""
    yield from waited(adopted)
    mine = is_own(attempt, standing)
    return Answer(standing, standing.outcome if mine else replayed(standing))


def is_own(attempt: Attempt, standing: CompletionRecord) -> bool:
    """Whether what stands is this run's record, and no other copy's of the call."""
    return not attempt.unclaimed or attempt.recorded == standing


def _judge(attempt: Attempt, result: HandlerResult) -> tuple[CompletionRecord, bool | None]:
    """Decide what becomes of a call whose handler committed no record of its own.

    Returns the record to write, and None; or, where the call is new again, what this arrival
    is told, and whether the run may have had an effect.
    """
    policy, record = attempt.policy, result.record
    if attempt.doubt:
        # For good: it would do again whatever it committed without its record.
        return refusal_record(OutcomeUnknown(attempt.doubt)), None
    if policy.kind is Kind.ATOMIC:
        undone = _undone(attempt, result)
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


def _undone(attempt: Attempt, result: HandlerResult) -> bool:
    return result.undone or attempt.undone


def _asked(
    store: Records, attempt: Attempt, *, undone: bool
) -> Generator[Any, Any, CompletionRecord | None]:
    """Return the record that stands of a call that ran without a claim; None: it has one now.

    The run is not known to have committed: whatever ended it, an earlier copy of the call may
    have had the effect that it met.
    """
    # Not refused, a record that was put into a transaction may have been there, and be gone.
    safe = undone and attempt.recorded is None
    try:
        standing: CompletionRecord | None = yield from waited(store.committed(attempt))
        return standing
    except (LeaseExpired, SessionClosed) as error:
        if safe:
            raise
        # Not as such: to a first attempt that says that it never ran.
        raise OutcomeUnknown(f"{error}, while the call ran: its answer is not kept") from error
    except RiflError as error:
        if safe or error.outcome is not Outcome.NOT_EXECUTED or isinstance(error, InProgress):
            raise
        raise RecordPending(f"the call ran, and what it did is not known: {error}") from error


def _committed(
    store: Records, attempt: Attempt, committed: Reply
) -> Generator[Any, Any, CompletionRecord | None]:
    """Return the record that an atomic handler's transaction committed."""
    try:
        if committed is NOT_ASKED:
            committed = store.committed(attempt)
        standing: CompletionRecord | None = yield from waited(committed)
        return standing
    except (InProgress, NotRecorded):
        raise
    except OutcomeUnknown as error:
        # It stands, and cannot be read now: settled, it is there for who asks later.
        yield from waited(store.adopt(attempt, refusal_record(error)))
        raise
    except (RecordPending, StoreUnavailable) as error:
        # Nothing happened, or that is unknown now. A later attempt that runs meets the
        # record, if there is one, in its own transaction, and that stands.
        attempt.ran = attempt.ran or isinstance(error, RecordPending)
        store.abandon(attempt)
        raise
    except Exception:
        # A defect, rifl's or a driver's; if the call stayed running, its waiters would hang.
        attempt.ran = True
        yield from waited(store.abandon(attempt))
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
        standing = (yield finished) if isinstance(finished, Later) else finished
    except (AttributeError, TypeError, ValueError) as error:
        # This record cannot be written, and the handler did run: without a record of some
        # kind its duplicates would hang.
        record = refusal_record(OutcomeUnknown(f"the answer cannot be recorded: {error}"))
        yield from waited(store.finish(attempt, record))
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
    yield from waited(store.abandon(attempt))
    # One that runs beside it may commit yet: nothing was written that would keep it from that.
    unknown = ran or attempt.beside
    return Answer(record, Outcome.UNKNOWN if unknown else Outcome.NOT_EXECUTED)


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
        return (yield from admit_known(store, call, policy))
    return (yield from serve(store, call, policy))


def _admit_answer(store: Records, attempt: Attempt) -> Generator[Any, Any, None]:
    """Refuse a new call whose answer would have no room; raises ``WindowExceeded``."""
    ran = store.may_have_run(attempt)
    # What may have run before needs its answer's room already. Of a namespace that may be
    # every key, and anyone's.
    if ran and not attempt.unclaimed and not is_namespace(attempt.call.client_id):
        return
    yield from waited(store.held.ask(attempt))
    try:
        store.held.admit(attempt)
    except WindowExceeded as refusal:
        if ran:
            refusal.may_have_run()
        raise


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
        OutcomeUnknown(f"{call.rpc_id} left no record, or a crash lost it")
        if store.may_have_run(admitted)
        else NotExecuted(f"{call.rpc_id} was resolved before it arrived")
    )
    try:
        standing = yield from waited(store.finish(admitted, record))
    except StoreUnavailable:
        yield from waited(store.abandon(admitted))
        raise
    if standing is not None:
        return Answer(standing, replayed(standing))
    return Answer(record, record.outcome)
