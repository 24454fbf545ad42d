"""The errors of the client: ``grpc.RpcError`` with an identity and an outcome (DESIGN §3).

::

    grpc.RpcError
     └─ grpc.aio.AioRpcError
         └─ CallError              any failed call; a handler's own error answer
             └─ LeaseExpiredError, ...   one for each reason, and also a rifl.core error

``except grpc.RpcError``, ``except grpc.aio.AioRpcError`` and, say, ``except
rifl.core.LeaseExpired`` all catch what they name, on sync and aio channels alike.
"""

from __future__ import annotations

from typing import Any

import grpc

from _rifl_ground.refusals import Outcome
from rifl._client.call_error import CallError, Status, agreeing
from rifl.core._shared import errors as core
from rifl.core._shared.identity import RpcId

__all__ = [
    "ANOTHER_STORE",
    "NOT_HOSTED",
    "AnswerLostError",
    "BadHeaderError",
    "BatchTooLargeError",
    "CallError",
    "DeposedError",
    "DrainingError",
    "ForkedProcessError",
    "InProgressError",
    "LeaseExpiredError",
    "NotDeduplicatedError",
    "NotExecutedError",
    "NotLeaderError",
    "NotRecordedError",
    "NotWrappedError",
    "NotYoursError",
    "OutcomeUnknownError",
    "PayloadMismatchError",
    "RecordPendingError",
    "ReentrantCallError",
    "RequestTooLargeError",
    "ResponseTooLargeError",
    "SessionClosedError",
    "StaleRpcError",
    "Status",
    "StoreMismatchError",
    "StoreUnavailableError",
    "WindowExceededError",
    "agreeing",
    "call_error",
    "plain_error",
    "reentrant",
    "undecodable",
    "unserialisable",
]


EXPIRED = "Deadline Exceeded, not sent: the timeout is not positive"
# What the server's owner is to look for.
ANOTHER_STORE = (
    "another store answers than the one that granted the client id before: two stores are behind "
    "one address, or the store was replaced"
)
NOT_HOSTED = (
    "The server does not host the lease service (Deduplicator.add_to_server), or what is in front "
    "of it answered"
)


# What grpc/_channel.py says where it ends a call by itself.
_ENDED_HERE = frozenset(
    {
        "Exception deserializing response!",
        "Exception iterating requests!",
        "Exception serializing request!",
        "Locally cancelled by application!",
        "Cancelled upon garbage collection!",
    }
)
_UNKNOWN_CODE = "Server sent unknown code"


class BadHeaderError(CallError, core.BadHeader):  # type: ignore[misc]
    """See ``rifl.core.BadHeader``."""


class PayloadMismatchError(CallError, core.PayloadMismatch):  # type: ignore[misc]
    """See ``rifl.core.PayloadMismatch``."""


class StaleRpcError(CallError, core.StaleRpc):  # type: ignore[misc]
    """See ``rifl.core.StaleRpc``."""


class LeaseExpiredError(CallError, core.LeaseExpired):  # type: ignore[misc]
    """See ``rifl.core.LeaseExpired``."""


class SessionClosedError(CallError, core.SessionClosed):  # type: ignore[misc]
    """See ``rifl.core.SessionClosed``."""


class NotYoursError(CallError, core.NotYours):  # type: ignore[misc]
    """See ``rifl.core.NotYours``."""


class StoreMismatchError(CallError, core.StoreMismatch):  # type: ignore[misc]
    """See ``rifl.core.StoreMismatch``."""


class WindowExceededError(CallError, core.WindowExceeded):  # type: ignore[misc]
    """See ``rifl.core.WindowExceeded``."""


class InProgressError(CallError, core.InProgress):  # type: ignore[misc]
    """See ``rifl.core.InProgress``."""


class OutcomeUnknownError(CallError, core.OutcomeUnknown):  # type: ignore[misc]
    """See ``rifl.core.OutcomeUnknown``."""


class NotExecutedError(CallError, core.NotExecuted):  # type: ignore[misc]
    """See ``rifl.core.NotExecuted``."""


class NotLeaderError(CallError, core.NotLeader):  # type: ignore[misc]
    """See ``rifl.core.NotLeader``."""


class DrainingError(CallError, core.Draining):  # type: ignore[misc]
    """See ``rifl.core.Draining``."""


