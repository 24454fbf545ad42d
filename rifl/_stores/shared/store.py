"""A store that several server replicas share: the rules on this replica's side."""

from __future__ import annotations

import math
import secrets as randomness
import time
from collections.abc import Callable, Iterable, Sequence

from _rifl_ground.counting import Counts
from _rifl_ground.log import get_logger
from lease_server._errors import StorageUnavailable
from lease_server._storage import SharedLeaseStorage
from rifl._stores.base import UNRESOLVED_EVERY_S, Unresolved
from rifl._stores.codec import RecordCodec
from rifl._stores.errors import UnsupportedStore
from rifl._stores.forks import belongs_here
from rifl._stores.rows import ConditionalRows, Move, RowCall
from rifl._stores.shared.attempts import Attempts, SharedAttempt, loop_ends, of_shared
from rifl._stores.shared.backend import (
    Backend,
    BackendError,
    NotCarriedOut,
    Undurable,
    WentBackwards,
)
from rifl._stores.shared.claims import LOST, OWNER_BYTES, Claims
from rifl._stores.shared.counting_turn import MISSED, CountingTurn
from rifl._stores.shared.heartbeat import LATE_AFTER_S, Heartbeat
from rifl._stores.shared.held_answers import SharedAnswers
from rifl._stores.shared.presence import Presence
from rifl._stores.shared.refusing import Refusing
from rifl._stores.shared.replicas import BEAT_S, DEAD_AFTER_S
from rifl._stores.shared.requests import GetRows, MoveRows
from rifl._stores.shared.settlement import AttemptSettlement
from rifl._stores.shared.steps import AllSteps, Rule, Steps
from rifl._stores.shared.unclaimed import UnclaimedRuns
from rifl._stores.transactions import SharedBlocks, Transactions
from rifl.core._serving.bounds import Bounds, KeyBounds
from rifl.core._serving.client_entry import Attempt
from rifl.core._serving.decision import Decision
from rifl.core._serving.later import Later, Replies
from rifl.core._serving.leases import Leases
from rifl.core._serving.policy import MethodPolicies, MethodPolicy
from rifl.core._serving.unclaimed import BY_RECORD, Declared
from rifl.core._shared.call import Call
from rifl.core._shared.errors import InProgress, RecordPending, RiflError, StoreUnavailable
from rifl.core._shared.observer import Observer
from rifl.core._shared.record import CompletionRecord

_AT_ONCE = 1000


class SharedRows:
    """``ConditionalRows`` over a ``Backend``: each move is one request."""

    def __init__(
        self,
        store_id: str,
        process: str,
        backend: Backend,
        attempts: Attempts,
        refusing: Refusing,
        heartbeat: Heartbeat,
        judge: Callable[[BaseException], Counts],
    ) -> None:
        """``judge``: of an error of the database's driver; see ``ConditionalRows``."""
        self.judge = judge
        self.store_id = store_id
        self.process = process
        self._heartbeat = heartbeat
        self._backend = backend
        self._attempts = attempts
        self._refusing = refusing

    def beats(self, processes: Sequence[str]) -> list[int]:
        """Return of each replica how often it has beaten, 0 once its presence has ended."""
        try:
            Steps(self._backend, self._heartbeat.look()).wait()
        except BackendError as error:
            raise StoreUnavailable(f"the replicas cannot be read: {error}") from error
        return [self._heartbeat.beats(each) for each in processes]

    def get(self, keys: Iterable[str]) -> dict[str, bytes | None]:
        """Return what is durable."""
        wanted = list(keys)
        found: dict[str, bytes | None] = dict.fromkeys(wanted)
        try:
            for at in range(0, len(wanted), _AT_ONCE):
                found.update(self._backend.ask(GetRows(tuple(wanted[at : at + _AT_ONCE]))))
        except BackendError as error:
            raise StoreUnavailable(f"the rows cannot be read: {error}") from error
        return found

    def move(self, moves: Sequence[Move]) -> Steps:
        """Move rows in one request."""
        return Steps(self._backend, self._move(tuple(moves)))

    def begin(self, call: RowCall, policy: MethodPolicy) -> Attempt:
        """Begin a run."""
        if (refusal := self._refusing.refusal()) is not None:
            raise refusal
        return self._attempts.new(call, policy)

    def end(self, attempt: Attempt) -> None:
        """End a run."""
        self._attempts.settle(of_shared(attempt))

    def _move(self, moves: tuple[Move, ...]) -> Rule:
        if reason := self._refusing.weakness:
            raise StoreUnavailable(f"the store is not durable: {reason}")
        try:
            return (yield MoveRows(moves))
        except NotCarriedOut as error:
            raise StoreUnavailable(f"the rows were not moved: {error}") from error
        except BackendError as error:
            raise RecordPending(f"whether the rows were moved is not known: {error}") from error


