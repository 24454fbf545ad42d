"""A store that several server replicas share: the rules on this replica's side."""

from __future__ import annotations

import secrets as randomness
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any

from lease_server._errors import StorageUnavailable
from lease_server._storage import SharedLeaseStorage
from rifl._log import get_logger
from rifl._stores.codec import RecordCodec
from rifl._stores.errors import UnsupportedStore, WrongDatabase
from rifl._stores.forks import belongs_here
from rifl._stores.held_answers import HeldAnswers
from rifl._stores.shared.attempts import Attempts, SharedAttempt, loop_ends, may_run_again
from rifl._stores.shared.backend import (
    Backend,
    BackendError,
    NotCarriedOut,
    Undurable,
    WentBackwards,
)
from rifl._stores.shared.heartbeat import Heartbeat
from rifl._stores.shared.presence import Presence
from rifl._stores.shared.refusing import Refusing
from rifl._stores.shared.requests import (
    Abandon,
    Claim,
    Claimed,
    Ending,
    Finish,
    Finished,
    Found,
    Look,
    TakeBack,
)
from rifl._stores.shared.steps import AllSteps, Steps
from rifl._stores.transactions import SharedBlocks, Transactions
from rifl.core._serving.bounds import Bounds, KeyBounds
from rifl.core._serving.client_entry import Attempt
from rifl.core._serving.client_table import match_seed
from rifl.core._serving.decision import Decision
from rifl.core._serving.later import Later, Replies
from rifl.core._serving.leases import Leases
from rifl.core._serving.policy import Kind, MethodPolicies, MethodPolicy
from rifl.core._serving.serving import refusal_record
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
from rifl.core._shared.invariant import invariant
from rifl.core._shared.observer import Observer
from rifl.core._shared.outcome import Outcome
from rifl.core._shared.record import CompletionRecord

_log = get_logger("rifl.store")
_Rule = Generator[Any, Any, Any]
_OWNER_BYTES = 8
# The owner of what ran and is to run again: it never beats, and so is dead.
_NOBODY = "0" * 2 * _OWNER_BYTES
# Bounds how long a sweep takes.
_KEYS_PER_SWEEP = 10_000
# How old what observers are told of the whole store may be.
_COUNT_EVERY_S = 2.0
# After so long without a call a client's answers are not counted here any more: its lease
# may have ended, which the store does not tell.
_IDLE_S = 600.0
# A claim whose replies came late so often is given up.
_MOST_DOUBTS = 3
# Nothing of an answer is in it: never sealed.
_LOST = RecordCodec().to_bytes(
    refusal_record(
        OutcomeUnknown("the replica that ran the call is gone; what it did is not known")
    )
)
_REFUSALS: dict[Found, Callable[[Call], RiflError]] = {
    Found.MISMATCH: lambda call: PayloadMismatch(
        f"{call.rpc_id} is the identity of a call with another payload"
    ),
    Found.UNKNOWN_CLIENT: lambda call: LeaseExpired(
        f"client id {call.client_id} is unknown or expired"
    ),
    Found.CLOSED: lambda call: SessionClosed("the session is closed, or its retention is over"),
    Found.NEEDS_KEY: lambda call: BadHeader("a named session takes keyed calls only"),
    Found.WINDOW: lambda call: WindowExceeded("too many calls of the client are unacknowledged"),
}


