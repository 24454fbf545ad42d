"""Everything rifl refuses or cannot tell, one class for each reason (DESIGN §3).

Those that the lease service raises too are ``_rifl_ground.refusals``'s.

::

    RiflError
     ├─ BadHeader          PayloadMismatch    StaleRpc          NotYours
     ├─ LeaseExpired       SessionClosed      WindowExceeded    InProgress
     ├─ OutcomeUnknown     NotExecuted        NotLeader         Draining
     ├─ StoreUnavailable   Deposed            RecordPending     ResponseTooLarge
     ├─ BatchTooLarge      NotRecorded        NotDeduplicated   ForkedProcess
     ├─ NotWrapped         StoreMismatch      RequestTooLarge   AnswerLost
     └─ ReentrantCall

Each class carries the ``reason`` of the wire's ErrorInfo, the ``code_name`` of its
gRPC status and the ``outcome``: whether the call can have run. Instances
pickle. The client raises subclasses of these that are ``grpc.RpcError`` too.
"""

from __future__ import annotations

from _rifl_ground.refusals import (
    BadHeader,
    ForkedProcess,
    LeaseExpired,
    NotLeader,
    NotYours,
    Outcome,
    RiflError,
    SessionClosed,
    StoreMismatch,
    StoreUnavailable,
)

__all__ = [
    "AnswerLost",
    "BadHeader",
    "BatchTooLarge",
    "Deposed",
    "Draining",
    "ForkedProcess",
    "InProgress",
    "LeaseExpired",
    "NotDeduplicated",
    "NotExecuted",
    "NotLeader",
    "NotRecorded",
    "NotWrapped",
    "NotYours",
    "OutcomeUnknown",
    "PayloadMismatch",
    "RecordPending",
    "ReentrantCall",
    "RequestTooLarge",
    "ResponseTooLarge",
    "RiflError",
    "SessionClosed",
    "StaleRpc",
    "StoreMismatch",
    "StoreUnavailable",
    "WindowExceeded",
]


class PayloadMismatch(RiflError):
    """The identity belongs to a call with another method or payload."""

    reason = "PAYLOAD_MISMATCH"
    code_name = "INVALID_ARGUMENT"
    outcome = Outcome.NOT_EXECUTED
    of_the_key = True


class StaleRpc(RiflError):
    """The client acknowledged this identity before: a bug in the caller.

    The identity's first call may have run; what is refused is this one.
    """

    reason = "STALE_RPC"
    code_name = "FAILED_PRECONDITION"
    outcome = Outcome.UNKNOWN


class WindowExceeded(RiflError):
    """Too many calls are unacknowledged. This one was not begun."""

    reason = "WINDOW_EXCEEDED"
    code_name = "RESOURCE_EXHAUSTED"
    outcome = Outcome.NOT_EXECUTED
    of_the_key = True


class InProgress(RiflError):
    """The first arrival of this call still runs; ask again."""

    reason = "IN_PROGRESS"
    code_name = "ABORTED"
    outcome = Outcome.UNKNOWN


class OutcomeUnknown(RiflError):
    """A crash took the outcome of a plain method's call; final."""

    reason = "OUTCOME_UNKNOWN"
    code_name = "ABORTED"
    outcome = Outcome.UNKNOWN


class NotExecuted(RiflError):
    """The call was resolved before it arrived, as not executed; final."""

    reason = "NOT_EXECUTED"
    code_name = "ABORTED"
    outcome = Outcome.NOT_EXECUTED
    of_the_key = True


class Draining(RiflError):
    """The server is about to stop and begins no new calls."""

    reason = "DRAINING"
    code_name = "UNAVAILABLE"
    outcome = Outcome.NOT_EXECUTED


class Deposed(RiflError):
    """The leader lost its leadership with the call in flight."""

    reason = "DEPOSED"
    code_name = "ABORTED"
    outcome = Outcome.UNKNOWN


class RecordPending(RiflError):
    """The handler ran, but its record is not durable yet; it is being retried."""

    reason = "RECORD_PENDING"
    code_name = "ABORTED"
    outcome = Outcome.UNKNOWN


class ResponseTooLarge(RiflError):
    """The handler ran; its answer exceeds a limit. This error is what is recorded."""

    reason = "RESPONSE_TOO_LARGE"
    code_name = "RESOURCE_EXHAUSTED"
    outcome = Outcome.EXECUTED


class AnswerLost(RiflError):
    """The call ran, as an operator found out, and its answer is lost. This is what is recorded."""

    reason = "ANSWER_LOST"
    code_name = "FAILED_PRECONDITION"
    outcome = Outcome.EXECUTED


class RequestTooLarge(RiflError):
    """The request is longer than what the group's log holds; nothing ran."""

    reason = "REQUEST_TOO_LARGE"
    code_name = "RESOURCE_EXHAUSTED"
    outcome = Outcome.NOT_EXECUTED


class BatchTooLarge(RiflError):
    """The batch exceeds its bounds in count or bytes; split it."""

    reason = "BATCH_TOO_LARGE"
    code_name = "RESOURCE_EXHAUSTED"
    outcome = Outcome.NOT_EXECUTED


class NotRecorded(RiflError):
    """An atomic method's handler returned without a committed record; final.

    A bug in the handler: it did not call ``rifl.record``, or undid that in a savepoint. It is
    unknown what else it committed.
    """

    reason = "NOT_RECORDED"
    code_name = "INTERNAL"
    outcome = Outcome.UNKNOWN


class NotDeduplicated(RiflError):
    """The server does not host the lease service: it is not wrapped."""

    reason = "NOT_DEDUPLICATED"
    code_name = "FAILED_PRECONDITION"
    outcome = Outcome.NOT_EXECUTED
    of_the_key = True


class ReentrantCall(RiflError):
    """A call from within another one on the same channel, in one thread: nothing was sent.

    A signal's handler, a finalizer or a logging handler made it while the channel's lock was held
    by its own thread. Make the call later, or in another thread.
    """

    reason = "REENTRANT_CALL"
    code_name = "FAILED_PRECONDITION"
    outcome = Outcome.NOT_EXECUTED


class NotWrapped(RiflError):
    """A replica that does not deduplicate answered a later attempt of the call.

    It may have run the call once more.
    """

    reason = "NOT_WRAPPED"
    code_name = "UNKNOWN"
    outcome = Outcome.UNKNOWN
