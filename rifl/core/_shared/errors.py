"""Everything rifl refuses or cannot tell, one class for each reason (DESIGN §3).

::

    RiflError
     ├─ BadHeader          PayloadMismatch    StaleRpc          NotYours
     ├─ LeaseExpired       SessionClosed      WindowExceeded    InProgress
     ├─ OutcomeUnknown     NotExecuted        NotLeader         Draining
     ├─ StoreUnavailable   Deposed            RecordPending     ResponseTooLarge
     ├─ BatchTooLarge      NotRecorded        NotDeduplicated   ForkedProcess
     ├─ NotWrapped         StoreMismatch      RequestTooLarge   AnswerLost
     └─ ReentrantCall

Each class carries the ``reason`` of the wire's ErrorInfo, the name of its gRPC
status ``code`` and the ``outcome``: whether the call can have run. Instances
pickle. The client raises subclasses of these that are ``grpc.RpcError`` too.
"""

from __future__ import annotations

from typing import Any, ClassVar

from rifl.core._shared.outcome import Outcome

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


class RiflError(Exception):
    """The root; ``str()`` is the message that also travels as status details."""

    reason: ClassVar[str] = "RIFL"
    code: ClassVar[str] = "INTERNAL"
    outcome: ClassVar[Outcome] = Outcome.UNKNOWN
    # Of a key, which other callers share, a refusal tells ``outcome`` only where the store
    # has looked it up, or where there is no such key; else the outcome is unknown.
    of_the_key: ClassVar[bool] = False
    # On a server: the ``Call`` that was refused, where it is not at hand otherwise.
    arrival: Any = None
    # The store that refuses, where it is not the one that the call names; 0: it is.
    store = 0

    def may_have_run(self) -> None:
        """Say of this refusal, not of its class, that its call may have run, or may yet."""
        self.__dict__["outcome"] = Outcome.UNKNOWN


class BadHeader(RiflError):
    """The header breaks a rule of the wire format. No state was created."""

    reason = "BAD_HEADER"
    code = "INVALID_ARGUMENT"
    outcome = Outcome.NOT_EXECUTED
    of_the_key = True


class PayloadMismatch(RiflError):
    """The identity belongs to a call with another method or payload."""

    reason = "PAYLOAD_MISMATCH"
    code = "INVALID_ARGUMENT"
    outcome = Outcome.NOT_EXECUTED
    of_the_key = True


class StaleRpc(RiflError):
    """The client acknowledged this identity before: a bug in the caller.

    The identity's first call may have run; what is refused is this one.
    """

    reason = "STALE_RPC"
    code = "FAILED_PRECONDITION"
    outcome = Outcome.UNKNOWN


class LeaseExpired(RiflError):
    """The client id is unknown or expired, and the call is not known.

    This arrival did not run; whether an earlier one did, nobody can tell any
    more, so the label is unknown. A client that knows there was none may say
    more.
    """

    reason = "LEASE_EXPIRED"
    code = "FAILED_PRECONDITION"
    outcome = Outcome.UNKNOWN


class SessionClosed(RiflError):
    """The named session is closed, or its retention is over."""

    reason = "SESSION_CLOSED"
    code = "FAILED_PRECONDITION"
    outcome = Outcome.UNKNOWN


class NotYours(RiflError):
    """The token is wrong, or the id belongs to another peer. Reveals nothing."""

    reason = "NOT_YOURS"
    code = "PERMISSION_DENIED"
    outcome = Outcome.NOT_EXECUTED


class StoreMismatch(RiflError):
    """The identity belongs to another set of records: two stores are behind one address.

    This arrival did not run. Whether the call ran where the other records are, nobody can
    tell here: a proxy may have sent its first copy there.
    """

    reason = "STORE_MISMATCH"
    code = "FAILED_PRECONDITION"
    outcome = Outcome.UNKNOWN


class WindowExceeded(RiflError):
    """Too many calls are unacknowledged. This one was not begun."""

    reason = "WINDOW_EXCEEDED"
    code = "RESOURCE_EXHAUSTED"
    outcome = Outcome.NOT_EXECUTED
    of_the_key = True


class InProgress(RiflError):
    """The first arrival of this call still runs; ask again."""

    reason = "IN_PROGRESS"
    code = "ABORTED"
    outcome = Outcome.UNKNOWN