_log = get_logger("rifl.store")
# Bounds how long a sweep takes.
_KEYS_PER_SWEEP = 10_000
# How old what observers are told of the whole store may be.
_COUNT_EVERY_S = 2.0


class SharedStore:
    """``Store`` over a ``Backend``: attempts of this replica, and waiting for others'.

    The decision is the store's own, in one step; what follows from it is in ``Claims``, how
    attempts end in ``AttemptSettlement``. A replica has an incarnation (``owner``) that is never
    used again.

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
    ``token_hex``: random digits. ``unresolved``: counts the store's, in one request; see
    ``Unresolved``.
    """

    decides_here = False
    cancels_handlers = True
    transactions: Transactions
    shared_blocks: SharedBlocks | None = None
    # First attempts of which methods may run before they are claimed: it is decided about them with
    # the commit of the handler's transaction (``RecordUnclaimed``), or its record alone
    # (``FinishUnclaimed``).
    unclaimed: tuple[Declared, ...] = ()
    rows: ConditionalRows | None = None

    def __init__(
        self,
        backend: Backend,
        leases: SharedLeaseStorage,
        *,
        beat_s: float = BEAT_S,
        dead_after_s: float = DEAD_AFTER_S,
        codec: RecordCodec | None = None,
        late_after_s: float = LATE_AFTER_S,
        clock: Callable[[], float] = time.monotonic,
        token_hex: Callable[[int], str] = randomness.token_hex,
        unresolved: Callable[[], Unresolved] | None = None,
    ) -> None:
        if not 0 < 3 * beat_s <= dead_after_s:
            raise ValueError("dead_after_s must be at least three times beat_s")
        self.observer: Observer | None = None
        self.on_refusal: Callable[[RiflError | None], None] | None = None
        self.cancelled = 0
        self.free_bytes: int | None = None
        self.unresolved: Unresolved | None = None
        self._ask_unresolved = unresolved
        self._unresolved_at = self._counted_at = -math.inf
        self.leases = leases
        self.owner = token_hex(OWNER_BYTES)
        self._backend = backend
        self._codec = codec or RecordCodec()
        self._attempts = Attempts(self.owner, token_hex)
        self._refusing = Refusing(self._tell_refusal)
        self._clock = clock
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
        self._turn = CountingTurn(self.owner, backend, self._heartbeat.living)
        self._settlement = AttemptSettlement(
            self._attempts,
            self._heartbeat,
            self._refusing,
            self._codec,
            clock=clock,
            observe=self._observe,
        )
        self._claims = Claims(
            self.owner,
            self._attempts,
            self._heartbeat,
            self._refusing,
            self._settlement,
            self._codec,
            # Others take this replica for dead after dead_after_s at the earliest, and by
            # clocks that drift.
            doubtful_after_s=dead_after_s / 2,
            clock=clock,
            observe=self._observe,
            unclaimed=self.unclaimed,
        )
        self._unclaimed_runs = UnclaimedRuns(
            self._claims,
            self._attempts,
            self._heartbeat,
            self._refusing,
            self._settlement,
            self._codec,
        )
        self.held = SharedAnswers(backend, clock=clock)
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
        self._claims.window = self._settlement.window = bounds.window
        self._policies = policies
        for policy in policies:
            if policy.database is not None and not self._is_own(policy.database):
                raise UnsupportedStore(
                    "an atomic method names another database than the store's: the records of "
                    "its calls could not be found there by other replicas"
                )
        if key_bounds is not None:
            self._claims.key_bounds = key_bounds
        self.held.bound(bounds, self._claims.key_bounds)
        self._begin()

    def _begin(self) -> None:
        self._presence = Presence(self.owner)
        self._backend.listen(self.owner, self._attempts.wake, self._attempts.wake_all)
        self._heartbeat.start()

    # -- Records -----------------------------------------------------------------------

    def claim(self, call: Call, policy: MethodPolicy) -> Decision | Later:
        """Decide about a call and claim it if it is new: one request, as a rule, or none."""
        if (policy.kind, policy.claim) in self.unclaimed:
            decision = self._unclaimed_runs.begin(call, policy)
            if decision is not None:
                return decision
        return self._steps(self._claims.claim(call, policy))

    def claim_all(self, calls: Sequence[Call], policy: MethodPolicy) -> Later:
        """Decide about many calls and claim those that are new; see ``BatchRecords``."""
        return AllSteps(self._backend, [self._claims.claim(call, policy) for call in calls])

    def start_all(self, attempts: Sequence[Attempt]) -> Replies:
        """Nothing to do: the claims are the intents."""
        return [None] * len(attempts)

    def finish_all(self, attempts: Sequence[Attempt], records: Sequence[CompletionRecord]) -> Later:
        """Make many records durable, then settle; see ``BatchRecords``."""
        pairs = zip(attempts, records, strict=True)
        return AllSteps(self._backend, [self._settlement.finish(*pair) for pair in pairs])

    def start(self, attempt: Attempt) -> Later | None:
        """Nothing to do: the claim is the intent."""
        return None

    def committed(self, attempt: Attempt) -> CompletionRecord | Later | None:
        """Return the record of the handler's own transaction; read it if no commit was seen."""
        if attempt.committed is not None:
            return attempt.committed
        if attempt.unclaimed:
            return self._not_committed(of_shared(attempt))
        if attempt.recorded is None:
            return None
        return self._steps(self._settlement.committed(attempt))

    def finish(self, attempt: Attempt, record: CompletionRecord) -> Later:
        """Make the record durable, then settle; its result is the record that stands."""
        return self._steps(self._settlement.finish(attempt, record))

    def may_have_run(self, attempt: Attempt) -> bool:
        """Whether a replica that is gone, or a run that was given up, may have had its effect.

        Every claim is in the store, so what was never claimed did not run, but where methods
        do without (``claim="never"``); and an atomic handler whose attempt was taken over, or
        that was never claimed, does not commit beside what stands.
        """
        if attempt.ran or BY_RECORD not in self.unclaimed:
            return attempt.ran
        call = attempt.call
        if call.fingerprint is None and not call.streamed and call.key is None:
            # A resolution, of an unnamed method.
            return any(policy.claim == "never" for policy in self._policies)
        return attempt.policy.claim == "never"

    def adopt(self, attempt: Attempt, record: CompletionRecord) -> Later | None:
        """Settle with a record that is durable already."""
        self._attempts.settle(of_shared(attempt))
        return None

    def abandon(self, attempt: Attempt) -> Later | None:
        """Make the call new again, and wake its waiters on every replica.

        One that may have run, or may commit yet, is left as a replica that is gone leaves it: who
        asks next takes it over. One that an event loop's end cancelled stays this replica's until
        it is gone: then others take it over.
        """
        mine = of_shared(attempt)
        if mine.left and (self._refusing.draining or loop_ends()):
            self._attempts.leave_behind(mine)
            return None
        if attempt.ran or mine.stays:
            return self._steps(self._claims.forsake(attempt, self._claims.left(attempt)))
        if attempt.unclaimed:
            # It has not run: the store knows nothing of it.
            self._settlement.settle(attempt)
            return None
        return self._steps(self._settlement.abandon(attempt))

    def was_cancelled(self, attempt: Attempt) -> None:
        """Note that a handler's coroutine was cancelled: a thread that it began may go on."""
        self.cancelled += 1
        of_shared(attempt).left = True

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

    def overdue(self) -> bool:
        """Whether another server may have taken this one for dead by now."""
        return self._heartbeat.overdue()

    def lapses(self) -> int:
        """Return how often that was so, and passed."""
        return self._heartbeat.lapses()

    def leave(self, attempt: Attempt, wake: Callable[[], None]) -> None:
        """No longer wait."""
        self._attempts.leave(attempt, wake)

    def clients_ended(self, client_ids: Iterable[int]) -> None:
        """Nothing is left to do: the leases' storage removed their rows as it found them over."""

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
        """Delete keyed calls whose retention has passed, by the store's clock."""
        try:
            self._backend.expire_keys(LOST, _KEYS_PER_SWEEP)
        except BackendError as error:
            # Late is safe, and what is unreachable is said by the pulse.
            _log.debug("keys_not_expired", error=str(error))
        self._count_unresolved()

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

    # --------------------------------------------------------------------------------------

    def _not_committed(self, attempt: SharedAttempt) -> Later:
        if not attempt.refused:
            return self._steps(self._unclaimed_runs.ask(attempt))
        # Whatever its handler made of that: it was rolled back, and is served as a duplicate is.
        attempt.call.asked = True
        self._settlement.settle(attempt)
        raise InProgress(f"{attempt.call.rpc_id} was recorded by another, or has to be claimed")

    def _tell_refusal(self, refusal: RiflError | None) -> None:
        if self.on_refusal is not None:
            self.on_refusal(refusal)

    def _reached(self, error: BackendError | None) -> None:
        """After the first beat that failed, or fails in another way, or does not fail again."""
        if isinstance(error, WentBackwards):
            self._refusing.stop(str(error))
            # What ran cannot be recorded: no caller may wait for that.
            self._attempts.lose()
            self._backend.seal()
        elif isinstance(error, Undurable):
            # Until a beat came through, and its settings were looked at again.
            self._refusing.weak(str(error))
            # It was reached.
            self._refusing.away("")
        else:
            self._refusing.away("" if error is None else str(error))

    def _look_after(self) -> None:
        """Wake, after every beat, callers that wait for a dead replica: they decide again."""
        self._attempts.wake_for(self._heartbeat.is_dead)
        self._refusing.weak(self._backend.look_again())
        self.held.look()
        if self._clock() - self._counted_at >= MISSED * UNRESOLVED_EVERY_S:
            # The count hangs, or fails: it is another replica's by now.
            self.unresolved = None
        # Not when it is asked for: a scrape must not wait for the store.
        if self.observer is not None and self._clock() >= self._count_at:
            self._count_at = self._clock() + _COUNT_EVERY_S
            try:
                self.leases.count()
            except StorageUnavailable as error:
                _log.debug("not_counted", error=str(error))

    def _count_unresolved(self) -> None:
        if self._ask_unresolved is None or self.observer is None:
            return
        if self._clock() < self._unresolved_at:
            return
        self._unresolved_at = self._clock() + UNRESOLVED_EVERY_S
        try:
            if not self._turn.mine():
                self.unresolved = None
                return
            found = self._ask_unresolved()
            self._counted_at = self._clock()
            # If it took so long that another replica counts by now, that one tells.
            self.unresolved = found if self._turn.counted() else None
        except BackendError as error:
            _log.debug("not_counted", error=str(error))

    def _observe(self, began: float, error: Exception | None = None, entries: int = 1) -> None:
        if self.observer is not None:
            self.observer.committed(entries, self._clock() - began, error)

    def _is_own(self, url: str) -> bool:
        """Whether a URL names the database that this store is in."""
        return False

    def _rows(self, store_id: str, judge: Callable[[BaseException], Counts]) -> SharedRows:
        return SharedRows(
            store_id,
            self.owner,
            self._backend,
            self._attempts,
            self._refusing,
            self._heartbeat,
            judge,
        )

    def _steps(self, rule: Rule) -> Steps:
        return Steps(self._backend, rule)
