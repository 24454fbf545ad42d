"""Batched calls at the client: what goes in and comes out, and one batch's run."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import grpc

from _rifl_ground.refusals import Outcome
from rifl._client.answers import CLOSED, CUT_OFF, REPLACED, FinalStatus, read_answer
from rifl._client.errors import ANOTHER_STORE, EXPIRED, Status, agreeing, call_error
from rifl._client.exchange import NO_SESSION
from rifl._client.keys import as_key, key_error, take_key
from rifl._client.routing import Route, RoutedAttempt
from rifl._client.state import ClientState
from rifl._grpc.codes import status_code
from rifl._wire.envelope import (
    BATCH_KEY,
    BATCH_VALUE,
    ItemReply,
    Unreadable,
    encode_batch,
    item_bytes,
    parse_reply,
)
from rifl._wire.labels import RPC_INFO, rpc_info
from rifl.core._calling.answer import AttemptAnswer
from rifl.core._calling.batch_flow import BatchFlow
from rifl.core._calling.batch_rpc import BatchAction, BatchRpc, EndedItem
from rifl.core._calling.issued_call import IssuedCall
from rifl.core._shared.codes import raised_code
from rifl.core._shared.errors import Overloaded
from rifl.core._shared.identity import RpcId
from rifl.core._shared.observer import EndedCall
from rifl.core._shared.record import Metadata

_OK = grpc.StatusCode.OK
# The answer to an item of which there is nothing more to say, by its outcome.
_PLAIN = {outcome: AttemptAnswer("OK", outcome) for outcome in Outcome}
# Every item makes one: without the generated __new__.
_tuple: Any = tuple.__new__


class BatchItem(NamedTuple):
    """One call of a batch: its serialised request, and its key.

    ``key``, 1 to 255 bytes (text as UTF-8), is the caller's own name for the call, as
    ``rifl.key`` is for a single one. A named session takes calls with a key only; no other
    channel takes them. None gives the call a number of the channel's client id, as single
    calls have.
    """

    request: bytes
    key: str | bytes | None = None


class BatchResult(NamedTuple):
    """The end of one call of a batch.

    ``rpc_id`` is its identity, None if it never got one. ``response`` is the serialised
    answer, None if there is none. ``code``, ``details`` and ``trailing_metadata`` are the
    call's status. ``outcome`` tells whether it ran; after UNKNOWN, sending it again with
    the same key is safe. ``reason`` names a refusal of rifl's, and is empty for
    an answer of the handler's. ``code`` of a call that may have run is FAILED_PRECONDITION,
    as a single call's is; ``original_code`` is then the code it ended with, else None.
    """

    rpc_id: RpcId | None
    response: bytes | None
    code: grpc.StatusCode
    details: str = ""
    outcome: Outcome = Outcome.EXECUTED
    reason: str = ""
    trailing_metadata: Metadata = ()
    original_code: grpc.StatusCode | None = None

    @property
    def ok(self) -> bool:
        """Whether the call succeeded."""
        return self.code is grpc.StatusCode.OK

    def raise_for_status(self) -> None:
        """Raise the ``CallError`` that a single call would have raised, unless ``ok``."""
        if self.code is not grpc.StatusCode.OK:
            raise call_error(
                self.code,
                self.details,
                rpc_id=self.rpc_id,
                outcome=self.outcome,
                reason=self.reason,
                status=FinalStatus(self.code, self.details, (), self.trailing_metadata),
                original_code=self.original_code,
            )


class Send(NamedTuple):
    """One RPC to be sent; ``route`` is entered while it is, where there are several targets."""

    body: bytes
    metadata: tuple[tuple[str, Any], ...]
    timeout_s: float | None
    route: RoutedAttempt | None
    # When to ask ``BatchRun.overdue``.
    cut_at: float | None


class BatchPause(NamedTuple):
    """Wait to be woken, at most ``until`` (None: for as long as it takes)."""

    until: float | None


class BatchRun:
    """One batch of one client, between its flow and a shell that sends and waits.

    A shell calls ``next`` until it gives None; what it gives is a ``Send``, whose end is
    told by ``replied`` or ``failed``, or a ``BatchPause``, which ``woken`` ends. Then
    ``results``. One thread at a time, but for ``wake``, ``refuse`` and ``close``.
    """

    def __init__(
        self,
        state: ClientState,
        method: str,
        items: Iterable[BatchItem],
        timeout: float | None,
        metadata: Any,
        woken: Callable[[], None],
    ) -> None:
        state.check_usable()
        if take_key(metadata)[0] is not None:
            raise ValueError("the keys of a batch are its items': rifl.BatchItem(request, key)")
        items = list(items)
        requests = [item[0] for item in items]
        keys = [as_key(item[1]) for item in items]
        if state.settings.session_name is None and any(each is not None for each in keys):
            raise key_error(NO_SESSION)
        self._state = state
        self._requests = requests
        self._keys = keys
        self._invocation, metadata = state.invoked(method, metadata, timeout)
        self._metadata = (*metadata, (BATCH_KEY, BATCH_VALUE))
        self._flow = BatchFlow(
            state.session,
            self._invocation,
            [item_bytes(*item) for item in zip(requests, keys, strict=True)],
            keys,
            state.batch_limits,
        )
        self._route = None
        if state.router is not None:
            self._route = Route(state.router, self._invocation.started_at)
        self._context = contextvars.copy_context()
        self._number = 0
        # Where and when the last RPC was sent, if no server answered it.
        self._unreached: tuple[int, float] | None = None
        # The status of the last attempt that failed as a whole, for items that get no better one.
        self._last: Status | None = None
        self._woken = woken
        self._refusal: tuple[Status, AttemptAnswer] | None = None
        state.waiting.add(self)

    # See ``Waiter``.

    @property
    def ends_at(self) -> float | None:
        """When it waits no longer."""
        return self._flow.ends_at

    def wake(self) -> None:
        """Look again."""
        self._woken()

    def refuse(self, status: Status, answer: AttemptAnswer) -> None:
        """Wake the waiting batch: there will be no lease."""
        self._refusal = (status, answer)
        self._woken()

    def close(self) -> None:
        """Wake the waiting batch: the channel was closed."""
        self._woken()

    # For the shell.

    def next(self) -> Send | BatchPause | None:
        """Return what to do, None at the end."""
        state, flow = self._state, self._flow
        if state.closed or state.forked:
            self._last = CLOSED
            self.interrupted()
            return None
        connected = self._unreached is None or not state.lost(*self._unreached)
        with state.lock:
            state.forget(self)
            if self._refusal is not None:
                self._last, answer = self._refusal
                self._refusal = None
                flow.lease_refused(answer, self._last)
            target = 0 if self._route is None else self._route.next(())
            action = flow.step(state.now(), target, connected=connected)
            # Noted under the lock that found no room, so that no wake is missed.
            if action is BatchAction.WINDOW:
                state.window_waiters[self] = None
            elif action is BatchAction.LEASE:
                state.lease_waiters[self] = None
        if state.session.held:
            state.tell_held()
        if flow.rpc is not None:
            return self._send(flow.rpc)
        if action is BatchAction.DONE:
            return None
        if action is BatchAction.LEASE:
            state.ask_for(self, self._context)
        return BatchPause(flow.wake_at)

    def replied(self, reply: bytes) -> None:
        """Take an answer to the RPC that was sent."""
        state, flow = self._state, self._flow
        rpc = flow.rpc
        try:
            replies = parse_reply(reply, len(rpc.items))  # type: ignore[union-attr]
        except Unreadable as error:
            status = FinalStatus(grpc.StatusCode.UNKNOWN, str(error))
            self._take(lambda: flow.unreadable(status, state.now()))
            return
        answers: list[tuple[AttemptAnswer, Any]] = [
            (_PLAIN[outcome], response)
            for response, outcome in zip(replies.responses, replies.outcomes, strict=True)
        ]
        for at, other in replies.others.items():
            answers[at] = _answer(other, rpc.calls[at].rpc_id), other  # type: ignore[union-attr]
        self._take(lambda: flow.answered(answers, state.now(), state.jitter()))

    def failed(self, status: Status) -> None:
        """Handle an RPC that failed as a whole."""
        state, flow = self._state, self._flow
        rpc = flow.rpc
        status = state.as_lost(status)
        at = self._at()
        # A batch is refused in the name of its first item.
        answer = read_answer(status, None if rpc is None else rpc.calls[0].rpc_id)
        self._last = status
        if self._route is not None and answer.code == "DEADLINE_EXCEEDED" and not answer.outcome:
            self._route.timed_out(self._number)
            if status is CUT_OFF and state.router is not None:
                state.router.lost()
        if self._route is not None and answer.reason and rpc is not None:
            if state.foreign(at, answer, rpc.calls[0].lease):
                answer = answer._replace(foreign=True)
            elif answer.reason == Overloaded.reason:
                self._route.overloaded(self._number)
        sent_at = self._invocation.started_at if rpc is None else rpc.sent_at
        self._unreached = (at, sent_at) if answer.unreached else None
        if self._unreached and (status is REPLACED or state.lost(*self._unreached)):
            answer = answer._replace(unconnected=True)
        self._take(lambda: flow.refused(answer, status, state.now(), state.jitter()))

    def overdue(self) -> float | None:
        """Return None if the shell has to cancel the RPC in flight, else when to ask again.

        It is told as ``failed`` with ``CUT_OFF`` then.
        """
        state = self._state
        target = 0 if self._route is None else self._route.next((self._number,))
        connected = state.connected(self._at())
        with state.lock:
            at = self._flow.overdue(state.now(), target, connected=connected)
        if state.session.held:
            state.tell_held()
        return at

    def interrupted(self) -> None:
        """End what has not ended: the caller no longer waits."""
        self._take(lambda: self._flow.cancelled("CANCELLED", self._state.now()))

    def results(self) -> list[BatchResult]:
        """Return what became of each item, at the end."""
        flow = self._flow
        self._state.waiting.discard(self)
        results = [
            self._result(call, ended, attempts)  # type: ignore[arg-type]
            for call, ended, attempts in zip(flow.calls, flow.ended, flow.attempts, strict=True)
        ]
        if any(result.outcome in (Outcome.UNKNOWN, Outcome.NOT_EXECUTED) for result in results):
            self._state.call_failed()
        observer = self._state.observer
        if observer is not None:
            seconds = self._state.now() - self._invocation.started_at
            observer.batch_ended(
                [
                    EndedCall(
                        self._invocation.method,
                        result.rpc_id,
                        attempts,
                        result.outcome,
                        result.reason,
                        result.code.name,
                        seconds,
                    )
                    for result, attempts in zip(results, flow.attempts, strict=True)
                ],
                self._invocation.begun,
            )
        return results

    def _send(self, rpc: BatchRpc) -> Send:
        keys: list[bytes] = []
        if any(call.key is not None for call in rpc.calls):
            keys = [call.key or b"" for call in rpc.calls]
        seqs = [call.seq for call in rpc.calls if call.key is None]
        body = encode_batch([self._requests[at] for at in rpc.items], keys, seqs)
        self._number += 1
        route = None if self._route is None else self._route.attempt(self._number, ())
        header = self._state.batch_header(rpc)
        return Send(body, (*self._metadata, header), rpc.timeout_s, route, rpc.cut_at)

    def _at(self) -> int:
        return 0 if self._route is None else self._route.at(self._number)

    def _take(self, event: Callable[[], None]) -> None:
        state = self._state
        with state.lock:
            state.forget(self)
            event()
            # There may be room for many.
            woken = state.next_waiters(len(state.window_waiters))
        state.wake(woken)
        state.tell_losses()

    def _result(self, call: IssuedCall | None, ended: EndedItem, attempts: int) -> BatchResult:
        its = ended.answer
        rpc_id = None if call is None else call.rpc_id
        if ended.code and isinstance(its, ItemReply):
            # What it was refused with until time ran out.
            details = f"Deadline Exceeded; last refused: {its.record.details}"
            code = grpc.StatusCode[ended.code]
            result = BatchResult(rpc_id, None, code, details, ended.outcome, ended.reason)
            return result if ended.code == "CANCELLED" else self._raised(result, call, attempts)
        if isinstance(its, bytes):
            return _tuple(BatchResult, (rpc_id, its, _OK, "", ended.outcome, "", (), None))  # type: ignore[no-any-return]
        if isinstance(its, ItemReply):
            record = its.record
            return self._raised(
                BatchResult(
                    rpc_id,
                    record.response,
                    status_code(record.code),
                    record.details,
                    ended.outcome,
                    ended.reason or record.reason,
                    record.trailing_metadata,
                ),
                call,
                attempts,
            )
        status: Status | None = self._last if its is None else its
        code, details = grpc.StatusCode.UNKNOWN, ""
        trailing: Metadata = ()
        waited_for = self._state.lease_status if call is None and ended.code else None
        if status is None and waited_for is not None:
            details = f"no client id: {waited_for.details()}"
        if status is not None:
            code, details = status.code(), status.details() or ""
            trailing = tuple((key, value) for key, value in status.trailing_metadata() or ())
        if ended.code:
            code = grpc.StatusCode[ended.code]
            details = EXPIRED if self._invocation.expired else _explain(ended, details)
        result = BatchResult(rpc_id, None, code, details, ended.outcome, ended.reason, trailing)
        return result if ended.code == "CANCELLED" else self._raised(result, call, attempts)

    def _raised(self, result: BatchResult, call: IssuedCall | None, attempts: int) -> BatchResult:
        """Give a call that may have run the code that no retry policy repeats."""
        # A key sent again names the same call.
        if call is None or result.ok or (call.key is not None and not call.may_have_run):
            return result
        name = raised_code(
            result.code.name,
            result.outcome,
            result.reason,
            attempts=attempts,
            keep_deadline_exceeded=self._state.settings.keep_deadline_exceeded,
        )
        if name == result.code.name:
            return result
        code = grpc.StatusCode[name]
        trailing = agreeing(result.trailing_metadata, code, result.details)
        return result._replace(code=code, original_code=result.code, trailing_metadata=trailing)


def _answer(reply: ItemReply, rpc_id: RpcId) -> AttemptAnswer:
    record = reply.record
    if not record.code:
        return AttemptAnswer("OK", reply.outcome)
    code = status_code(record.code)
    if reply.info.get(RPC_INFO, text := rpc_info(rpc_id)) != text:
        # See ``read_answer``.
        return AttemptAnswer(code.name)
    return AttemptAnswer(code.name, reply.outcome, record.reason, reply.info, reply.retry_after_s)


def _explain(ended: EndedItem, last: str) -> str:
    texts = {
        "NOT_DEDUPLICATED": "the server does not deduplicate this method: no batch of it is safe",
        "BAD_HEADER": "a named session takes calls with a key only",
        "NOT_WRAPPED": "the server that answered does not seem to deduplicate",
        "STORE_MISMATCH": ANOTHER_STORE,
        "WINDOW_EXCEEDED": "too many calls of this client are incomplete",
    }
    text = texts.get(ended.reason)
    if text is None:
        text = "Deadline Exceeded" if ended.code == "DEADLINE_EXCEEDED" else "gave up"
    return f"{text}; last attempt: {last}" if last else text
