"""The exchange of one call, as sync and aio share it: its flow, and who is told (DESIGN §3)."""

from __future__ import annotations

import contextvars
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import grpc

from _rifl_ground.owned_lock import OneByOne
from _rifl_ground.refusals import Outcome
from rifl._client.answers import (
    CANCELLED_TEXT,
    CLOSED_TEXT,
    CUT_OFF,
    REPLACED,
    FinalStatus,
    read_answer,
)
from rifl._client.errors import (
    ANOTHER_STORE,
    EXPIRED,
    CallError,
    Status,
    call_error,
)
from rifl._client.routing import Route
from rifl._client.state import LAG_S, ClientState
from rifl.core._calling.answer import AttemptAnswer
from rifl.core._calling.call_flow import Action, CallFlow
from rifl.core._calling.invocation import Invocation
from rifl.core._calling.issued_call import IssuedCall
from rifl.core._shared.codes import raised_code
from rifl.core._shared.errors import (
    BadHeader,
    NotDeduplicated,
    Overloaded,
    ReentrantCall,
    StoreMismatch,
    WindowExceeded,
)
from rifl.core._shared.identity import RpcId
from rifl.core._shared.observer import EndedCall, Observer

NO_SESSION = (
    "a key needs a named session, rifl.connect(..., session=...), or the idempotency-key header: "
    "on this channel the key would name another call after a lost lease"
)


