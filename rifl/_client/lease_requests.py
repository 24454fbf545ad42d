"""Requests of a client for its lease: which one is due, and what its answer means (DESIGN §5).

The threads' keeper, the event loop's and the simulator's send what ``next_request`` gives, one
at a time, and tell ``replied`` or ``failed`` of it.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import grpc

from _rifl_ground.refusals import Outcome
from lease_server.v1 import lease_server_pb2 as pb
from rifl._client.answers import NO_STATUS, FinalStatus, read_answer
from rifl._client.errors import CallError, Status, call_error
from rifl._client.session_secret import shown
from rifl._client.shared_renewals import Companion, Renewing, settle
from rifl._client.state import ClientState
from rifl._grpc.codes import SENT_SINGLY
from rifl.core._calling.answer import AttemptAnswer
from rifl.core._calling.client_lease import ClientLease
from rifl.core._calling.client_session import LeaseStep
from rifl.core._calling.one_store import Trial
from rifl.core._calling.silence import SilenceCheck, TargetWatch
from rifl.core._shared.call import MAX_RANGES, pairs_from_ranges
from rifl.core._shared.errors import NotDeduplicated, StoreMismatch

# One request of the lease server's; a failed one is repeated.
LEASE_TIMEOUT_S = 5.0
# Of all leases that one request renews: a server counts the numbers before it parses them.
_RANGES_AT_ONCE = 1024
# What a request ends with that got no answer in its time.
_NO_ANSWER = (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)
REPLIES: dict[str, Any] = {
    "Grant": pb.GrantReply,
    "OpenSession": pb.OpenSessionReply,
    "Renew": pb.RenewReply,
}


class LeaseRequest(NamedTuple):
    """One request: the lease service's method, the message, and how long it may take.

    ``lease`` is the one that is renewed, None where one is asked for. ``streamed``: by a
    message on the heartbeat stream, where there is one. ``companions``: what it renews, too.
    ``probes``: it asks a connection for a sign of life, the current target's or that of
    ``target``, which is then used in turn if it says *yes*.
    """

    method: str
    message: Any
    timeout_s: float
    sent_at: float
    lease: ClientLease | None = None
    streamed: bool = False
    companions: Sequence[Companion] = ()
    probes: bool = False
    target: int | None = None


class TrialRequest(NamedTuple):
    """A renewal at another target than the current one: is it over the lease's store?"""

    target: int
    message: Any
    timeout_s: float
    lease: ClientLease


