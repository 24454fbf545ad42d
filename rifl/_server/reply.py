"""Replies: what every arrival is told, alone or in a batch, and who hears of it (DESIGN §3).

A ``Reply`` is decided once, from an answer or from the refusal in its place; sync and aio
servers, unary calls, streams and batches differ only in how it is put on the wire. ``Replies``
ends arrivals by it: what is logged and observed is the same for all of them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from _rifl_ground.log import get_logger
from _rifl_ground.refusals import Outcome
from _rifl_ground.seldom import SeldomLog
from rifl._grpc.codes import STATUS_CODES
from rifl._grpc.status import DETAILS_KEY, details_bin
from rifl._wire.envelope import NO_INFO, ItemReply, encode_executed, encode_reply
from rifl._wire.envelope import is_bare as is_bare_item
from rifl._wire.labels import OUTCOME_KEY, RPC_INFO, rpc_info
from rifl.core._serving.answer import Answer, refusal_record
from rifl.core._shared import errors
from rifl.core._shared.call import Call
from rifl.core._shared.errors import (
    BatchTooLarge,
    Draining,
    LeaseExpired,
    NotLeader,
    NotYours,
    Overloaded,
    RiflError,
    SessionClosed,
    StoreMismatch,
    StoreUnavailable,
)
from rifl.core._shared.observer import Observers, ServedCall
from rifl.core._shared.reasons import REASONS, error_class, told_outcome
from rifl.core._shared.record import CompletionRecord, Metadata

_log = get_logger("rifl.server")

# These are mistakes of an application, logged once in a while; the others are normal
# under load, faults and restarts.
_BUGS = frozenset(
    error.reason
    for error in (
        errors.BadHeader,
        errors.NotRecorded,
        errors.PayloadMismatch,
        errors.ResponseTooLarge,
        errors.StaleRpc,
        errors.StoreMismatch,
    )
)


class RefusalLog:
    """Writes a warning for refusals that signal a bug, and a debug event for all.

    And a warning with the whole text of those of which callers are told less, or nothing of
    their cause. At most one warning in ten seconds for each reason, with the number of those
    left out, so that a peer that sends garbage cannot fill the disk. Thread-safe.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._seldom = SeldomLog(_log, clock)

    def refused(self, method: str, call: Call | None, error: RiflError) -> None:
        """Note one refusal."""
        identity: dict[str, Any] = {"method": method, "reason": error.reason}
        if call is not None:
            identity["rpc_id"] = str(call.rpc_id)
            identity["attempt"] = call.attempt
        _log.debug("refused", **identity, error=str(error))
        # A later attempt of an acknowledged call arrived late: no caller waits for it.
        late = error.reason == errors.StaleRpc.reason and call is not None and call.attempt > 1
        if error.reason in _BUGS and not late:
            self._seldom.warn("refused_a_mistake", error.reason, **identity, error=str(error))
        elif error.reason == Overloaded.reason:
            self._seldom.warn("overloaded", error.reason, method=method, error=str(error))
        else:
            self._seldom.cause(error, **identity)

    def cancelled(self, call: Call) -> None:
        """Note one handler that was cancelled."""
        identity = {"method": call.method, "rpc_id": str(call.rpc_id)}
        self._seldom.warn("handler_cancelled", "CANCELLED", **identity)

    def unheard(self, call: Call) -> None:
        """Note one handler that runs on for no caller."""
        identity = {"method": call.method, "rpc_id": str(call.rpc_id)}
        self._seldom.warn("handler_unheard", "UNHEARD", **identity)


_OK = 0
# Said of the client or of the server, not of the call: told once if told of all of a batch.
_OF_ALL = (
    LeaseExpired,
    NotYours,
    SessionClosed,
    StoreMismatch,
    Draining,
    Overloaded,
    StoreUnavailable,
    NotLeader,
)
# What an item's answer takes beside what it says, roughly.
_ITEM_BYTES = 32


class SentReply(NamedTuple):
    """What is sent: metadata, and either a response or a status with none."""

    code: int
    details: str
    initial_metadata: Metadata
    trailing_metadata: Metadata
    response: bytes | None