class Exchange(ABC):
    """One call, from its first step to its end.

    A shell says how to send an attempt, set a timer and end; the flow decides what
    happens when. Events arrive on any thread. The thread that posts into an idle
    exchange handles them one at a time, without a lock held.
    """

    def __init__(
        self,
        state: ClientState,
        invocation: Invocation,
        call: IssuedCall | None = None,
    ) -> None:
        """``call``: where it has an identity already, under which the first attempt was sent."""
        self.state = state
        self.invocation = invocation
        self.status: Status | None = None
        self.reply: Any = None
        # What the caller is raised: an interceptor of the application may raise anything.
        self.error: Any = None
        self.flow = CallFlow(state.session, invocation, call)
        self._route = None
        if state.router is not None:
            self._route = Route(state.router, invocation.started_at)
        # Whether the caller, or the end of the channel, cancelled it.
        self.given_up = False
        self._ended = False
        # The caller's: in it each attempt is sent, and interceptors find whose call it is.
        self._context = contextvars.copy_context()
        self._last: Status | None = None
        # When attempts were sent, and where and when the last one that no server answered.
        self._sent_at: dict[int, float] = {}
        self._unreached: tuple[int, float] | None = None
        # The attempts that were cut.
        self._cut: set[int] = set()
        self._events: OneByOne[Callable[[], None]] = OneByOne()
        state.waiting.add(self)

    # What a shell does.

    @abstractmethod
    def launch(
        self, number: int, header: tuple[str, bytes] | None, timeout_s: float | None
    ) -> None:
        """Send an attempt; ``attempt_ended`` must report its end."""

    @abstractmethod
    def cancel_attempt(self, number: int) -> None:
        """Cancel an attempt if it is still in flight."""

    def cut_attempt(self, number: int) -> None:
        """Cancel an attempt that was not answered in its time; its end is still reported."""
        self.cancel_attempt(number)

    @abstractmethod
    def set_timer(self, at: float | None) -> None:
        """Have ``wake`` called at that time, instead of any time set before."""

    @abstractmethod
    def ended(self) -> None:
        """Tell the caller: ``reply`` and ``status``, or ``error``, are set."""

    # Events.

    def begin(self, fault: CallError | None = None) -> None:
        """Start with the flow's first step, or end with ``fault``: it cannot be sent."""
        if fault is not None:
            self.fail(fault)
            return
        try:
            self.post(lambda: self._take(lambda now: self.flow.start(now)))
        except BaseException:
            # A signal's, or the error of a call within another one: what was noted of it goes.
            with suppress(ReentrantCall):
                self.handle(lambda: self._give_up("interrupted"))
            raise

    def resume(
        self, sent_at: float, status: Status, fault: CallError | None = None, at: int | None = None
    ) -> None:
        """Start with the first attempt sent, ``at`` a target, and answered by ``status``."""
        if self._route is not None and at is not None:
            self._route.goes(1, at)
        with self.state.lock:
            self.flow.start(sent_at)
        if fault is not None:
            self.fail(fault)
            return
        self.attempt_ended(1, status, None)

    def attempt_ended(self, number: int, status: Status, reply: Any) -> None:
        """Take the end of an attempt; ``reply`` counts if its code is OK."""
        self.post(lambda: self._answered(number, status, reply))

    def wake(self) -> None:
        """Look again: see ``Waiter``."""
        self.post(self._woken)

    def refuse(self, status: Status, answer: AttemptAnswer) -> None:
        """End the call: there will be no lease (``Waiter``)."""
        self.post(lambda: self._refused(status, answer))

    def close(self) -> None:
        """End the call: the channel was closed (``Waiter``)."""
        self.post(lambda: self._give_up(CLOSED_TEXT))

    def give_up(self) -> None:
        """End the call: the caller cancelled it."""
        self.post(lambda: self._give_up(CANCELLED_TEXT))

    def fail(self, error: BaseException) -> None:
        """End the call with ``error``: code around the attempt raised it."""
        self.post(lambda: self._fail(error))

    def post(self, event: Callable[[], None]) -> None:
        """Handle an event now, or after the one being handled."""
        try:
            self._events.post(event, self.handle)
        except BaseException:
            # An interrupt's: no event is posted again for what it kept from being handled.
            with suppress(ReentrantCall):
                self._events.post(lambda: self._give_up("interrupted"), self.handle)
            raise

    def handle(self, event: Callable[[], None]) -> None:
        """Handle one event; what comes after the end is dropped."""
        if not self._ended:
            event()

    @property
    def ends_at(self) -> float | None:
        """When it waits no longer: see ``Waiter``."""
        return self.flow.ends_at

    @property
    def rpc_id(self) -> RpcId | None:
        """The call's identity, None while it has none."""
        call = self.flow.call
        return call.rpc_id if call is not None else None

    # Steps.

    def _woken(self) -> None:
        flow, route, state = self.flow, self._route, self.state
        under_way = flow.attempts_under_way
        target = 0 if route is None else route.next(under_way)
        if under_way:
            sent = {0 if route is None else route.at(number) for number in under_way}
            connected = all(state.connected(each) for each in sent)
        else:
            connected = self._unreached is None or not state.lost(*self._unreached)
        self._take(lambda now: flow.woken(now, target, connected=connected))

    def _take(self, step: Callable[[float], Action]) -> None:
        state, flow = self.state, self.flow
        if state.closed or state.forked:
            self._give_up(CLOSED_TEXT)
            return
        with state.lock:
            action = step(state.now())
            # Noted under the lock that found no room, so that no wake is missed.
            if action is Action.WINDOW:
                state.window_waiters[self] = None
            elif action is Action.LEASE:
                state.lease_waiters[self] = None
        if state.session.held:
            state.tell_held()
        if action is Action.SEND:
            call = flow.call
            number = call.attempt if call is not None else 1
            self._sent_at[number] = state.now()
            self.set_timer(flow.wake_at)
            header = state.header(call) if call is not None else None
            self._context.copy().run(self._send_attempt, number, header)
        elif action in (Action.RETURN, Action.RAISE):
            self._finish(action)
        else:
            self.set_timer(flow.wake_at)
            if action is Action.CUT:
                for number in flow.attempts_under_way:
                    self._cut.add(number)
                    self.cut_attempt(number)
            if action is Action.LEASE:
                state.ask_for(self, self._context)

    def _send_attempt(self, number: int, header: tuple[str, bytes] | None) -> None:
        flow = self.flow
        if self._route is None:
            self.launch(number, header, flow.attempt_timeout_s)
        else:
            with self._route.attempt(number, flow.attempts_under_way):
                self.launch(number, header, flow.attempt_timeout_s)

    def _answered(self, number: int, status: Status, reply: Any) -> None:
        status = self.state.as_lost(status)
        if number in self._cut and status.code() is grpc.StatusCode.CANCELLED:
            status = CUT_OFF
        self._last = status
        self.reply = reply
        answer = read_answer(status, self.rpc_id)
        self._unreached = None
        if answer.unreached:
            sent_at = self._sent_at.get(number, self.invocation.started_at)
            self._unreached = (0 if self._route is None else self._route.at(number), sent_at)
            if status is REPLACED or self.state.lost(*self._unreached):
                answer = answer._replace(unconnected=True)
        call, route = self.flow.call, self._route
        if route is not None and answer.reason and call is not None:
            if self.state.foreign(route.at(number), answer, call.lease):
                answer = answer._replace(foreign=True)
            elif answer.reason == Overloaded.reason:
                route.overloaded(number)
        if self.state.closed and answer.code != "OK":
            self._give_up(CLOSED_TEXT)
            return
        if self._route is not None and answer.code == "DEADLINE_EXCEEDED" and not answer.outcome:
            self._route.timed_out(number)
            if status is CUT_OFF and self.state.router is not None:
                # gRPC was told of a cancelled call, which says nothing of the server.
                self.state.router.lost()
        jitter = self.state.jitter()
        self._take(lambda now: self.flow.answered(number, answer, now, jitter))
        if self._unreached and not answer.unconnected and self.flow.wake_at is not None:
            self.set_timer(self.state.now() + LAG_S)
        if answer.reason:
            self.state.tell_losses()

    def _refused(self, status: Status, answer: AttemptAnswer) -> None:
        self._last = status
        self._take(lambda now: self.flow.lease_refused(answer, now))

    def _give_up(self, text: str) -> None:
        self.given_up = True
        with self.state.lock:
            self.flow.cancelled(self.state.now())
        self._last = FinalStatus(grpc.StatusCode.CANCELLED, text)
        self._finish(Action.RAISE)

    def _fail(self, error: BaseException) -> None:
        with self.state.lock:
            self.flow.cancelled(self.state.now())
        self._last = FinalStatus(grpc.StatusCode.INTERNAL, repr(error))
        if isinstance(error, CallError) and error.rpc_id is None:
            # The code that built it did not know the call.
            error.rpc_id, error.key = self.rpc_id, self.invocation.key or None
        self._finish(Action.RAISE, error)

    def _finish(self, action: Action, fault: BaseException | None = None) -> None:
        state, flow = self.state, self.flow
        state.waiting.discard(self)
        for number in flow.attempts_under_way:
            self.cancel_attempt(number)
        self.set_timer(None)
        if action is Action.RETURN:
            self.status = self._last
        else:
            self.status = self.error = self._build_error()
            if fault is not None:
                self.error = fault
                if isinstance(fault, CallError):
                    self.status = fault
        with state.lock:
            state.forget(self)
            # Whether or not this call made room: a wake too many does no harm.
            woken = state.next_waiters()
        state.wake(woken)
        if action is Action.RAISE and flow.outcome not in (Outcome.EXECUTED, Outcome.REPLAYED):
            state.call_failed()
        if state.observer is not None:
            self._tell(state.observer)
        self.ended()
        # Last: interrupted before that, it ends once more.
        self._ended = True

    def _tell(self, observer: Observer) -> None:
        flow = self.flow
        code: Any = self.status.code() if self.status is not None else grpc.StatusCode.UNKNOWN
        observer.call_ended(
            EndedCall(
                self.invocation.method,
                self.rpc_id,
                flow.attempts_sent,
                flow.outcome,
                flow.reason,
                code.name,
                self.state.now() - self.invocation.started_at,
            ),
            self.invocation.begun,
        )

    def _build_error(self) -> CallError:
        flow, last = self.flow, self._last
        call = flow.call
        details = (last.details() if last is not None else None) or ""
        code = last.code() if last is not None else grpc.StatusCode.UNKNOWN
        if flow.code and not (flow.code == "CANCELLED" and last is not None):
            if call is None and flow.code == "UNAVAILABLE" and self.state.lease_status is not None:
                last = self.state.lease_status
                code, details = last.code(), f"no client id: {last.details()}"
            else:
                if call is None and self.state.lease is None and self.state.lease_status:
                    details = details or self.state.lease_status.details() or ""
                code, details = grpc.StatusCode[flow.code], _explain(flow, details)
        elif code is grpc.StatusCode.OK:
            code = grpc.StatusCode.UNKNOWN
            details = "a server that does not deduplicate answered a later attempt"
        raised = code
        # What the caller cancelled, it does not take for a call to be repeated.
        # Nor does a key name another call when it is sent again.
        unrun = call is not None and call.key is not None and not call.may_have_run
        if call is not None and flow.code != "CANCELLED" and not unrun:
            name = raised_code(
                code.name,
                flow.outcome,
                flow.reason,
                attempts=flow.attempts_sent,
                keep_deadline_exceeded=self.state.settings.keep_deadline_exceeded,
            )
            raised = grpc.StatusCode[name]
        return call_error(
            raised,
            details,
            rpc_id=call.rpc_id if call is not None else None,
            outcome=flow.outcome,
            reason=flow.reason,
            status=last,
            original_code=code,
            # ``OWN_HEADER`` is none of rifl's.
            key=self.invocation.key or None,
        )


def _explain(flow: CallFlow, last_details: str) -> str:
    if flow.reason == NotDeduplicated.reason:
        return "the server does not deduplicate this method: a key means nothing to it"
    if flow.reason == BadHeader.reason:
        named = "a named session takes calls with a key only: see rifl.key"
        return NO_SESSION if flow.keyed else named
    if flow.reason == StoreMismatch.reason:
        return ANOTHER_STORE
    if flow.reason == WindowExceeded.reason:
        return "not sent: too many calls of this client are incomplete, and none ended in time"
    if flow.expired:
        return EXPIRED
    text = "Deadline Exceeded" if flow.code == "DEADLINE_EXCEEDED" else "gave up"
    sent = "" if flow.outcome is not Outcome.NOT_EXECUTED else ", not sent"
    return f"{text}{sent}; last attempt: {last_details}" if last_details else text + sent