def next_request(state: ClientState) -> LeaseRequest | float | None:
    """Return the request that is due, else when to look again, None: when woken."""
    step, at = state.lease_step()
    lease = state.session.lease
    now = state.now()
    if step is LeaseStep.WAIT:
        return _asked_of_a_target(state, now) or _earliest_look(state, now, at)
    if step is LeaseStep.RENEW and lease is not None:
        timeout_s = min(LEASE_TIMEOUT_S, lease.term_s / 3)
        companions: Sequence[Companion] = ()
        if state.renewals is not None:
            with state.lock:
                state.session.asking(lease, now + timeout_s)
            companions = state.renewals.companions(state, lease, now, now + timeout_s)
        ranges = min(MAX_RANGES, _RANGES_AT_ONCE // (1 + len(companions)))
        message: Any = _renewal(state, lease, now, ranges)
        message.also.extend(
            _renewal(companion.state(), companion.lease, now, ranges) for companion in companions
        )
        return LeaseRequest("Renew", message, timeout_s, now, lease, lease.streams, companions)
    if step is LeaseStep.PROBE and lease is not None and state.watch is not None:
        timeout_s = min(state.watch.silence_s, lease.term_s / 3)
        message = _renewal(state, lease, now, MAX_RANGES)
        return LeaseRequest("Renew", message, timeout_s, now, lease, probes=True)
    if step in (LeaseStep.RENEW, LeaseStep.PROBE):
        # Lost in between.
        return now
    settings = state.settings
    if settings.session_name is None:
        return LeaseRequest("Grant", pb.GrantRequest(), LEASE_TIMEOUT_S, now)
    message = pb.OpenSessionRequest(
        name=settings.session_name,
        retention_ms=int((settings.session_retention_s or 0.0) * 1000),
        writer=settings.session_writer,
        **shown(settings.session_secrets),
    )
    return LeaseRequest("OpenSession", message, LEASE_TIMEOUT_S, now)


def replied(state: ClientState, request: LeaseRequest, reply: Any) -> None:
    """Take the answer to a request."""
    if request.target is not None and request.lease is not None:
        if (watch := state.watches.get(request.target)) is not None:
            watch.tried(state.now(), in_vain=False)
        tried(state, request.target, request.lease, reply)
        return
    if request.lease is None:
        state.granted(reply, request.sent_at)
    elif reply.refused == StoreMismatch.reason and _foreign(state, request, None):
        with state.lock:
            state.session.lease_failed(state.now(), state.jitter(), soon=True)
    else:
        state.renewed(request.lease, reply, request.sent_at)
        settle(request.companions, reply.also, request.sent_at)
    if request.probes and state.watch is not None:
        state.watch.tried(state.now(), in_vain=False)


def failed(state: ClientState, request: LeaseRequest, status: Status) -> None:
    """Take the error of a request."""
    unsent(request)
    lease = request.lease
    if lease is None:
        state.grant_failed(status)
        return
    if request.target is not None:
        tried(state, request.target, lease, None, status)
        return
    if request.probes and not says_something(status):
        # Whether there is a lease is for the renewals to find.
        with state.lock:
            state.session.lease_failed(state.now(), state.jitter(), soon=True)
        return
    if request.streamed and status.code() in SENT_SINGLY:
        # There is no heartbeat stream for us: unary calls renew as well.
        lease.streams = False
    soon = request.streamed and not lease.streams
    if _foreign(state, request, status):
        with state.lock:
            state.session.lease_failed(state.now(), state.jitter(), soon=True)
        return
    state.renewal_failed(lease, status, soon=soon)


def earliest(due: float | None, look_at: float | None) -> float | None:
    """Return when the keeper looks again; None: when woken."""
    return min((at for at in (due, look_at) if at is not None), default=None)


def check_of(
    state: ClientState, request: LeaseRequest, status: Status | None
) -> SilenceCheck | None:
    """Return how to check a connection on which a request ended so; None: it is not silent.

    ``status``: None where the heartbeat stream said nothing.
    """
    if state.watch is None or state.closed:
        return None
    if status is not None and status.code() not in _NO_ANSWER:
        return None
    watch = state.watch if request.target is None else _watch(state, request.target)
    return watch.unanswered(state.now(), request.timeout_s, renewing=request.lease is not None)


def says_something(status: Status) -> bool:
    """Whether an error is an answer, of a server or of something on the way to it."""
    return status.code() not in (*_NO_ANSWER, grpc.StatusCode.UNAVAILABLE)


def unsent(request: LeaseRequest) -> None:
    """Settle a request that will have no answer: its companions ask elsewhere."""
    settle(request.companions, (), request.sent_at)


def broken(state: ClientState, request: LeaseRequest, error: BaseException) -> None:
    """Handle what other code raised in a request, such as an interceptor beneath.

    It is repeated, as after any error: the next one may succeed.
    """
    text = f"the lease server was not asked: {type(error).__name__}: {error}"
    failed(state, request, FinalStatus(grpc.StatusCode.UNKNOWN, text))


# Targets over one store (DESIGN §5).


def due_trials(state: ClientState) -> list[TrialRequest]:
    """Take the trials that are due, which may all be sent at once."""
    router, lease, now = state.router, state.session.lease, state.now()
    if router is None or lease is None or state.closed or not state.session.usable(now):
        return []
    # What does not answer at all is asked as a silent connection is, if connections are watched.
    silent = None if state.watch is None else False
    timeout_s = min(LEASE_TIMEOUT_S, lease.term_s / 3)
    return [
        TrialRequest(target, _renewal(None, lease, now, 0), timeout_s, lease)
        for target in router.due(state.calls_made(), silent=silent)
    ]


def tried(
    state: ClientState, target: int, lease: ClientLease, reply: Any, status: Status = NO_STATUS
) -> None:
    """Take the end of a trial, which says nothing of the lease: its reply, or its error."""
    router = state.router
    if router is None or state.closed or lease is not state.session.lease:
        return
    if reply is not None:
        # What knows no leases may answer all the same, with what it was sent.
        yes = reply.client_id == lease.client_id and reply.term_ms and not reply.refused
        router.tried(target, Trial.YES if yes else Trial.REFUSED, reply.refused)
        return
    answer = read_answer(status)
    # What was not sent, as the application gave no token, says nothing of the target.
    not_sent = isinstance(status, CallError)
    found = Trial.FAILED if answer.transient or not_sent else Trial.REFUSED
    if status.code() in _NO_ANSWER:
        found = Trial.SILENT
    router.tried(target, found, answer.reason or answer.code)


def _asked_of_a_target(state: ClientState, now: float) -> LeaseRequest | None:
    """Return the request for a sign of life of a target, if one is due.

    Of one that takes calls in turn, and does not answer them; or that did not answer a trial.
    """
    router, lease = state.router, state.session.lease
    if router is None or lease is None or state.watch is None or now >= lease.expires_at:
        return None
    silent = [each for each in state.in_turn if (at := _look(state, each, now)) and now >= at]
    found = silent[:1] or router.due(state.calls_made(), silent=True, most=1)
    if not found:
        return None
    timeout_s = min(state.watch.silence_s, lease.term_s / 3)
    return LeaseRequest(
        "Renew", _renewal(None, lease, now, 0), timeout_s, now, lease, probes=True, target=found[0]
    )


def _earliest_look(state: ClientState, now: float, at: float | None) -> float | None:
    if state.watch is None or not state.in_turn:
        return at
    look_at = now + state.watch.silence_s / 2
    for each in state.in_turn:
        look_at = min(look_at, _look(state, each, now) or look_at)
    return earliest(look_at, at)


def _look(state: ClientState, target: int, now: float) -> float | None:
    awaited = state.router.awaited[target]  # type: ignore[union-attr]
    # Other threads change it: a copy is one step.
    oldest = next(iter(list(awaited.calls)), None)
    return _watch(state, target).look(now, oldest, awaited.answers)


def _watch(state: ClientState, target: int) -> TargetWatch:
    found = state.watches.get(target)
    if found is None:
        found = state.watches[target] = TargetWatch(state.watch.silence_s)  # type: ignore[union-attr]
    return found


def _foreign(state: ClientState, request: LeaseRequest, status: Status | None) -> bool:
    """Whether the current target is over another store than the others; ``status``: its refusal."""
    if request.lease is None:
        return False
    answer = (
        AttemptAnswer("FAILED_PRECONDITION", None, StoreMismatch.reason)
        if status is None
        else read_answer(status)
    )
    return state.foreign(state.target, answer, request.lease)


def _renewal(
    state: Renewing | None, lease: ClientLease, now: float, ranges: int
) -> pb.RenewRequest:
    """Build the renewal of one lease; ``state``: its client's, None to acknowledge nothing."""
    message = pb.RenewRequest(client_id=lease.client_id, token=lease.token, store=lease.store)
    if state is not None:
        with state.lock:
            first, completed = state.session.renewal_acknowledges(lease, now, ranges)
        if first > 1 or completed:
            message.first_incomplete = first
            message.completed.extend(pairs_from_ranges(first, completed))
    return message


class LeaseWaiter:
    """Waits for a lease without a call; see ``Waiter``. ``woken`` ends the shell's wait."""

    def __init__(
        self, state: ClientState, timeout_s: float | None, woken: Callable[[], None]
    ) -> None:
        state.check_usable()
        if timeout_s is None:
            timeout_s = state.settings.retry.max_elapsed_s
        self.timeout_s = timeout_s
        self.ends_at = None if timeout_s is None else state.now() + timeout_s
        self._state = state
        self._woken = woken
        self._refused: tuple[Status, AttemptAnswer] | None = None

    def begin(self) -> bool:
        """Wait from now on, unless there is a usable lease: return whether to wait."""
        state = self._state
        with state.lock:
            if state.session.usable(state.now()):
                return False
            state.lease_waiters[self] = None
        state.ask_for(self, contextvars.copy_context())
        return True

    def wake(self) -> None:
        """Look again."""
        self._woken()

    def refuse(self, status: Status, answer: AttemptAnswer) -> None:
        """Wake the waiting caller: there will be no lease."""
        self._refused = (status, answer)
        self._woken()

    def close(self) -> None:
        """Wake the waiting caller: the channel was closed."""
        self._woken()

    def forget(self) -> None:
        """Wait no longer."""
        state = self._state
        with state.lock:
            state.forget(self)
            usable = state.session.usable(state.now())
        if not usable:
            state.call_failed()

    def check(self, *, woken: bool) -> None:
        """Raise what the wait ended with, unless it was a lease; not ``woken``: by its time."""
        state = self._state
        state.check_usable()
        if self._refused is not None:
            raise _refusal(*self._refused)
        if not woken:
            status = state.lease_status
            raise call_error(
                grpc.StatusCode.DEADLINE_EXCEEDED,
                f"no client id: {status.details() if status is not None else 'no answer'}",
                rpc_id=None,
                outcome=Outcome.NOT_EXECUTED,
            )


def _refusal(status: Status, answer: AttemptAnswer) -> Exception:
    return call_error(
        status.code(),
        status.details(),
        rpc_id=None,
        outcome=Outcome.NOT_EXECUTED,
        reason=answer.reason or (NotDeduplicated.reason if answer.code == "UNIMPLEMENTED" else ""),
        status=status,
    )
