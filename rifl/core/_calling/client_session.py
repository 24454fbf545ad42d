"""The session of a channel: identities, acknowledgements, lease (RIFL §3.2, §3.3; DESIGN §3-§5)."""

from __future__ import annotations

import enum
import math
from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import NamedTuple

from _rifl_ground.numbers import check_count
from _rifl_ground.refusals import Outcome
from rifl.core._calling.answer import AttemptAnswer, Judgement, Step, judge
from rifl.core._calling.client_lease import ClientLease, LeaseGrant
from rifl.core._calling.issued_call import IssuedCall
from rifl.core._calling.retry import RetryPolicy, shortened_s
from rifl.core._calling.retry_budget import HeldBack, RetryBudget, UsualDuration
from rifl.core._calling.silence import ConnectionWatch
from rifl.core._shared.call import MAX_RANGES
from rifl.core._shared.errors import WindowExceeded
from rifl.core._shared.identity import ALSO_AT_MOST, DEFAULT_WINDOW, RpcId
from rifl.core._shared.reasons import LOST_REASONS

_SHORT_SPAN = 32
# How long, and for how many calls at most, an acknowledgement waits for late attempts.
_LINGER_S = 1.0
_LINGER_CALLS = 64
# For how long a call of unknown outcome can be asked about, and how many of them.
UNRESOLVED_S = 60.0
UNRESOLVED_LIMIT = 64
# Between two requests for a lease, however little time the calls have that wait for it.
_SHORTEST_LEASE_PAUSE_S = 0.05

# Renewals come earlier than after a third of the term: by at most this part of it, so that
# clients that began together do not go on so.
_JITTER = 0.2
# A lease may be renewed along with another one so much of its term before it is due: half of
# the time between two renewals.
_EARLY_OF_TERM = 1 / 6


class LeaseStep(enum.Enum):
    """What a shell does next for the lease."""

    GRANT = "grant"
    RENEW = "renew"
    # Ask for a sign of life of the connection, by a renewal: see ``ConnectionWatch``.
    PROBE = "probe"
    WAIT = "wait"


class LostLease(NamedTuple):
    """A client id that is gone, with calls whose outcome may never be known."""

    client_id: int
    outstanding: int