class SharedStore:
    """``Store`` over a ``Backend``: attempts of this replica, and waiting for others'.

    The decision is the store's own, in one step; here is what follows from it. A
    replica has an incarnation (``owner``) that is never used again.

    Invariants:

    1. Every attempt that the store says this incarnation runs is in ``_attempts``,
       from before it was claimed until the store has settled it, or for good where a
       cancelled handler may go on; another such entry was claimed by a request whose
       reply was lost, and never ran.
    2. A call whose owner is dead is taken over only by a request conditional on
       the attempt token that was seen.
    3. What a handler did is recorded, or retried in the background, until the
       store says what stands.

    ``beat_s``: how often this replica says that it lives. ``dead_after_s``: how
    long another's beats stand still before its calls are taken over. ``codec``: how
    records look in the store; the same on every replica. ``late_after_s``: how long a
    claim is good for; one that arrives later does nothing. ``clock``: monotonic seconds;
    ``token_hex``: random digits.
    """

    transactions: Transactions
    shared_blocks: SharedBlocks | None = None

    def __init__(
        self,
        backend: Backend,
        leases: SharedLeaseStorage,
        *,
        beat_s: float = 0.5,
        dead_after_s: float = 5.0,
        codec: RecordCodec | None = None,
        late_after_s: float = 15.0,
        clock: Callable[[], float] = time.monotonic,
        token_hex: Callable[[int], str] = randomness.token_hex,
    ) -> None:
        if not 0 < 3 * beat_s <= dead_after_s:
            raise ValueError("dead_after_s must be at least three times beat_s")
        self.observer: Observer | None = None
        self.on_refusal: Callable[[RiflError | None], None] | None = None
        self.cancelled = 0
        self.leases = leases
        self.owner = token_hex(_OWNER_BYTES)
        self._backend = backend
        self._codec = codec or RecordCodec()
        self._key_bounds = KeyBounds()
        self._window = DEFAULT_WINDOW
        self._attempts = Attempts(self.owner, token_hex)
        self._refusing = Refusing(self._tell_refusal)
        self._clock = clock
        # Others take this replica for dead after so long at the earliest, and by clocks
        # that drift.
        self._doubtful_after_s = dead_after_s / 2
        self._count_at = clock()
        self._heartbeat = Heartbeat(
            self.owner,
            backend,
            beat_s,
            dead_after_s,
            self._look_after,
            clock,
            late_after_s=late_after_s,
            told=self._reached,
        )
        self.held = HeldAnswers(clock=clock, idle_s=_IDLE_S)
        self._presence: Presence | None = None
        belongs_here(self, "store")

    def bind(
        self,
        leases: Leases,
        policies: MethodPolicies,
        *,
        clock: Callable[[], float],
        bounds: Bounds,
        key_bounds: KeyBounds | None = None,
    ) -> None:
        """Say that this replica lives, and be ready for calls.

        Leases are the store's own here, and liveness is judged by this machine's
        clock: ``leases`` and ``clock`` are not used. Raises ``UnsupportedStore`` if an
        atomic method names a database that is not this store's.
        """
        self._window = bounds.window
        for policy in policies:
            if policy.database is not None and not self._is_own(policy.database):
                raise UnsupportedStore(
                    "an atomic method names another database than the store's: the records of "
                    "its calls could not be found there by other replicas"
                )
        if key_bounds is not None:
            self._key_bounds = key_bounds
        self.held.bound(bounds, self._key_bounds)
        self._begin()

    def _begin(self) -> None:
        self._presence = Presence(self.owner)
        self._backend.listen(self.owner, self._attempts.wake, self._attempts.wake_all)
        self._heartbeat.start()

    # -- Records -----------------------------------------------------------------------

    def claim(self, call: Call, policy: MethodPolicy) -> Later:
        """Decide about a call and claim it if it is new: one request, as a rule."""
        return self._steps(self._claim(call, policy))

    def claim_all(self, calls: Sequence[Call], policy: MethodPolicy) -> Later:
        """Decide about many calls and claim those that are new; see ``BatchRecords``."""
        return AllSteps(self._backend, [self._claim(call, policy) for call in calls])

    def start_all(self, attempts: Sequence[Attempt]) -> Replies:
        """Nothing to do: the claims are the intents."""
        return [None] * len(attempts)

    def finish_all(self, attempts: Sequence[Attempt], records: Sequence[CompletionRecord]) -> Later:
        """Make many records durable, then settle; see ``BatchRecords``."""
        pairs = zip(attempts, records, strict=True)
        return AllSteps(self._backend, [self._finish(*pair) for pair in pairs])

    def start(self, attempt: Attempt) -> Later | None:
        """Nothing to do: the claim is the intent."""
        return None

    def committed(self, attempt: Attempt) -> CompletionRecord | Later | None:
        """Return what the handler's own transaction left: read, if nobody saw it commit."""
        if attempt.committed is not None:
            return attempt.committed
        if attempt.recorded is None:
            return None
        return self._steps(self._committed(attempt))

    def finish(self, attempt: Attempt, record: CompletionRecord) -> Later:
        """Make the record durable, then settle; its result is the record that stands."""
        return self._steps(self._finish(attempt, record))

    def may_have_run(self, attempt: Attempt) -> bool:
        """Whether a replica that is gone, or a run that was given up, may have had its effect.

        Every claim is in the store, so what was never claimed did not run; and an atomic
        handler whose attempt was taken over cannot commit.
        """
        return attempt.ran

    def adopt(self, attempt: Attempt, record: CompletionRecord) -> Later | None:
        """Settle with a record that is durable already."""
        self._settle(attempt)
        return None

    def abandon(self, attempt: Attempt) -> Later | None:
        """Make the call new again, and wake its waiters on every replica.

        One that may have run is left as a replica that is gone leaves it: who asks next
        takes it over. One that an event loop's end cancelled stays this replica's until it is
        gone: then others take it over.
        """
        mine = _shared(attempt)
        if mine.left and (self._refusing.draining or loop_ends()):
            self._attempts.leave_behind(mine)
            return None
        if attempt.ran:
            return self._steps(self._forsake(attempt, self._left(attempt)))
        return self._steps(self._abandon(attempt))

    def was_cancelled(self, attempt: Attempt) -> None:
        """Note that a handler's coroutine was cancelled: a thread that it began may go on."""
        self.cancelled += 1
        _shared(attempt).left = True

    # -- Store ---------------------------------------------------------------------------

    def fetch(self, call: Call) -> CompletionRecord | None:
        """Not needed: a decision comes with its record."""
        return None

    def token(self, client_id: int) -> bytes:
        """None is kept: checking a token costs less than looking after a copy."""
        return b""

    def wait(self, attempt: Attempt, wake: Callable[[], None]) -> bool:
        """Have ``wake`` called when the attempt ends; False if it has."""
        return self._attempts.wait(attempt, wake)

    def leave(self, attempt: Attempt, wake: Callable[[], None]) -> None:
        """No longer wait."""
        self._attempts.leave(attempt, wake)

    def drop(self, client_ids: Iterable[int]) -> None:
        """Nothing to do: the leases' storage drops clients where their rows are."""

    def refuse_new(self, draining: bool) -> None:
        """Begin or stop refusing new calls as draining."""
        self._refusing.drain(draining)

    def running(self) -> int:
        """How many attempts of this replica are not settled."""
        return len(self._attempts)

    def handling(self) -> int:
        """How many attempts of this replica have a handler that has not ended."""
        return self._attempts.handling()

    def expire_keys(self) -> None:
        """Let go of keyed calls whose retention is over, by the store's clock."""
        try:
            self._backend.expire_keys(_LOST, _KEYS_PER_SWEEP)
        except BackendError as error:
            # Late is safe, and what is unreachable is said by the pulse.
            _log.debug("keys_not_expired", error=str(error))

    def statistics(self) -> tuple[int, int, int]:
        """Clients of the whole store, as last counted; calls only as this replica knows them."""
        running = len(self._attempts)
        return self.leases.held, running, running

    def settled(self, timeout_s: float) -> bool:
        """Wait until no attempt runs; False if that took longer."""
        return self._attempts.settled(timeout_s)

    def close(self) -> None:
        """Say that this replica is gone, and let the connections go."""
        self._heartbeat.stop()
        self._heartbeat.leave()
        if self._presence is not None:
            self._presence.close()
        self._backend.close()

    # -- the rules -----------------------------------------------------------------------

    def _claim(self, call: Call, policy: MethodPolicy) -> _Rule:
        attempt = self._attempts.new(call, policy)
        bounds = self._key_bounds
        wanted = Claim(
            call,
            policy.kind,
            attempt.token,
            self.owner,
            self._refusing.refuses,
            self._window,
            bounds.max_keys,
            bounds.max_bytes,
            retention_s=None if call.key is None else bounds.retained_s(policy.retention_s),
        )
        asked, claimed, doubts = False, False, 0
        request = wanted
        try:
            if self._heartbeat.crowded():
                raise self._not_claimed(attempt, "the store has not answered too many claims")
            while True:
                gaps = self._attempts.gaps
                request = request._replace(until_s=self._heartbeat.until_s())
                asked, began = True, self._clock()
                reply: Claimed = yield request
                asked = False
                if reply.found is Found.NEW:
                    self._observe(began)
                    if self._clock() - began < self._doubtful_after_s:
                        claimed = attempt.claimed = True
                        return Decision(Verdict.NEW, attempt)
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
                    raise _REFUSALS[reply.found](call)
                mine = self._attempts.get(reply.token)
                if mine is not None:
                    match_seed(call, mine.call.seed)
                    mine.awaited = True
                    return Decision(Verdict.IN_PROGRESS, mine)
                if request.take_over == reply.token:
                    raise InProgress(f"{call.rpc_id} is lost, and cannot be taken over just yet")
                if reply.owner == self.owner:
                    # Invariant 1: it never ran, so nothing is lost.
                    wanted = self._runs_again(attempt, wanted, may_run_again(reply.token))
                    request = wanted._replace(take_over=reply.token)
                    continue
                if not self._heartbeat.knows(reply.owner):
                    yield from self._heartbeat.look()
                if self._heartbeat.is_dead(reply.owner):
                    lost = _LOST if reply.kind is Kind.PLAIN else b""
                    _log.warning(
                        "taken_over", rpc_id=str(call.rpc_id), method=call.method, owner=reply.owner
                    )
                    ran = reply.kind is Kind.IDEMPOTENT or may_run_again(reply.token)
                    wanted = self._runs_again(attempt, wanted, ran)
                    request = wanted._replace(take_over=reply.token, lost=lost)
                    continue
                stand_in = self._attempts.stand_in(call, policy, reply, gaps)
                return Decision(Verdict.IN_PROGRESS, stand_in)
        except NotCarriedOut as error:
            # What was claimed before, and came late, is to be taken back all the same.
            asked = doubts > 0
            raise self._not_claimed(attempt, str(error)) from error
        except BackendError as error:
            reason = f"the store cannot be reached: {error}"
            raise self._not_claimed(attempt, reason) from error
        finally:
            if not claimed:
                if asked:
                    self._take_back(attempt, request.until_s or 0.0)
                else:
                    self._settle(attempt)

    def _take_back(self, attempt: SharedAttempt, until_s: float) -> None:
        """Undo a claim that was carried out, though its reply is lost, or is so yet."""
        if attempt.ran:
            left = self._left(attempt)
            self._heartbeat.insist(self._forsake(attempt, left))
            self._heartbeat.take_back(left, until_s)
        else:
            self._heartbeat.insist(self._abandon(attempt))
            self._heartbeat.take_back(TakeBack(attempt.call, attempt.token), until_s)

    def _runs_again(self, attempt: SharedAttempt, wanted: Claim, ran: bool) -> Claim:
        """Return the claim of a call that is taken over, which may have run before."""
        if ran:
            self._attempts.runs_again(attempt)
        return wanted._replace(token=attempt.token)

    def _not_claimed(self, attempt: SharedAttempt, reason: str) -> RiflError:
        """Return what an arrival is refused with that the store decided nothing about."""
        if self._attempts.give_up(attempt):
            # By another arrival it runs, ran just now, or may: this is not *not executed*.
            return InProgress(f"another arrival of {attempt.call.rpc_id} was not refused: {reason}")
        return StoreUnavailable(reason)

    def _finish(self, attempt: Attempt, record: CompletionRecord) -> _Rule:
        token = _shared(attempt).token
        kept, stored = self._codec.of_a_run(record, attempt.call)
        unknown = kept.outcome is Outcome.UNKNOWN
        request = Finish(attempt.call, token, stored, unknown, _shared(attempt).left)
        began = self._clock()
        try:
            self._check_durable()
            reply: Finished = yield request
            self._observe(began)
        except BackendError as error:
            self._observe(began, error)
            self._attempts.owe(_shared(attempt))
            self._heartbeat.insist(self._until_settled(attempt, request))
            raise RecordPending(
                f"the call ran, but its record is not durable yet: {error}"
            ) from error
        self._settle(attempt)
        return self._standing(attempt, reply) or (None if kept is record else kept)

    def _committed(self, attempt: Attempt) -> _Rule:
        try:
            reply: Finished = yield Look(attempt.call, _shared(attempt).token)
        except BackendError as error:
            # Committed or not, the store knows: if not, the call is new again.
            self._attempts.owe(_shared(attempt))
            self._heartbeat.insist(self._abandon(attempt))
            raise RecordPending(f"whether the call committed is not known yet: {error}") from error
        if reply.ending is Ending.FENCED:
            self._settle(attempt)
            raise InProgress(f"{attempt.call.rpc_id} was taken over, and runs elsewhere")
        if reply.ending is not Ending.STANDS:
            return None
        try:
            return self._codec.from_bytes(reply.record, attempt.call)
        except OutcomeUnknown:
            # It stands, though nobody here can read it.
            self._settle(attempt)
            raise

    def _abandon(self, attempt: Attempt) -> _Rule:
        request = Abandon(attempt.call, _shared(attempt).token)
        try:
            reply: Finished = yield request
        except BackendError as error:
            self._attempts.owe(_shared(attempt))
            self._heartbeat.insist(self._until_settled(attempt, request))
            raise RecordPending(f"the call is not free yet: {error}") from error
        self._settle(attempt)
        if reply.ending in (Ending.FENCED, Ending.STANDS):
            # Nothing of this attempt stands, but something of another's may.
            raise InProgress(f"{attempt.call.rpc_id} was taken over by another replica")

    def _left(self, attempt: Attempt) -> Claim:
        """Return what leaves an attempt as a replica that is gone leaves it."""
        call, bounds = attempt.call, self._key_bounds
        return Claim(
            call,
            Kind.IDEMPOTENT,
            self._attempts.new_token(),
            _NOBODY,
            False,
            self._window,
            bounds.max_keys,
            bounds.max_bytes,
            take_over=_shared(attempt).token,
            retention_s=(
                None if call.key is None else bounds.retained_s(attempt.policy.retention_s)
            ),
        )

    def _forsake(self, attempt: Attempt, request: Claim) -> _Rule:
        try:
            reply: Claimed = yield request
        except BackendError as error:
            self._attempts.owe(_shared(attempt))
            self._heartbeat.insist(self._until_settled(attempt, request))
            raise RecordPending(f"the call is not free yet: {error}") from error
        if reply.found in (Found.UNKNOWN_CLIENT, Found.CLOSED):
            # Its row would stay.
            yield from self._abandon(attempt)
            return
        self._settle(attempt)
        if reply.found in (Found.COMPLETED, Found.RUNNING):
            raise InProgress(f"{attempt.call.rpc_id} was taken over by another replica")

    def _until_settled(self, attempt: Attempt, request: Finish | Abandon | Claim) -> _Rule:
        """Settle in the background, however often that takes."""
        try:
            if isinstance(request, Finish):
                self._check_durable()
            yield request
        except BackendError:
            self._heartbeat.insist(self._until_settled(attempt, request))
            raise
        self._settle(attempt)

    def _standing(self, attempt: Attempt, reply: Finished) -> CompletionRecord | None:
        call = attempt.call
        if reply.ending is Ending.STANDS:
            _log.warning("late_finisher", rpc_id=str(call.rpc_id), method=call.method)
            return self._codec.from_bytes(reply.record, call)
        if reply.ending is Ending.FENCED:
            _log.warning("late_finisher", rpc_id=str(call.rpc_id), method=call.method)
            raise InProgress(f"{call.rpc_id} was taken over by another replica and runs there")
        if reply.ending is Ending.GONE:
            # Not LEASE_EXPIRED: to a first attempt that says that it never ran.
            raise OutcomeUnknown(
                f"client id {call.client_id} expired while the call ran: its answer is not kept"
            )
        if reply.ending is Ending.ACKNOWLEDGED:
            # Nobody waits for this answer; and if the call was taken over meanwhile, its
            # client was given another one.
            raise StaleRpc(f"{call.rpc_id} was acknowledged while it ran")
        return None

    # --------------------------------------------------------------------------------------

    def _tell_refusal(self, refusal: RiflError | None) -> None:
        if self.on_refusal is not None:
            self.on_refusal(refusal)

    def _reached(self, error: BackendError | None) -> None:
        """After the first beat that failed, or fails in another way, or does not fail again."""
        if isinstance(error, WentBackwards):
            self._refusing.stop(str(error))
            # What ran cannot be recorded, and nobody is to wait until it is.
            self._attempts.lose()
            self._backend.seal()
        elif isinstance(error, Undurable):
            # Until a beat came through, and its settings were looked at again.
            self._refusing.weak(str(error))
        else:
            self._refusing.away("" if error is None else str(error))

    def _look_after(self) -> None:
        """After every beat: whoever waits for a dead replica decides again."""
        self._attempts.wake_for(self._heartbeat.is_dead)
        self._refusing.weak(self._backend.look_again())
        # Not when it is asked for: a scrape must not wait for the store.
        if self.observer is not None and self._clock() >= self._count_at:
            self._count_at = self._clock() + _COUNT_EVERY_S
            try:
                self.leases.count()
            except StorageUnavailable as error:
                _log.debug("not_counted", error=str(error))

    def _check_durable(self) -> None:
        if reason := self._refusing.weakness:
            # What is answered has to be kept.
            raise BackendError(f"the store is not durable: {reason}")

    def finish_of(self, attempt: Attempt, record: CompletionRecord) -> Finish:
        """Return what a handler's transaction writes, fenced; raises where it is to roll back."""
        if attempt.policy.kind is not Kind.ATOMIC or not isinstance(attempt, SharedAttempt):
            raise WrongDatabase(f"{attempt.call.method} is not declared atomic")
        if reason := self._refusing.weakness:
            raise StoreUnavailable(f"the store is not durable: {reason}")
        return Finish(
            attempt.call, attempt.token, self._codec.to_bytes(record, seed=attempt.call.seed)
        )

    def _observe(self, began: float, error: Exception | None = None) -> None:
        if self.observer is not None:
            self.observer.committed(1, self._clock() - began, error)

    def _settle(self, attempt: Attempt) -> None:
        self._attempts.settle(_shared(attempt))

    def _is_own(self, url: str) -> bool:
        """Whether a URL names the database that this store is in."""
        return False

    def _steps(self, rule: _Rule) -> Steps:
        return Steps(self._backend, rule)


def _shared(attempt: Attempt) -> SharedAttempt:
    invariant(isinstance(attempt, SharedAttempt), "an attempt of another store")
    return attempt  # type: ignore[return-value]
