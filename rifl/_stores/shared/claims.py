"""Claims of calls over a shared store, and what follows from its decision (DESIGN §4)."""

from __future__ import annotations

from collections.abc import Callable

from _rifl_ground.log import get_logger
from _rifl_ground.refusals import Outcome
from rifl._stores.codec import RecordCodec
from rifl._stores.shared.attempts import Attempts, SharedAttempt, may_run_again, of_shared
from rifl._stores.shared.backend import BackendError, NotCarriedOut
from rifl._stores.shared.heartbeat import Heartbeat
from rifl._stores.shared.refusing import Refusing
from rifl._stores.shared.requests import Claim, Claimed, Found, TakeBack
from rifl._stores.shared.settlement import AttemptSettlement, check_left
from rifl._stores.shared.steps import Rule
from rifl.core._serving.answer import refusal_record
from rifl.core._serving.bounds import KeyBounds
from rifl.core._serving.client_entry import Attempt
from rifl.core._serving.client_table import match_payload, match_seed
from rifl.core._serving.decision import Decision
from rifl.core._serving.policy import Kind, MethodPolicy
from rifl.core._serving.unclaimed import BY_RECORD, Declared, may_run_beside
from rifl.core._serving.verdict import Verdict
from rifl.core._shared.call import Call
from rifl.core._shared.errors import (
    BadHeader,
    Draining,
    InProgress,
    LeaseExpired,
    OutcomeUnknown,
    PayloadMismatch,
    RecordPending,
    RiflError,
    SessionClosed,
    StaleRpc,
    StoreUnavailable,
    WindowExceeded,
)
from rifl.core._shared.identity import DEFAULT_WINDOW

_log = get_logger("rifl.store")
OWNER_BYTES = 8
# The owner of what ran and is to run again: it never beats, and so is dead.
_NOBODY = "0" * 2 * OWNER_BYTES
# A claim whose replies came late so often is given up.
_MOST_DOUBTS = 3
# What becomes of a plain call that a dead replica ran. Nothing of an answer is in it: never
# sealed.
LOST = RecordCodec().to_bytes(
    refusal_record(
        OutcomeUnknown("the replica that ran the call is gone; what it did is not known")
    ),
    None,
)
# What an arrival is refused with that the store does not take.
REFUSALS: dict[Found, Callable[[Call], RiflError]] = {
    Found.MISMATCH: lambda call: PayloadMismatch(
        f"{call.rpc_id} is the identity of a call with another payload"
    ),
    Found.UNKNOWN_CLIENT: lambda call: LeaseExpired(
        f"client id {call.client_id} is unknown or expired"
    ),
    Found.CLOSED: lambda call: SessionClosed(
        "the session is closed, its retention is over, or it takes another writer's calls"
    ),
    Found.STALE: lambda call: StaleRpc(f"{call.rpc_id} was acknowledged"),
    Found.REFUSING: lambda call: Draining("the server was about to stop"),
    Found.LATE: lambda call: StoreUnavailable("the claim took too long to reach the store"),
    Found.NEEDS_KEY: lambda call: BadHeader("a named session takes keyed calls only"),
    Found.WINDOW: lambda call: WindowExceeded("too many calls of the client are unacknowledged"),
}


_NEW, _MISMATCH, _FOUND_NEW = Verdict.NEW, Found.MISMATCH, Found.NEW