class OutcomeUnknown(RiflError):
    """A crash took the outcome of a plain method's call; final."""

    reason = "OUTCOME_UNKNOWN"
    code = "ABORTED"
    outcome = Outcome.UNKNOWN


class NotExecuted(RiflError):
    """The call was resolved before it arrived, as not executed; final."""

    reason = "NOT_EXECUTED"
    code = "ABORTED"
    outcome = Outcome.NOT_EXECUTED
    of_the_key = True


class NotLeader(RiflError):
    """Another server leads; nothing ran here. ``leader`` is its address, if it is known."""

    reason = "NOT_LEADER"
    code = "UNAVAILABLE"
    outcome = Outcome.NOT_EXECUTED

    def __init__(self, message: str = "", leader: str = "") -> None:
        super().__init__(message, leader)
        self.leader = leader

    def __str__(self) -> str:
        return str(self.args[0])


class Draining(RiflError):
    """The server is about to stop and begins no new calls."""

    reason = "DRAINING"
    code = "UNAVAILABLE"
    outcome = Outcome.NOT_EXECUTED


class StoreUnavailable(RiflError):
    """The store could not be reached or written before the handler started."""

    reason = "STORE_UNAVAILABLE"
    code = "UNAVAILABLE"
    outcome = Outcome.NOT_EXECUTED


class Deposed(RiflError):
    """The leader lost its leadership with the call under way."""

    reason = "DEPOSED"
    code = "ABORTED"
    outcome = Outcome.UNKNOWN


class RecordPending(RiflError):
    """The handler ran, but its record is not durable yet; it is being retried."""

    reason = "RECORD_PENDING"
    code = "ABORTED"
    outcome = Outcome.UNKNOWN


class ResponseTooLarge(RiflError):
    """The handler ran; its answer exceeds a limit. This error is what is recorded."""

    reason = "RESPONSE_TOO_LARGE"
    code = "RESOURCE_EXHAUSTED"
    outcome = Outcome.EXECUTED


class AnswerLost(RiflError):
    """The call ran, as an operator found out, and its answer is lost. This is what is recorded."""

    reason = "ANSWER_LOST"
    code = "FAILED_PRECONDITION"
    outcome = Outcome.EXECUTED


class RequestTooLarge(RiflError):
    """The request is longer than what the group's log holds; nothing ran."""

    reason = "REQUEST_TOO_LARGE"
    code = "RESOURCE_EXHAUSTED"
    outcome = Outcome.NOT_EXECUTED


class BatchTooLarge(RiflError):
    """The batch exceeds its bounds in count or bytes; split it."""

    reason = "BATCH_TOO_LARGE"
    code = "RESOURCE_EXHAUSTED"
    outcome = Outcome.NOT_EXECUTED


class NotRecorded(RiflError):
    """An atomic method's handler returned without a committed record; final.

    A bug in the handler: it did not call ``rifl.record``, or undid that in a savepoint. What
    else it committed, nobody knows.
    """

    reason = "NOT_RECORDED"
    code = "INTERNAL"
    outcome = Outcome.UNKNOWN


class NotDeduplicated(RiflError):
    """The server does not host the lease service: it is not wrapped."""

    reason = "NOT_DEDUPLICATED"
    code = "FAILED_PRECONDITION"
    outcome = Outcome.NOT_EXECUTED
    of_the_key = True


class ForkedProcess(RiflError):
    """What was used was made in a parent process: make it again after the fork.

    Channels, and everything of a server that decides or keeps something.
    """

    reason = "FORKED_PROCESS"
    code = "FAILED_PRECONDITION"
    outcome = Outcome.NOT_EXECUTED


class ReentrantCall(RiflError):
    """A call from within another one on the same channel, in one thread: nothing was sent.

    A signal's handler, a finalizer or a logging handler made it while the channel's lock was held
    by its own thread. Make the call later, or in another thread.
    """

    reason = "REENTRANT_CALL"
    code = "FAILED_PRECONDITION"
    outcome = Outcome.NOT_EXECUTED


class NotWrapped(RiflError):
    """A replica that does not deduplicate answered a later attempt of the call.

    It may have run the call once more.
    """

    reason = "NOT_WRAPPED"
    code = "UNKNOWN"
    outcome = Outcome.UNKNOWN