class StoreUnavailableError(CallError, core.StoreUnavailable):  # type: ignore[misc]
    """See ``rifl.core.StoreUnavailable``."""


class DeposedError(CallError, core.Deposed):  # type: ignore[misc]
    """See ``rifl.core.Deposed``."""


class RecordPendingError(CallError, core.RecordPending):  # type: ignore[misc]
    """See ``rifl.core.RecordPending``."""


class ResponseTooLargeError(CallError, core.ResponseTooLarge):  # type: ignore[misc]
    """See ``rifl.core.ResponseTooLarge``."""


class AnswerLostError(CallError, core.AnswerLost):  # type: ignore[misc]
    """See ``rifl.core.AnswerLost``."""


class RequestTooLargeError(CallError, core.RequestTooLarge):  # type: ignore[misc]
    """See ``rifl.core.RequestTooLarge``."""


class BatchTooLargeError(CallError, core.BatchTooLarge):  # type: ignore[misc]
    """See ``rifl.core.BatchTooLarge``."""


class NotRecordedError(CallError, core.NotRecorded):  # type: ignore[misc]
    """See ``rifl.core.NotRecorded``."""


class NotDeduplicatedError(CallError, core.NotDeduplicated):  # type: ignore[misc]
    """See ``rifl.core.NotDeduplicated``."""


class ForkedProcessError(CallError, core.ForkedProcess):  # type: ignore[misc]
    """See ``rifl.core.ForkedProcess``."""


class ReentrantCallError(CallError, core.ReentrantCall):  # type: ignore[misc]
    """See ``rifl.core.ReentrantCall``."""


class NotWrappedError(CallError, core.NotWrapped):  # type: ignore[misc]
    """See ``rifl.core.NotWrapped``."""


_CLASSES: dict[str, type[CallError]] = {
    base.reason: cls
    for cls in CallError.__subclasses__()
    for base in cls.__bases__
    if issubclass(base, core.RiflError)
}


def call_error(
    code: grpc.StatusCode,
    details: str | None,
    *,
    rpc_id: RpcId | None,
    outcome: Outcome,
    reason: str = "",
    status: Status | None = None,
    original_code: grpc.StatusCode | None = None,
) -> CallError:
    """Build the error of the class that ``reason`` names, with a status's metadata."""
    cls = _CLASSES.get(reason, CallError)
    if status is None:
        return cls(
            code,
            details,
            rpc_id=rpc_id,
            outcome=outcome,
            reason=reason,
            original_code=original_code,
        )
    return cls(
        code,
        details,
        rpc_id=rpc_id,
        outcome=outcome,
        reason=reason,
        initial_metadata=status.initial_metadata(),
        trailing_metadata=status.trailing_metadata(),
        # Other people's outcomes may lack it, and gRPC's futures wait for it for
        # ever where it was this process that failed them.
        debug_error_string=None
        if _ended_here(status)
        else getattr(status, "debug_error_string", str)(),
        original_code=original_code,
    )


def reentrant(text: str) -> CallError:
    """Build the error of a call that was made within one of the same channel; nothing was sent."""
    return ReentrantCallError(
        grpc.StatusCode.FAILED_PRECONDITION,
        text,
        outcome=Outcome.NOT_EXECUTED,
        reason=ReentrantCallError.reason,
    )


def _ended_here(status: Status) -> bool:
    """Whether gRPC's own code in this process made the status, and gives no account of it."""
    details = status.details() or ""
    return details in _ENDED_HERE or details.startswith(_UNKNOWN_CODE)


def undecodable(status: Status) -> bool:
    """Whether the stub's deserialiser rejected the reply: gRPC says so in these words."""
    internal: bool = status.code() is grpc.StatusCode.INTERNAL
    return internal and status.details() == "Exception deserializing response!"


def plain_error(status: Any) -> CallError:
    """Build the error of a call that was sent once, without an identity."""
    return call_error(
        status.code(), status.details(), rpc_id=None, outcome=Outcome.UNKNOWN, status=status
    )


def unserialisable() -> CallError:
    """Build the error of a request that its serialiser rejects; nothing was sent."""
    return CallError(
        grpc.StatusCode.INTERNAL,
        "Exception serializing request!",
        outcome=Outcome.NOT_EXECUTED,
    )