class Claims:
    """What this replica asks of the store for calls: to run them, or to let others.

    The decision is the store's own, in one step; here is what follows from it. A call whose
    owner is dead is taken over only by a request conditional on the attempt token that was
    seen. A claim whose reply was lost is taken back until it can have no effect.

    ``owner``: this incarnation. ``doubtful_after_s``: a claim whose reply took so long is
    asked once more: meanwhile others may have taken this replica for dead. ``clock``: monotonic
    seconds. ``observe`` hears when a claim that was granted began. ``unclaimed``: see
    ``SharedStore``.
    """

    def __init__(
        self,
        owner: str,
        attempts: Attempts,
        heartbeat: Heartbeat,
        refusing: Refusing,
        settlement: AttemptSettlement,
        codec: RecordCodec,
        *,
        doubtful_after_s: float,
        clock: Callable[[], float],
        observe: Callable[[float], None],
        unclaimed: tuple[Declared, ...],
    ) -> None:
        self.window = DEFAULT_WINDOW
        self.key_bounds = KeyBounds()
        self._owner = owner
        self._attempts = attempts
        self._heartbeat = heartbeat
        self._refusing = refusing
        self._settlement = settlement
        self._codec = codec
        self._doubtful_after_s = doubtful_after_s
        self._clock = clock
        self._observe = observe
        self._unclaimed = unclaimed

    def wanted(self, attempt: SharedAttempt, *, refusing: bool) -> Claim:
        """Return the claim of an attempt of this replica's."""
        bounds, call, policy = self.key_bounds, attempt.call, attempt.policy
        return Claim(
            call,
            policy.kind,
            attempt.token,
            self._owner,
            refusing,
            self.window,
            bounds.max_keys,
            bounds.max_bytes,
            retention_s=None if call.key is None else bounds.retained_s(policy.retention_s),
        )

    def claim(self, call: Call, policy: MethodPolicy) -> Rule:
        """Rule: decide about a call, and claim it if it is new; see ``BatchRecords``."""
        rule = self._claim(call, policy)
        never = policy.claim == "never" and BY_RECORD in self._unclaimed
        return _doubted(rule) if never else rule

    def _claim(self, call: Call, policy: MethodPolicy) -> Rule:
        attempt = self._attempts.arrive(call, policy)
        if attempt.call is not call:
            return joined(call, attempt)
        call.asked = True
        declared = policy.kind, policy.claim
        attempt.beside = declared in self._unclaimed and may_run_beside(call, policy)
        wanted = self.wanted(attempt, refusing=self._refusing.refuses)
        asked, claimed, doubts = False, False, 0
        request = wanted
        try:
            if not self._refusing.serving and (absence := self._refusing.absence):
                # At once, so that the client can go elsewhere: only the heartbeat tries.
                raise self._not_claimed(attempt, f"the store cannot be reached: {absence}")
            if self._heartbeat.crowded():
                raise self._not_claimed(attempt, "the store has not answered too many claims")
            while True:
                gaps = self._attempts.gaps
                request = request._replace(until_s=self._heartbeat.until_s())
                asked, began = True, self._clock()
                reply = yield from told(request)
                asked = False
                if reply.found is _FOUND_NEW:
                    self._observe(began)
                    if self._clock() - began < self._doubtful_after_s:
                        claimed = attempt.claimed = True
                        return Decision(_NEW, attempt)
                    # Suspended meanwhile, this replica may be taken for dead, and the call
                    # have been answered elsewhere. The same token is new again if not.
                    asked = True
                    doubts += 1
                    if doubts == _MOST_DOUBTS:
                        reason = "the store takes too long to answer claims"
                        raise self._not_claimed(attempt, reason)
                    request = wanted
                    continue
                if reply.found is Found.COMPLETED:
                    record = self._codec.from_bytes(reply.record, call)
                    return Decision(Verdict.COMPLETED, None, record, reply.verified)
                if reply.found is Found.STALE:
                    return Decision(Verdict.STALE)
                if reply.found is Found.LATE:
                    # It may have been sent twice, and have been in time the first time.
                    asked = True
                    raise self._not_claimed(attempt, "the claim took too long to reach the store")
                if reply.found is Found.REFUSING:
                    raise self._refusing.refusal() or Draining("the server was about to stop")
                if reply.found is not Found.RUNNING:
                    raise REFUSALS[reply.found](call)
                mine = self._attempts.get(reply.token)
                if mine is not None:
                    match_seed(call, mine.call.seed)
                    mine.awaited = True
                    return Decision(Verdict.IN_PROGRESS, mine)
                if request.take_over == reply.token:
                    raise InProgress(f"{call.rpc_id} is lost, and cannot be taken over just yet")
                if reply.owner == self._owner:
                    # Invariant 1: it never ran, so nothing is lost.
                    wanted = self._runs_again(attempt, wanted, may_run_again(reply.token))
                    request = wanted._replace(take_over=reply.token)
                    continue
                if self._heartbeat.is_dead(reply.owner):
                    # As of the last look: it may have come, or have come back, since then.
                    yield from self._heartbeat.look()
                if self._heartbeat.is_dead(reply.owner):
                    lost = LOST if reply.kind is Kind.PLAIN else b""
                    _log.warning(
                        "call_taken_over",
                        rpc_id=str(call.rpc_id),
                        method=call.method,
                        owner=reply.owner,
                    )
                    ran = reply.kind is Kind.IDEMPOTENT or may_run_again(reply.token)
                    wanted = self._runs_again(attempt, wanted, ran)
                    request = wanted._replace(take_over=reply.token, lost=lost)
                    continue
                stand_in = self._attempts.stand_in(call, policy, reply, gaps)
                return Decision(Verdict.IN_PROGRESS, stand_in)
        except NotCarriedOut as error:
            # An earlier claim that arrived late must be taken back all the same.
            asked = doubts > 0
            raise self._not_claimed(attempt, str(error)) from error
        except BackendError as error:
            reason = f"the store cannot be reached: {error}"
            raise self._not_claimed(attempt, reason) from error
        finally:
            if not claimed:
                if asked:
                    self.take_back(attempt, request.until_s or 0.0)
                else:
                    self._settlement.settle(attempt)

    def _runs_again(self, attempt: SharedAttempt, wanted: Claim, ran: bool) -> Claim:
        """Return the claim of a call that is taken over, which may have run before."""
        if ran:
            self._attempts.runs_again(attempt)
        return wanted._replace(token=attempt.token)

    def _not_claimed(self, attempt: SharedAttempt, reason: str) -> RiflError:
        """Return what an arrival is refused with that the store decided nothing about."""
        if self._attempts.give_up(attempt):
            # Another arrival of the call runs it, ran it just now, or may yet.
            told = f"another arrival of {attempt.call.rpc_id} was not refused"
            error = InProgress(f"{told}: {reason}")
            error.told = told
            return error
        return StoreUnavailable(reason)

    def take_back(self, attempt: SharedAttempt, until_s: float) -> None:
        """Undo a claim that was carried out, though its reply is lost, or is so yet."""
        if attempt.ran:
            left = self.left(attempt)
            self._heartbeat.insist(self.forsake(attempt, left))
            self._heartbeat.take_back(left, until_s)
        else:
            self._heartbeat.insist(self._settlement.abandon(attempt))
            self._heartbeat.take_back(TakeBack(attempt.call, attempt.token), until_s)

    def left(self, attempt: Attempt) -> Claim:
        """Return what leaves an attempt as a replica that is gone leaves it."""
        call, bounds = attempt.call, self.key_bounds
        return Claim(
            call,
            Kind.IDEMPOTENT,
            self._attempts.new_token(),
            _NOBODY,
            False,
            self.window,
            bounds.max_keys,
            bounds.max_bytes,
            take_over=of_shared(attempt).token,
            retention_s=(
                None if call.key is None else bounds.retained_s(attempt.policy.retention_s)
            ),
        )

    def forsake(self, attempt: Attempt, request: Claim) -> Rule:
        """Rule: carry out what ``left`` returned, and settle."""
        try:
            reply: Claimed = yield request
            check_left(reply, request)
        except BackendError as error:
            self._attempts.owe(of_shared(attempt))
            self._heartbeat.insist(self._settlement.until_settled(attempt, request))
            raise RecordPending(f"the call is not free yet: {error}") from error
        if reply.found in (Found.UNKNOWN_CLIENT, Found.CLOSED):
            # Its row would stay.
            yield from self._settlement.abandon(attempt)
            return
        self._settlement.settle(attempt)
        if reply.found in (Found.COMPLETED, Found.RUNNING):
            raise InProgress(f"{attempt.call.rpc_id} was taken over by another replica")


def told(request: Claim) -> Rule:
    """Rule: send a claim, and again under the call's other fingerprints if it does not match."""
    reply: Claimed = yield request
    while reply.found is _MISMATCH and request.call.take_other():
        reply = yield request
    return reply


def joined(call: Call, attempt: SharedAttempt) -> Decision:
    """Decide about an arrival of a call that runs here without a claim: the store knows nothing."""
    match_seed(call, attempt.call.seed)
    match_payload(call, attempt.call.fingerprint)
    # When that has ended, the store knows.
    call.asked = attempt.awaited = True
    return Decision(Verdict.IN_PROGRESS, attempt)


def _doubted(rule: Rule) -> Rule:
    """Rule: what a call is refused with that may run, or have run, without a claim."""
    try:
        return (yield from rule)
    except (LeaseExpired, SessionClosed) as error:
        # Else a first attempt would be sent anew, under another id.
        raise OutcomeUnknown(f"{error}; a copy of the call may have run") from error
    except RiflError as error:
        if error.outcome is Outcome.NOT_EXECUTED:
            error.may_have_run()
        raise
