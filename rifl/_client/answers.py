"""Answers of attempts: what gRPC reports, read into the core's ``AttemptAnswer`` (DESIGN §3)."""

from __future__ import annotations

from typing import NamedTuple

import grpc

from rifl._client.errors import Status, undecodable
from rifl._wire.labels import PUSHBACK_KEY, RPC_INFO, parse_outcome, read_refusal, rpc_info
from rifl.core._calling.answer import AttemptAnswer
from rifl.core._shared.identity import RpcId

_OK = AttemptAnswer("OK")
_NO_INFO = _OK.info
_TOO_LARGE = "larger than max"
# Above the soft limit, which may be beside it in a text, a request is refused now and then.
_METADATA = "received metadata size exceeds hard limit"
# What gRPC's servers say beyond their ``maximum_concurrent_rpcs``.
_LIMITED = "Concurrent RPC limit exceeded!"


class FinalStatus(NamedTuple):
    """A ``Status`` of our own making."""

    code_: grpc.StatusCode
    details_: str | None = None
    initial_metadata_: object = ()
    trailing_metadata_: object = ()
    debug_error_string_: str | None = None

    def code(self) -> grpc.StatusCode:
        """Return the code."""
        return self.code_

    def details(self) -> str | None:
        """Return the text."""
        return self.details_

    def initial_metadata(self) -> object:
        """Return the initial metadata."""
        return self.initial_metadata_

    def trailing_metadata(self) -> object:
        """Return the trailing metadata."""
        return self.trailing_metadata_

    def debug_error_string(self) -> str | None:
        """Return gRPC's own account."""
        return self.debug_error_string_


# Beside a reply.
NO_STATUS = FinalStatus(grpc.StatusCode.OK)
CLOSED_TEXT = "Channel closed!"
USAGE_CLOSED = "Channel is closed."
CANCELLED_TEXT = "Locally cancelled by application!"
# The ends of attempts that this process ended, or never sent.
CLOSED = FinalStatus(grpc.StatusCode.CANCELLED, CLOSED_TEXT)
ATTEMPT_CANCELLED = FinalStatus(grpc.StatusCode.CANCELLED, "the attempt was cancelled")
# In what gRPC, and we, say of an attempt that ended with its channel.
ENDED_BY_CHANNEL = (CLOSED_TEXT, ATTEMPT_CANCELLED.details_, CANCELLED_TEXT)
# Of one that had no answer in the time that the policy gives it.
CUT_OFF = FinalStatus(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
REPLACED = FinalStatus(
    grpc.StatusCode.UNAVAILABLE, "the connection answered nothing, and was replaced"
)


def read_answer(status: Status, rpc_id: RpcId | None = None) -> AttemptAnswer:
    """Read the label, the ErrorInfo and the pushback of a finished attempt.

    ``rpc_id`` is the identity that was sent: where the ErrorInfo names another one, some
    handler on the way forwarded what its own upstream told it. That says nothing of this
    call, nor does the label beside it.

    Never raises on what a peer sent. ``permanent`` is set for what this process
    could not take in: a message, or metadata, over gRPC's size limits, whichever side found
    them so, and a reply that the stub's deserialiser rejects.
    """
    code = status.code()
    trailing = tuple(status.trailing_metadata() or ())
    if not trailing and code is grpc.StatusCode.OK:
        return _OK
    outcome = parse_outcome(trailing)
    if code is grpc.StatusCode.OK:
        return AttemptAnswer("OK", outcome)
    refusal = read_refusal(trailing)
    pushback = _pushback_s(trailing)
    name = code.name
    if refusal is not None:
        reason, info, retry_after_s = refusal
        about = info.get(RPC_INFO)
        if about is not None and rpc_id is not None and about != rpc_info(rpc_id):
            return AttemptAnswer(name, retry_after_s=pushback)
        if pushback is not None:
            retry_after_s = pushback
        return AttemptAnswer(name, outcome, reason, info, retry_after_s)
    details = status.details() or ""
    exhausted = code is grpc.StatusCode.RESOURCE_EXHAUSTED
    too_long = exhausted and _TOO_LARGE in details
    permanent = too_long or (exhausted and _METADATA in details) or undecodable(status)
    limited = exhausted and details == _LIMITED
    return AttemptAnswer(name, outcome, "", _NO_INFO, pushback, permanent, limited, too_long)


def _pushback_s(trailing: tuple[tuple[str, str | bytes], ...]) -> float | None:
    for key, value in trailing:
        if key == PUSHBACK_KEY:
            try:
                return int(value) / 1000
            except ValueError:
                # As gRPC does it: what cannot be read means never.
                return -1.0
    return None