class Reply:
    """What one arrival is told: an answer, or the refusal in its place.

    ``call`` is None where the header was bad; a refusal then speaks of the call that it was
    raised for, if that had an identity.
    """

    __slots__ = ("_call", "_info", "_refused", "_retry_after_s", "outcome", "record")

    def __init__(self, call: Call | None, told: Answer | RiflError) -> None:
        self._info: Mapping[str, str] = NO_INFO
        self._retry_after_s: float | None = None
        self._refused = isinstance(told, RiflError)
        if isinstance(told, RiflError):
            call = told.arrival if call is None else call
            # Others may have sent what has the same key.
            self.outcome = told_outcome(told, keyed=call is not None and call.key is not None)
            self.record = refusal_record(told)._replace(outcome=self.outcome)
            self._info = _refusal_info(call, told)
            # When asking again may help.
            self._retry_after_s = REASONS[told.reason].retry_after_s
        else:
            self.record, self.outcome = told
        self._call = call

    def status(self) -> SentReply:
        """Return what is sent where the arrival is a call of its own.

        Everything says its outcome but a first attempt's success that was executed;
        an error does always, since gRPC and proxies make errors of their own that look
        the same.
        """
        record, call = self.record, self._call
        trailing = record.trailing_metadata
        if record.reason:
            info = self._info if self._refused else _speaks_of(call)
            code = STATUS_CODES[record.code]
            details = details_bin(code, record.reason, record.details, info, self._retry_after_s)
            trailing = (*trailing, (DETAILS_KEY, details))
        later = call is not None and call.attempt > 1
        if later or self.outcome is not Outcome.EXECUTED or record.code != _OK:
            trailing = (*trailing, (OUTCOME_KEY, self.outcome.value))
        if call is not None and call.marks and not self._refused:
            trailing = (*trailing, *call.marks)
        return SentReply(
            record.code, record.details, record.initial_metadata, trailing, record.response
        )

    def item(self) -> ItemReply:
        """Return what a batch's answer says of the arrival."""
        return ItemReply(self.record, self.outcome, self._retry_after_s, self._info)

    def served(self, method: str, call: Call | None, began: float) -> ServedCall:
        """Return what an observer is told of it."""
        record, seconds = self.record, time.perf_counter() - began
        return ServedCall(method, call, self.outcome, record.reason, record.code, seconds)


_causes = SeldomLog(_log)


def refused(error: RiflError) -> SentReply:
    """Return what a request of a service of rifl's own is refused with."""
    _causes.cause(error)
    return Reply(None, error).status()


class Replies:
    """Ends every arrival of a server: logged, observed, and ready to be sent. Thread-safe.

    An exception of the handler's is logged here and goes no further: what was recorded of
    it is the answer, for this arrival and all later ones. Raised through the interceptors
    outside, it were theirs to make another answer of, which no replay could give again.
    """

    __slots__ = ("_observer", "_refusals")

    def __init__(self, observer: Observers | None) -> None:
        self._observer = observer
        self._refusals = RefusalLog()

    @property
    def observed(self) -> bool:
        """Whether anybody watches."""
        return self._observer is not None

    def begin(self) -> float:
        """Return when an arrival begins, for the observer."""
        return 0.0 if self._observer is None else time.perf_counter()

    def status(
        self,
        method: str,
        call: Call | None,
        told: Answer | RiflError,
        began: float,
        raised: Sequence[BaseException] = (),
    ) -> SentReply:
        """End an arrival that is a call of its own; ``call`` is None where its header is bad."""
        if raised:
            _log_raised("handler_raised", method, call, raised[0])
        self._note_refusal(method, call, told)
        reply = Reply(call, told)
        if self._observer is not None:
            self._observer.call_served(reply.served(method, call, began))
        return reply.status()

    def envelope(
        self,
        method: str,
        calls: Sequence[Call],
        answers: Sequence[Answer | Exception],
        began: float,
        raised: Sequence[tuple[Call, BaseException]],
    ) -> bytes:
        """End the items of a batch; raises the one refusal that is every item's.

        Of the handlers that raised the first is logged, with the number of them.
        """
        if raised:
            call, error = raised[0]
            _log_raised("batched_handlers_raised", method, call, error, raised=len(raised))
        executed = _all_executed(answers)
        told: list[tuple[Call, Answer | RiflError]] = [
            (call, answer)
            for call, answer in zip(calls, answers, strict=True)
            if isinstance(answer, Answer | RiflError)
        ]
        if executed is None:
            for item, ended in told:
                self._note_refusal(method, item, ended)
        if self._observer is not None:
            self._observer.batch_served(
                [Reply(item, ended).served(method, item, began) for item, ended in told]
            )
        first = answers[0]
        if isinstance(first, _OF_ALL) and all(type(other) is type(first) for other in answers):
            raise first
        for answer in answers:
            if not isinstance(answer, Answer | RiflError):
                # As for a single call: gRPC logs it, and the caller asks again.
                raise answer
        left = calls[0].max_response_bytes
        if executed is not None and sum(map(len, executed)) + _ITEM_BYTES * len(executed) <= left:
            return encode_executed(executed)
        return encode_reply(list(_fitting(told, left)))

    def cancelled(self, call: Call) -> None:
        """Say that a handler was cancelled, as no caller waited for it."""
        self._refusals.cancelled(call)
        if self._observer is not None:
            self._observer.handler_cancelled(call.method)

    def unheard(self, call: Call) -> None:
        """Say that a handler runs on, though no caller waits for it."""
        self._refusals.unheard(call)

    def batch_status(
        self, method: str, calls: Sequence[Call], error: RiflError, began: float
    ) -> SentReply:
        """End a batch that is refused as a whole, before its ``calls`` were read or after."""
        if not calls:
            return self.status(method, None, error, began)
        # What refuses all items alike was told of each of them.
        return Reply(calls[0], error).status()

    def _note_refusal(self, method: str, call: Call | None, told: Answer | RiflError) -> None:
        """Log a refusal, and an answer that is a rifl error when it is given first."""
        if isinstance(told, RiflError):
            self._refusals.refused(method, call, told)
        elif told.record.reason and told.outcome is not Outcome.REPLAYED:
            error = error_class(told.record.reason)
            if error is not None:
                self._refusals.refused(method, call, error(told.record.details))


