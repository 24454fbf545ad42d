"""The flow of one call, from begin to end: deadlines, retries, hedges (DESIGN §3)."""

from __future__ import annotations

import enum

from _rifl_ground.refusals import Outcome
from rifl.core._calling.answer import AttemptAnswer, Judgement, Step
from rifl.core._calling.client_session import ClientSession
from rifl.core._calling.invocation import OWN_HEADER, Invocation
from rifl.core._calling.issued_call import IssuedCall
from rifl.core._calling.retry import TICK_S, in_ms, shortened_s
from rifl.core._shared.errors import BadHeader, NotDeduplicated, StoreMismatch, WindowExceeded
from rifl.core._shared.invariant import invariant


class Action(enum.Enum):
    """What a shell does next for a call."""

    SEND = "send"
    WAIT = "wait"
    # Cancel the attempts in flight: each ends as one that had no answer in its time.
    CUT = "cut"
    # Wait for a usable lease, or for room in the window; then ``woken``.
    LEASE = "lease"
    WINDOW = "window"
    RETURN = "return"
    RAISE = "raise"


class CallFlow:
    """Decides what happens to one call; a shell does it.

    A shell calls ``start``, then does what the returned action says and reports
    what happened by ``answered`` and ``woken``. After every action it calls
    ``woken`` when ``wake_at`` is reached, if that is not None.

    SEND: send one more attempt of ``call`` (numbered ``call.attempt``; None for
    a method that is not deduplicated: no header) bounded by ``attempt_timeout_s``: the caller's
    deadline. CUT: the time that the policy gives an attempt has passed, and another may be sent;
    the shell cancels those in flight, and reports DEADLINE_EXCEEDED of each that has no answer.
    RETURN: hand over the answer just reported. RAISE: raise the last answer's
    status, or ``code`` where it is set, with ``outcome`` and ``reason``. A call with
    ``OWN_HEADER`` is sent once, without a rifl header: only its caller knows whether
    the server takes that header, and so whether it may be sent again. At the end the
    identity is acknowledged or set aside as unresolved; the shell must cancel the
    attempts in flight. ``decode`` is kept on the call for the shell.

    Invariants:

    1. At most two attempts are in flight, and none after the end.
    2. A retry or a hedge that is not free takes a token of the session's budget, or waits for
       one. A call ends no earlier for that, nor does its attempt in flight.

    No I/O and no clock; serialised by the shell, together with its session.
    """

    def __init__(
        self,
        session: ClientSession,
        invocation: Invocation,
        call: IssuedCall | None = None,
    ) -> None:
        self.call = call
        if call is not None:
            call.method = invocation.method
        self._invocation = invocation
        self._key = invocation.key
        self._deadline = invocation.deadline
        self.wake_at: float | None = None
        self.attempt_timeout_s: float | None = None
        self.outcome = Outcome.UNKNOWN
        self.reason = ""
        self.code = ""
        self.done = False
        self._session = session
        self._deduplicated = True
        # What granted the identity that the call had before, 0 if it had none.
        self._store = 0
        self._sent = 0
        self._under_way: dict[int, tuple[float, bool]] = {}
        self._hedge_at: float | None = None
        self._retry_at: float | None = None
        self._cut_at: float | None = None
        # Whether the attempt to come needs no token, or has one; and what ends the call without it.
        self._paid = False
        self._judged: Judgement | None = None
        # Whether a retry, or a hedge, was held back already.
        self._held_back = {False: False, True: False}
        self._window_full = False
        max_elapsed_s = session.retry.max_elapsed_s
        self._give_up_at = invocation.deadline
        if invocation.deadline is None and max_elapsed_s is not None:
            self._give_up_at = invocation.started_at + max_elapsed_s

    @property
    def keyed(self) -> bool:
        """Whether the call has a key of its caller's."""
        return self._key is not None

    @property
    def expired(self) -> bool:
        """Whether the call's time had passed when it was made: it was not sent."""
        return self._invocation.expired

    @property
    def ends_at(self) -> float | None:
        """After when no attempt is begun; None for a call that may always be tried again."""
        return self._give_up_at

    @property
    def attempts_under_way(self) -> list[int]:
        """The numbers of the attempts that were sent and not answered."""
        return list(self._under_way)

    @property
    def attempts_sent(self) -> int:
        """How many attempts were sent."""
        return self._sent

    def start(self, now: float) -> Action:
        """Begin; with a ``call`` given, its first attempt is sent unchanged."""
        if self.call is not None:
            return self._send(now, bounded=True)
        if self._invocation.expired:
            return self._out_of_time("DEADLINE_EXCEEDED", now)
        return self._begin(now)

    def woken(self, now: float, target: int = 0, *, connected: bool = True) -> Action:
        """Look again: a time was reached, a lease or room in the window may be there.

        ``target``: where another attempt would go. Not ``connected``: those in flight have no
        connection, or the last one lost it.
        """
        invariant(not self.done, "a call that ended is not woken")
        if self._deadline is not None and now >= self._deadline:
            if self._window_full:
                return self._no_room("DEADLINE_EXCEEDED")
            return self._not_sent_again(now) or self._out_of_time("DEADLINE_EXCEEDED", now)
        if self._under_way:
            return self._woken_under_way(now, target, connected=connected)
        if self._retry_at is not None:
            self._paid = self._paid or not connected
            if now < self._retry_at:
                return self._wait()
            if self.call is None:
                # Under the identity of a new client id.
                return self._begin(now)
            if not self._pay(now, target):
                if self._give_up_at is not None and now >= self._give_up_at:
                    return self._not_sent_again(now) or self._out_of_time("UNAVAILABLE", now)
                self._retry_at = _earliest(self._session.look_at(target, now), self._give_up_at)
                return self._wait()
            return self._send_again(now)
        if self._give_up_at is not None and now >= self._give_up_at:
            if self._window_full:
                return self._no_room(WindowExceeded.code_name)
            return self._out_of_time("UNAVAILABLE", now)
        return self._begin(now)

    def answered(self, attempt: int, answer: AttemptAnswer, now: float, jitter: float) -> Action:
        """Take the answer of one attempt."""
        invariant(not self.done, "a call that ended takes no answers")
        sent_at, to_deadline = self._under_way.pop(attempt)
        if self.call is None:
            return self._judge_plain(answer, now)
        # The caller's own deadline; our clock may be a tick behind gRPC's. An earlier one is
        # another's: a proxy's, an interceptor's, a service config's.
        if (
            answer.code == "DEADLINE_EXCEEDED"
            and answer.outcome is None
            and to_deadline
            and now >= self._deadline - TICK_S  # type: ignore[operator]
        ):
            return self._out_of_time(answer.code, now, own_status=True)
        judgement = self._session.answered(self.call, answer, sent_at, jitter, attempt)
        if judgement.step is Step.RETURN:
            if self._invocation.hedge_after_s is not None:
                self._note_duration(judgement.outcome, sent_at, now)
            if self.call.key is not None:
                self._session.answered_by_key()
            if self._sent > 1:
                self._session.linger(self.call, now)
            else:
                self._session.complete(self.call)
            return self._end(Action.RETURN, judgement.outcome, "")
        if self._under_way and not judgement.final:
            # The other attempt's answer may tell more.
            return self._wait()
        if judgement.step is Step.NEW_IDENTITY:
            # An attempt like any other: what refuses each new identity, too, is not to be
            # asked again at once, nor without end.
            at = self._next_at(now, self._session.retry.backoff_s(self._sent, jitter))
            if at is None:
                return self._end(Action.RAISE, Outcome.NOT_EXECUTED, answer.reason)
            self._store = self.call.lease.store
            self.call = None
            self._retry_at = at
            return self._wait()
        if judgement.step is Step.RETRY:
            at = self._next_at(now, judgement.after_s, judgement.least_s)
            if at is not None:
                self._retry_at = at
                self._paid = self._paid or answer.sends_on
                self._judged = judgement
                return self._wait()
        return self._raise(judgement.outcome, judgement.reason, now, judgement.resolvable)

    def cancelled(self, now: float) -> None:
        """End the call because its caller no longer wants it."""
        if not self.done:
            self._out_of_time("CANCELLED", now)

    def lease_refused(self, answer: AttemptAnswer, now: float) -> Action:
        """End a call that waits for a lease because none will be given."""
        invariant(self.call is None, "only a call without identity waits for a lease")
        del now
        refused = answer.reason
        if not refused and answer.code == "UNIMPLEMENTED":
            refused = NotDeduplicated.reason
        known = refused == NotDeduplicated.reason
        return self._end(Action.RAISE, Outcome.NOT_EXECUTED if known else self._unsent(), refused)

    def _begin(self, now: float) -> Action:
        self._retry_at = None
        self._window_full = False
        session, invocation = self._session, self._invocation
        if self._key == OWN_HEADER:
            self._deduplicated = False
            return self._send(now)
        if self._key is not None and not session.named:
            # The client id is this channel's, and another one after a lost lease: the key
            # would name another call then, silently.
            self.code = BadHeader.code_name
            return self._end(Action.RAISE, Outcome.NOT_EXECUTED, BadHeader.reason)
        if not session.usable(now):
            self.wake_at = self._give_up_at
            return Action.LEASE
        if session.of_another_store(self._store):
            self.code = StoreMismatch.code_name
            return self._end(Action.RAISE, Outcome.UNKNOWN, StoreMismatch.reason)
        lease = session.lease
        if lease is not None and not lease.methods.has(invocation.method, stream=invocation.stream):
            if self._key is not None:
                # Without the key the call would run once for each attempt.
                self.code = NotDeduplicated.code_name
                return self._end(Action.RAISE, Outcome.NOT_EXECUTED, NotDeduplicated.reason)
            self._deduplicated = False
            return self._send(now)
        if self._key is None and session.named:
            self.code = BadHeader.code_name
            return self._end(Action.RAISE, Outcome.NOT_EXECUTED, BadHeader.reason)
        try:
            if self._key is None:
                self.call = session.begin(invocation.stamp, now)
            else:
                self.call = session.begin_keyed(self._key, invocation.stamp, now)
        except WindowExceeded:
            self._window_full = True
            self.wake_at = _earliest(self._give_up_at, session.unresolved_until())
            return Action.WINDOW
        if self.call is not None:
            self.call.decode, self.call.method = invocation.decode, invocation.method
        return self._send(now)

    def _send(self, now: float, *, bounded: bool = False) -> Action:
        """Send an attempt; ``bounded``: it was sent, and bounded by the policy's time."""
        remaining = None if self._deadline is None else max(self._deadline - now, 0.0)
        limit = self._session.retry.attempt_timeout_s if self._deduplicated else None
        to_deadline = limit is None or (remaining is not None and remaining <= limit)
        self.attempt_timeout_s = remaining
        self._cut_at = None if to_deadline or bounded else now + limit  # type: ignore[operator]
        if self.call is not None:
            left = None if self._give_up_at is None else self._give_up_at - now
            self.call.try_ms = 0 if self._cut_at is None else in_ms(left)
        number = self.call.attempt if self.call is not None else 1
        self._under_way[number] = (now, remaining is not None and (to_deadline or not bounded))
        self._sent += 1
        hedge_after_s = self._invocation.hedge_after_s
        if hedge_after_s is not None and self._deduplicated and len(self._under_way) == 1:
            self._hedge_at = self._session.hedge_at(self._invocation.method, now, hedge_after_s)
        self._wait()
        return Action.SEND

    def _woken_under_way(self, now: float, target: int, *, connected: bool) -> Action:
        if len(self._under_way) == 1 and self._hedge_at is not None and now >= self._hedge_at:
            self._hedge_at = None
            if self._may_retry(now):
                if not connected or self._pay(now, target, hedge=True):
                    return self._send_again(now)
                self._hedge_at = self._session.look_at(target, now)
        if self._cut_at is not None and now >= self._cut_at:
            # Without another attempt, too: the policy bounds the last one as well.
            if not self._may_retry(now) or not connected or self._pay(now, target):
                self._cut_at = self._hedge_at = None
                self._paid = True
                self._wait()
                return Action.CUT
            self._cut_at = self._session.look_at(target, now)
        return self._wait()

    def _pay(self, now: float, target: int, *, hedge: bool = False) -> bool:
        """Take a token, unless the next attempt has one; False: it waits."""
        if self._paid and not hedge:
            return True
        waits, self._held_back[hedge] = self._held_back[hedge], True
        method = self._invocation.method
        if not self._session.may_send(method, target, now, hedge=hedge, waits=waits):
            return False
        self._held_back[hedge] = False
        return True

    def _note_duration(self, outcome: Outcome, sent_at: float, now: float) -> None:
        if outcome is Outcome.REPLAYED:
            # The answer of an earlier attempt's handler: it took from when that was sent.
            if not self._under_way:
                return
            sent_at = min(earlier for earlier, _ in self._under_way.values())
        self._session.took(self._invocation.method, now - sent_at)

    def _not_sent_again(self, now: float) -> Action | None:
        """End a call whose next attempt waited for a token until its time was over."""
        judged = self._judged
        if judged is None or self._retry_at is None:
            return None
        return self._raise(judged.outcome, judged.reason, now, judged.resolvable)

    def _send_again(self, now: float) -> Action:
        invariant(self.call is not None and len(self._under_way) < 2, "at most two in flight")
        self._retry_at = self._judged = None
        self._paid = False
        self._session.next_attempt(self.call)  # type: ignore[arg-type]
        return self._send(now)

    def _wait(self) -> Action:
        if self._under_way:
            # Attempts carry the deadline themselves, and its status is gRPC's own.
            hedge_at = self._hedge_at if len(self._under_way) == 1 else None
            self.wake_at = _earliest(hedge_at, self._cut_at)
        else:
            self.wake_at = _earliest(self._retry_at, self._deadline)
        return Action.WAIT

    def _next_at(self, now: float, pause_s: float, least_s: float = 0.0) -> float | None:
        """When to send again after a pause, shortened where time is; None: not any more."""
        if self._give_up_at is not None:
            left_s = self._give_up_at - now
            shorter_s = shortened_s(pause_s, left_s, least_s=least_s)
            if shorter_s is None:
                return None
            pause_s = shorter_s
        return now + pause_s if self._may_retry(now + pause_s) else None

    def _may_retry(self, at: float) -> bool:
        limit = self._session.retry.max_attempts
        return (limit is None or self._sent < limit) and (
            self._give_up_at is None or at < self._give_up_at
        )

    def _judge_plain(self, answer: AttemptAnswer, now: float) -> Action:
        del now
        own = self._key == OWN_HEADER
        if answer.code == "OK":
            label = answer.outcome if own else None
            return self._end(Action.RETURN, label or Outcome.EXECUTED, "")
        if own and answer.outcome is not None:
            return self._end(Action.RAISE, answer.outcome, answer.reason)
        return self._end(Action.RAISE, Outcome.UNKNOWN, "")

    def _out_of_time(self, code: str, now: float, *, own_status: bool = False) -> Action:
        if not own_status:
            self.code = code
        call = self.call
        if call is None:
            return self._end(Action.RAISE, self._unsent(bool(self._under_way)), "")
        if own_status or self._under_way:
            call.may_have_run = True
        # Whatever its attempts were told, a copy of one may still run.
        return self._raise(Outcome.UNKNOWN, "", now, resolvable=True)

    def _unsent(self, sent: bool = False) -> Outcome:
        """Return the outcome of a call that got no identity here.

        Others may use the key, too: the store was not asked whether one of them has run it.
        """
        return Outcome.UNKNOWN if sent or self._key is not None else Outcome.NOT_EXECUTED

    def _no_room(self, code: str) -> Action:
        self.code = code
        return self._end(Action.RAISE, self._unsent(), WindowExceeded.reason)

    def _raise(self, outcome: Outcome, reason: str, now: float, resolvable: bool) -> Action:
        call = self.call
        invariant(call is not None, "only an issued call is acknowledged")
        if resolvable:
            self._session.abandon(call, now)  # type: ignore[arg-type]
        elif outcome in (Outcome.EXECUTED, Outcome.REPLAYED):
            self._session.complete(call)  # type: ignore[arg-type]
        else:
            self._session.complete_unanswered(call)  # type: ignore[arg-type]
        return self._end(Action.RAISE, outcome, reason)

    def _end(self, action: Action, outcome: Outcome, reason: str) -> Action:
        self.done = True
        self.outcome, self.reason = outcome, reason
        self.wake_at = None
        return action


def _earliest(*times: float | None) -> float | None:
    return min((time for time in times if time is not None), default=None)
