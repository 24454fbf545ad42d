"""The errors of the client: ``grpc.RpcError`` with an identity and an outcome (DESIGN §3).

::

    grpc.RpcError
     └─ grpc.aio.AioRpcError
         └─ CallError    any failed call; a handler's own error answer
             └─ one for each reason, which is also the rifl.core error of that reason

``except grpc.RpcError``, ``except grpc.aio.AioRpcError`` and, say, ``except
rifl.core.LeaseExpired`` all catch what they name, on sync and aio channels alike.
"""

from __future__ import annotations

from typing import Any

import grpc

from _rifl_ground.refusals import Outcome
from rifl._client.call_error import CallError, Status, agreeing
from rifl.core._shared.errors import ReentrantCall, RiflError
from rifl.core._shared.identity import RpcId
from rifl.core._shared.reasons import REASONS

__all__ = [
    "ANOTHER_STORE",
    "NOT_HOSTED",
    "CallError",
    "Status",
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


def _twin(refusal: type[RiflError]) -> type[CallError]:
    """Make the class of the calls that were refused so, which is that refusal's, too."""
    about = {"__doc__": f"See ``rifl.core.{refusal.__name__}``.", "__module__": __name__}
    return type(f"{refusal.__name__}Error", (CallError, refusal), about)


# One for each row of the core's table. Callers name the refusal, and mypy knows that a
# ``CallError`` may be one: ``isinstance(error, rifl.core.LeaseExpired)``.
_CLASSES = {
    reason: _twin(row.error) for reason, row in REASONS.items() if row.error is not RiflError
}
# Where pickle looks for them.
globals().update((twin.__name__, twin) for twin in _CLASSES.values())


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
    return call_error(
        grpc.StatusCode.FAILED_PRECONDITION,
        text,
        rpc_id=None,
        outcome=Outcome.NOT_EXECUTED,
        reason=ReentrantCall.reason,
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