class ClientSession:
    """Identities, acknowledgements, lease and verdicts of one channel.

    Invariants:

    1. An identity is issued once. All attempts of a call carry it and its stamp,
       even after the lease it was issued under is lost.
    2. A seq is acknowledged only when its answer reached the caller, when it is
       known not to have run, or when its time as unresolved has passed. The answer to one
       of several attempts is acknowledged a second later, at most 64 of them at once.
    3. At most ``window`` calls of a client id are unacknowledged. Of them at
       most ``unresolved_limit``, and at most half the window, are unresolved;
       none for longer than ``unresolved_s``.
    4. A header carries at most 64 ranges; where there are more, successive
       headers carry them in turn. A completed range is told within four calls
       of its turn, or 16 where the unacknowledged calls are 32 seqs or fewer apart.
    5. The lease is counted from when an accepted request was sent.
    6. A renewal that another channel's request asks for counts only where the answer is *yes*.
       Otherwise the channel renews for itself, and neither takes part in another's
       renewals nor asks for other leases until that has succeeded.
    7. A call that had an identity gets another one only from the store that granted
       the first. Keys, which outlive a client id, are of one store for as long as the
       session lives.

    Times are seconds of any monotonic clock, given by the caller. No I/O, no
    clock, no thread, no randomness; not thread-safe: a shell holds one lock for
    the short time of each call.
    """

    def __init__(
        self,
        *,
        window: int = DEFAULT_WINDOW,
        retry: RetryPolicy | None = None,
        unresolved_s: float = UNRESOLVED_S,
        unresolved_limit: int = UNRESOLVED_LIMIT,
        grpc_retries: bool = False,
        named: bool = False,
    ) -> None:
        """``named``: its client id is a named session's, which takes calls with a key only."""
        check_count("window", window, 1)
        check_count("unresolved_limit", unresolved_limit, 0)
        if unresolved_s < 0:
            raise ValueError("unresolved_for must not be negative")
        self.use(retry or RetryPolicy())
        self.lease: ClientLease | None = None
        # What was held back by the budget, until the shell has told it.
        self.held: list[HeldBack] = []
        # What was answered of earlier client ids, and by key; less what ended without an answer.
        self._answered = 0
        self._durations: dict[str, UsualDuration] = {}
        # What granted the last client id, 0 before that.
        self.store = 0
        self.named = named
        self._window = window
        self._losses: list[LostLease] = []
        self._lease_failures = 0
        self._lease_failed_at = 0.0
        # The next request after a failure: where a call waits, or a connection is silent; and of
        # an idle client.
        self._lease_retry_at = 0.0
        self._renew_at = 0.0
        self._unresolved_s = unresolved_s
        self._unresolved_limit = unresolved_limit
        self._grpc_retries = grpc_retries
        # Answered calls that are not acknowledged yet, and when they will be.
        self._lingering: deque[tuple[IssuedCall, float]] = deque()
        self._unresolved: OrderedDict[RpcId, tuple[IssuedCall, float]] = OrderedDict()

    def use(self, retry: RetryPolicy) -> None:
        """Go by another policy from now on."""
        self.retry = retry
        self._budget = RetryBudget(retry.budget_tokens, retry.budget_ratio)

    # The lease: when it is asked for, renewed, and given up.

    def may_take(self, grant: LeaseGrant) -> bool:
        """Whether a grant's id may be taken: that of a named session from its store only.

        The same key would be a new call under an id of other records (invariant 7).
        """
        return not self.named or self.store in (0, grant.store)

    def granted(self, grant: LeaseGrant, sent_at: float, jitter: float = 0.0) -> ClientLease:
        """Take a new client id, asked for at ``sent_at``.

        Its first renewal is due at any time in the first third of the term, by ``jitter``.
        """
        self.store = grant.store
        self._answered = self._answered_calls()
        window = min(self._window, grant.window) if grant.window else self._window
        self.lease = ClientLease(grant, window, sent_at)
        self.lease.early = jitter
        self._lease_failures = 0
        return self.lease

    def renewed(
        self,
        lease: ClientLease,
        term_s: float,
        token: bytes,
        sent_at: float,
        jitter: float = 0.0,
    ) -> None:
        """Note a renewal asked for at ``sent_at``; an empty token means the old one.

        After failures many clients are renewed at once: the next renewal is spread as a first one.
        """
        spread = 1.0 if self._lease_failures else _JITTER
        self._lease_failures = 0
        lease.asked_until = -math.inf
        if term_s > 0:
            lease.term_s = term_s
        lease.early = jitter * spread
        lease.accepted(sent_at)
        lease.early_from = lease.renewed_at
        lease.token_at = max(lease.token_at, sent_at)
        if token and token != lease.token:
            lease.token = token
            lease.encoded = b""

    def lease_failed(self, now: float, jitter: float, *, soon: bool = False) -> None:
        """Note that a request of the lease server's got no answer; back off.

        A lease that has half a minute left is not asked for each second: the pauses are a part
        of what is left, or of a third of its term once it is over and no call waits. ``soon``:
        by the policy's pauses, which also hold where a call waits.
        """
        lease = self.lease
        self._lease_failures += 1
        self._lease_failed_at = now
        self._lease_retry_at = now + self.retry.backoff_s(self._lease_failures, jitter)
        self._renew_at = self._lease_retry_at
        if lease is None:
            return
        lease.asked_until = -math.inf
        if not soon:
            left_s = lease.expires_at - now
            pause_s = left_s / 2 if left_s > 0 else lease.term_s / 3
            self._renew_at = max(self._renew_at, now + pause_s * (1 + jitter) / 2)

    def lost(self, lease: ClientLease) -> None:
        """Note that a lease is gone; idempotent. Its calls keep their identities."""
        if lease.lost:
            return
        self._drop_lingering(math.inf)
        lease.lost = True
        if self.lease is lease:
            self._answered = self._answered_calls()
            self.lease = None
            self._lease_failures = 0
        if lease.tracker.incomplete:
            self._losses.append(LostLease(lease.client_id, lease.tracker.incomplete))

    def take_losses(self) -> list[LostLease]:
        """Return, once each, the losses that the application must be told of."""
        losses, self._losses = self._losses, []
        return losses

    def lease_step(
        self,
        now: float,
        *,
        wanted: bool,
        ends_at: float | None = None,
        watch: ConnectionWatch | None = None,
        in_flight: bool = False,
    ) -> tuple[LeaseStep, float | None]:
        """Decide what to do for the lease, and when to look again.

        ``wanted`` tells that a call waits for a usable lease, ``ends_at`` until when: a
        pause that would outlast it is shortened, as those of calls are. A lease that has
        ended by our count is renewed before it is given up: the server counts later, and
        gives every client a full term after a restart (DESIGN §5). ``watch``: of
        a connection that can be replaced; ``in_flight``: whether a call waits for its answer.
        """
        lease = self.lease
        retry_at = self._lease_retry_at if self._lease_failures else now
        if retry_at > now and ends_at is not None:
            failed_at = self._lease_failed_at
            pause_s = shortened_s(
                retry_at - failed_at, ends_at - failed_at, shortest_s=_SHORTEST_LEASE_PAUSE_S
            )
            retry_at = retry_at if pause_s is None else failed_at + pause_s
        if lease is None:
            if not wanted:
                return LeaseStep.WAIT, None
            return (LeaseStep.GRANT, None) if now >= retry_at else (LeaseStep.WAIT, retry_at)
        due = max(_heartbeat_at(lease), self._renew_at if self._lease_failures else now)
        if wanted and now >= lease.expires_at:
            due = retry_at
        due = max(due, lease.asked_until)
        if now >= due:
            return LeaseStep.RENEW, None
        if watch is not None:
            ask_at = max(watch.ask_at(now, lease.renewed_at, in_flight=in_flight), retry_at)
            if now >= ask_at:
                return LeaseStep.PROBE, None
            due = min(due, ask_at)
        return LeaseStep.WAIT, due

    # Renewals that several channels of a process share (DESIGN §5).

    def room_for_companions(self) -> int:
        """Return how many other leases a renewal may renew, too."""
        # While this channel's requests fail, no other lease depends on them.
        return 0 if self._lease_failures else ALSO_AT_MOST

    def accompany(self, other: ClientLease, now: float, until: float) -> ClientLease | None:
        """Have the renewal of another channel's lease renew ours, too, if it is due soon.

        Return ours then; until ``until`` it is not asked for here, unless
        ``not_accompanied`` says that nothing came of it.
        """
        lease = self.lease
        if (
            lease is None
            or lease.store != other.store
            or lease.store == 0
            or self._lease_failures
            or now < lease.asked_until
            or now < _heartbeat_at(lease) - lease.term_s * _EARLY_OF_TERM
        ):
            return None
        lease.asked_until = until
        return lease

    def not_accompanied(self, lease: ClientLease, now: float, jitter: float) -> None:
        """Note that another channel's request brought no *yes* for a lease (invariant 6)."""
        if self.lease is lease:
            self.lease_failed(now, jitter, soon=True)

    def asking(self, lease: ClientLease, until: float) -> None:
        """Note that a renewal of the lease is being sent, answered by ``until`` or never."""
        lease.asked_until = until

    def of_another_store(self, store: int) -> bool:
        """Whether the client id that calls are issued under now is not of that store."""
        return store != 0 and self.lease is not None and self.lease.store != store

    def usable(self, now: float) -> bool:
        """Whether calls may be issued: there is a lease, and by our count it lives."""
        return self.lease is not None and now < self.lease.expires_at

    # Calls.

    def begin(self, stamp: tuple[int, int], now: float) -> IssuedCall | None:
        """Issue an identity and its first header; None without a usable lease.

        Raises ``WindowExceeded`` when the window is full.
        """
        call = None
        try:
            call = self.try_begin(stamp, now)
            if call is None and self.usable(now):
                raise WindowExceeded("as many calls as the window takes are incomplete")
            return call
        except BaseException:
            if call is not None:
                self.complete(call)
            raise

    def try_begin(self, stamp: tuple[int, int], now: float) -> IssuedCall | None:
        """As ``begin``, but None also when the window is full."""
        lease = self.lease
        if lease is None or now >= lease.expires_at:
            return None
        if self._unresolved or self._lingering:
            self._drop_unresolved(now)
            full = lease.tracker.incomplete >= lease.window
            self._drop_lingering(now, 0 if full else _LINGER_CALLS)
        tracker = lease.tracker
        following = tracker.following
        try:
            begun = tracker.begin()
            if begun is None:
                return begun
            seq, first_incomplete = begun
            completed: Sequence[tuple[int, int]] = ()
            if first_incomplete != seq:
                span = seq - first_incomplete + 1
                # No ranges to look for if all seqs in the span are incomplete. What the
                # server has yet to hear of is less than the span: while that leaves room
                # in the window, some headers are soon enough.
                if span != tracker.incomplete and not (
                    (seq & 15 and span <= _SHORT_SPAN and span <= lease.window)
                    or (seq & 3 and span <= lease.window >> 1)
                ):
                    completed = self._ranges(lease)
            return IssuedCall(lease, seq, first_incomplete, completed, stamp)
        except BaseException:
            # A signal's: the seq was handed to no caller, and never sent.
            tracker.complete(following)
            raise

    def begin_keyed(self, key: bytes, stamp: tuple[int, int], now: float) -> IssuedCall | None:
        """Issue a call under the caller's own key; None without a usable lease.

        It takes no room in the window and is never acknowledged: the server keeps
        its record for the method's retention, or as long as the named session.
        """
        if not self.usable(now):
            return None
        call = IssuedCall(self.lease, 0, 1, (), stamp)  # type: ignore[arg-type]
        call.key = key
        return call

    def acknowledgements(
        self, lease: ClientLease, most: int = MAX_RANGES
    ) -> tuple[int, list[tuple[int, int]]]:
        """Return what the header of a batch of the client id's calls acknowledges.

        ``most``: so many ranges at most.
        """
        return lease.tracker.first_incomplete, self._ranges(lease, most)

    def renewal_acknowledges(
        self, lease: ClientLease, now: float, most: int
    ) -> tuple[int, list[tuple[int, int]]]:
        """Return what a renewal acknowledges: what a header would, of a session nothing."""
        if self.named:
            return 1, []
        # While the client makes no call, only this looks for what has waited long enough.
        self._drop_unresolved(now)
        self._drop_lingering(now)
        return self.acknowledgements(lease, most)

    def next_attempt(self, call: IssuedCall) -> None:
        """Number the next attempt of ``call`` and bring its header up to date."""
        call.attempt += 1
        if call.key is not None:
            return
        call.first_incomplete = call.lease.tracker.first_incomplete
        call.completed = self._ranges(call.lease)

    def answered(
        self,
        call: IssuedCall,
        answer: AttemptAnswer,
        sent_at: float,
        jitter: float,
        attempt: int | None = None,
    ) -> Judgement:
        """Judge the answer of one attempt (None: the latest), sent at ``sent_at``.

        The caller ends the call by ``complete`` or ``abandon``, but for
        NEW_IDENTITY, which ends the old identity here. An answer that says that
        the client id is of no more use makes the lease a lost one.
        """
        judgement = judge(
            call,
            answer,
            self.retry.backoff_s(call.attempt, jitter),
            attempt=call.attempt if attempt is None else attempt,
            grpc_retries=self._grpc_retries,
        )
        if judgement.outcome in (Outcome.EXECUTED, Outcome.REPLAYED):
            call.lease.accepted(sent_at)
        if judgement.step is Step.NEW_IDENTITY:
            call.lease.tracker.complete(call.seq)
        if answer.reason in LOST_REASONS and not answer.foreign:
            self.lost(call.lease)
        return judgement

    def complete(self, call: IssuedCall, sent_at: float | None = None) -> None:
        """Acknowledge a call. ``sent_at``: when the attempt was sent that was accepted."""
        lease = call.lease
        lease.tracker.complete(call.seq)
        if sent_at is not None:
            lease.accepted(sent_at)

    def complete_unanswered(self, call: IssuedCall) -> None:
        """Acknowledge a call that got no answer of its handler's."""
        lease = call.lease
        if lease is self.lease and lease.tracker.has(call.seq):
            self._answered -= 1
        lease.tracker.complete(call.seq)

    def linger(self, call: IssuedCall, now: float) -> None:
        """Acknowledge an answered call of several attempts, in a while.

        A hedge, or a retry, that is still on its way would arrive after the acknowledgement
        and be refused as STALE_RPC: harmless, but it looks as if the caller had a bug.
        """
        self._lingering.append((call, now + _LINGER_S))
        self._drop_lingering(now, min(_LINGER_CALLS, call.lease.tracker.window // 4))

    def interrupted(self, call: IssuedCall, now: float) -> None:
        """End a call that was interrupted at some step, as ``abandon``, unless it has ended."""
        if call.key is None and (
            not call.lease.tracker.has(call.seq)
            or call.rpc_id in self._unresolved
            or any(each is call for each, _ in self._lingering)
        ):
            return
        self.abandon(call, now)

    def abandon(self, call: IssuedCall, now: float) -> None:
        """End a call whose outcome is unknown: it stays resolvable for a while."""
        limit = min(self._unresolved_limit, call.lease.tracker.window // 2)
        if not limit:
            self.complete_unanswered(call)
            return
        self._unresolved[call.rpc_id] = (call, now + self._unresolved_s)
        self._drop_unresolved(now, limit)

    # The budget for attempts after the first, and when hedges are due.

    def may_send(
        self, method: str, target: int, now: float, *, hedge: bool = False, waits: bool = False
    ) -> bool:
        """Take a token for one more attempt; False: look again at ``look_at``.

        ``waits``: the attempt was held back before.
        """
        if self._budget.take(target, now, self._answered_calls(), hedge=hedge):
            return True
        if not waits:
            self.held.append(self._budget.held_back(method, target, hedge=hedge))
        return False

    def look_at(self, target: int, now: float) -> float:
        """Return when to ask ``may_send`` again."""
        return self._budget.look_at(target, now)

    def may_cut(self, target: int) -> bool:
        """Whether all calls in flight, and one more, would find a token if they timed out now."""
        lease = self.lease
        in_flight = 0 if lease is None else lease.tracker.incomplete
        return self._budget.has(target, self._answered_calls(), in_flight + 1)

    def take_held(self) -> list[HeldBack]:
        """Return, once each, what was held back."""
        held, self.held = self.held, []
        return held

    def answered_by_key(self) -> None:
        """Note that a call with a key, which no tracker counts, was answered."""
        self._answered += 1

    def hedge_at(self, method: str, sent_at: float, after_s: float) -> float:
        """Return when a hedge is due: not before most answers of the method would be there."""
        usual = self._durations.get(method)
        return sent_at + (after_s if usual is None else max(after_s, usual.slow_s))

    def took(self, method: str, seconds: float) -> None:
        """Note how long an attempt took that was answered."""
        usual = self._durations.get(method)
        if usual is None:
            usual = self._durations[method] = UsualDuration()
        usual.took(seconds)

    def _answered_calls(self) -> int:
        # Of the first attempts' own path, which counts nothing for this.
        lease = self.lease
        if lease is None:
            return self._answered
        tracker = lease.tracker
        return self._answered + tracker.following - 1 - tracker.incomplete

    # Calls whose outcome stayed unknown.

    def unresolved(self, rpc_id: RpcId, now: float) -> IssuedCall | None:
        """Find a call that can still be resolved."""
        self._drop_unresolved(now)
        entry = self._unresolved.get(rpc_id)
        return entry[0] if entry is not None else None

    def resolved(self, rpc_id: RpcId) -> None:
        """Note that the outcome of a call is known now: it is acknowledged."""
        entry = self._unresolved.pop(rpc_id, None)
        if entry is not None:
            self.complete_unanswered(entry[0])

    def unresolved_until(self) -> float | None:
        """Return when the oldest unresolved call will be acknowledged."""
        for _, until in self._unresolved.values():
            return until
        return None

    @property
    def idle(self) -> bool:
        """Whether no call of the current client id is outstanding or unresolved."""
        lease = self.lease
        lingering = sum(1 for call, _ in self._lingering if call.lease is lease)
        return lease is None or lease.tracker.incomplete == lingering

    @property
    def in_flight(self) -> bool:
        """Whether a call of the current client id that has no key waits for its answer."""
        lease = self.lease
        if lease is None or not lease.tracker.incomplete:
            return False
        ended = [call for call, _ in (*self._lingering, *self._unresolved.values())]
        return lease.tracker.incomplete > sum(
            1 for call in ended if call.lease is lease and call.key is None
        )

    def _drop_lingering(self, now: float, limit: int = _LINGER_CALLS) -> None:
        while self._lingering:
            call, until = self._lingering[0]
            if until > now and len(self._lingering) <= limit:
                return
            self._lingering.popleft()
            self.complete(call)

    def _drop_unresolved(self, now: float, limit: int | None = None) -> None:
        while self._unresolved:
            rpc_id, (call, until) = next(iter(self._unresolved.items()))
            if until > now and (limit is None or len(self._unresolved) <= limit):
                return
            del self._unresolved[rpc_id]
            self.complete_unanswered(call)

    @staticmethod
    def _ranges(lease: ClientLease, most: int = MAX_RANGES) -> list[tuple[int, int]]:
        ranges = lease.tracker.completed_ranges()
        if len(ranges) <= most:
            return ranges
        start = next((at for at, (_, last) in enumerate(ranges) if last > lease.range_cursor), 0)
        chosen = ranges[start : start + most]
        lease.range_cursor = chosen[-1][1]
        return chosen


def _heartbeat_at(lease: ClientLease) -> float:
    # Accepted calls renew; but only a heartbeat brings the token of a new secret,
    # and the old one is good for a term after that.
    early = lease.early
    if lease.renewed_at > lease.early_from:
        # Calls come at times of their own.
        early = min(early, _JITTER)
    third_s = lease.term_s / 3
    return min(lease.renewed_at + third_s, lease.token_at + lease.term_s) - early * third_s