def is_bare(record: CompletionRecord, call: Call) -> bool:
    """Whether an executed call's answer is its response and nothing else, as most are.

    Trailing metadata set from Python is expensive: rifl adds none to an executed first
    attempt's success.
    """
    # Code, details and metadata, by position: half the cost.
    return call.attempt == 1 and not (
        record[0] or record[1] or record[3] or record[4] or call.marks
    )


def _speaks_of(call: Call | None) -> dict[str, str]:
    """Return what binds a label to one identity: forwarded to another caller, it is ignored."""
    return {} if call is None else {RPC_INFO: rpc_info(call.rpc_id)}


def _refusal_info(call: Call | None, error: RiflError) -> dict[str, str]:
    """Return what an ErrorInfo says beside the reason."""
    info = _speaks_of(call)
    if isinstance(error, LeaseExpired) and call is not None and call.retried_by_grpc:
        info["previous_attempts"] = "true"
    if isinstance(error, NotLeader) and error.leader:
        info["leader"] = error.leader
    if store := error.store or (0 if call is None else call.store):
        info["store"] = f"{store:016x}"
    return info


def _all_executed(answers: Sequence[Answer | Exception]) -> list[bytes] | None:
    """Return the responses if all items were executed, with no more to say of any."""
    responses: list[bytes] = []
    for answer in answers:
        if type(answer) is not Answer:
            return None
        record, outcome = answer
        if outcome is not Outcome.EXECUTED or not is_bare_item(record):
            return None
        responses.append(record.response)  # type: ignore[arg-type]  # a bare one has one
    return responses


def _fitting(told: Sequence[tuple[Call, Answer | RiflError]], left: int) -> Iterator[ItemReply]:
    """Give the items' replies that fit one message; the others are asked for again."""
    for call, answer in told:
        reply = Reply(call, answer).item()
        size = reply.record.size + _ITEM_BYTES
        if size <= left:
            left -= size
        else:
            # It is recorded: asked for again, in a smaller batch, it fits.
            error = BatchTooLarge("the answers do not fit one message")
            reply = Reply(call, error).item()._replace(outcome=Outcome.UNKNOWN)
        yield reply


def _log_raised(
    event: str, method: str, call: Call | None, error: BaseException, **more: int
) -> None:
    """Log an exception of a handler's, as gRPC would have."""
    if call is not None and not isinstance(error, asyncio.CancelledError):
        _log.error(event, method=method, rpc_id=str(call.rpc_id), exc_info=error, **more)
