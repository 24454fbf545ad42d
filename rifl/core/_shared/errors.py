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
     └─ ReentrantCall      Overloaded

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
    "Overloaded",
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
    """This identity belongs to a call with another method or payload.

    Fix the keys, or serialise deterministically.
    """

    reason = "PAYLOAD_MISMATCH"
    code_name = "INVALID_ARGUMENT"
    outcome = Outcome.NOT_EXECUTED
    of_the_key = True


class StaleRpc(RiflError):
    """The client said before that it has this call's answer.

    The identity's first call may have run; what is refused is this one.

    Attempt 1: fix the bug in the caller. A later attempt is a late duplicate: do nothing.
    """

    reason = "STALE_RPC"
    code_name = "FAILED_PRECONDITION"
    outcome = Outcome.UNKNOWN


class WindowExceeded(RiflError):
    """This client has too many unacknowledged calls, or keys. This call was not begun.

    The code is DEADLINE_EXCEEDED if the timeout passed while the call waited.

    Send fewer at once, or give both sides a larger ``window``.
    """

    reason = "WINDOW_EXCEEDED"
    code_name = "RESOURCE_EXHAUSTED"
    outcome = Outcome.NOT_EXECUTED
    of_the_key = True


class InProgress(RiflError):
    """The first attempt of this call still runs.

    Give a longer deadline, or ``resolve`` the call later.
    """

    reason = "IN_PROGRESS"
    code_name = "ABORTED"
    outcome = Outcome.UNKNOWN


class OutcomeUnknown(RiflError):
    """A crash interrupted a ``plain`` call, or the client's lease ended during it; final.

    The latter: docs/explanation/guarantees.md#without-a-claim.

    Look at the data, or settle it: docs/how-to/operations.md#calls-whose-outcome-is-unknown.
    ``atomic`` methods avoid it.
    """

    reason = "OUTCOME_UNKNOWN"
    code_name = "ABORTED"
    outcome = Outcome.UNKNOWN


class NotExecuted(RiflError):
    """The call was resolved before it arrived, as not executed; final.

    Call again if you still want it.
    """

    reason = "NOT_EXECUTED"
    code_name = "ABORTED"
    outcome = Outcome.NOT_EXECUTED
    of_the_key = True


class Draining(RiflError):
    """The server is about to stop and begins no new calls.

    Nothing: the SDK retries. If calls fail, run more replicas, or give a longer deadline.
    """

    reason = "DRAINING"
    code_name = "UNAVAILABLE"
    outcome = Outcome.NOT_EXECUTED


class Overloaded(RiflError):
    """The server has more calls than it can answer in time: it does not run this one.

    Nothing: the SDK retries. If calls fail, look at the event `overloaded`.
    """

    reason = "OVERLOADED"
    code_name = "UNAVAILABLE"
    outcome = Outcome.NOT_EXECUTED


class Deposed(RiflError):
    """The leader lost its leadership during the call.

    Nothing: the SDK retries.
    """

    reason = "DEPOSED"
    code_name = "ABORTED"
    outcome = Outcome.UNKNOWN


class RecordPending(RiflError):
    """The handler ran, but its record is not durable yet; the server retries.

    Nothing: the SDK retries. If it stays, look at the store.
    """

    reason = "RECORD_PENDING"
    code_name = "ABORTED"
    outcome = Outcome.UNKNOWN
    told = (
        "what the call did is not durable yet, or not known yet: send it again; the server's "
        "events say why"
    )


class ResponseTooLarge(RiflError):
    """The call ran; its answer, or its metadata, exceeds a limit. This error is recorded.

    Raise ``max_response_bytes``, ``max_metadata_bytes`` or the channel's receive limit.
    """

    reason = "RESPONSE_TOO_LARGE"
    code_name = "RESOURCE_EXHAUSTED"
    outcome = Outcome.EXECUTED


class AnswerLost(RiflError):
    """An operator found out that the call ran; its answer is lost. This is recorded.

    Nothing: it is done.
    """

    reason = "ANSWER_LOST"
    code_name = "FAILED_PRECONDITION"
    outcome = Outcome.EXECUTED


class RequestTooLarge(RiflError):
    """The request is larger than a group's log can hold (64 MiB; etcd's 1 MiB).

    Send less at once.
    """

    reason = "REQUEST_TOO_LARGE"
    code_name = "RESOURCE_EXHAUSTED"
    outcome = Outcome.NOT_EXECUTED


class BatchTooLarge(RiflError):
    """The batch exceeds its bounds in count or bytes.

    Split it.
    """

    reason = "BATCH_TOO_LARGE"
    code_name = "RESOURCE_EXHAUSTED"
    outcome = Outcome.NOT_EXECUTED


class NotRecorded(RiflError):
    """An ``atomic`` handler returned without a committed ``rifl.record``; final.

    The handler did not call it, or rolled it back to a savepoint. What else it committed is
    unknown. After a rolled-back block of ``rifl.transaction`` the outcome is ``not-executed``.

    Fix the handler: docs/reference/transactions.md.
    """

    reason = "NOT_RECORDED"
    code_name = "INTERNAL"
    outcome = Outcome.UNKNOWN


class NotDeduplicated(RiflError):
    """The server does not host the lease service: it is not wrapped.

    Wrap it: ``dedup.add_to_server(server)``.
    """

    reason = "NOT_DEDUPLICATED"
    code_name = "FAILED_PRECONDITION"
    outcome = Outcome.NOT_EXECUTED
    of_the_key = True


class ReentrantCall(RiflError):
    """A call from within another one on the same channel, in one thread: nothing was sent.

    A signal's handler, a finalizer or a logging handler made it while the channel's lock was held
    by its own thread. Or the function of ``connect(metadata=)``, or an interceptor, made it while
    the channel asked for the client id that the call needs.

    Make the call later, in another thread, or on another channel.
    """

    reason = "REENTRANT_CALL"
    code_name = "FAILED_PRECONDITION"
    outcome = Outcome.NOT_EXECUTED


class NotWrapped(RiflError):
    """A replica that does not deduplicate answered a later attempt of the call.

    It may have run the call once more.

    Wrap each replica behind the address. Look at the data.
    """

    reason = "NOT_WRAPPED"
    code_name = "UNKNOWN"
    outcome = Outcome.UNKNOWN
