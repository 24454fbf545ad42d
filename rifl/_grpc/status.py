"""Rich errors: google.rpc.Status with ErrorInfo and RetryInfo (DESIGN §3).

Any gRPC client reads them with ``grpc_status.rpc_status.from_call``. They travel
in the binary trailing metadata entry ``grpc-status-details-bin``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]  # ships none
from grpc_status import rpc_status

DETAILS_KEY = "grpc-status-details-bin"
DOMAIN = "rifl"

# All metadata of an answer must stay under gRPC's 8 KiB, and the message travels twice.
_MAX_MESSAGE_CHARS = 1000
_NOTHING: Mapping[str, str] = MappingProxyType({})


class CallStatus(Protocol):
    """How a call is ended: gRPC's ``Status``, or what has the same fields."""

    @property
    def code(self) -> Any:
        """Not OK."""

    @property
    def details(self) -> str:
        """For people."""

    @property
    def trailing_metadata(self) -> Any:
        """What comes with it."""


class ErrorInfo(NamedTuple):
    """What a refusal says about itself; ``retry_after_s`` is None without RetryInfo."""

    reason: str
    metadata: dict[str, str]
    retry_after_s: float | None


def rich_status(
    code: grpc.StatusCode,
    reason: str,
    message: str,
    metadata: Mapping[str, str] = _NOTHING,
    retry_after_s: float | None = None,
) -> grpc.Status:
    """A status for ``context.abort_with_status``: code, details, trailing metadata.

    ``code`` must not be OK. Messages over 1000 characters are cut. Pure; any
    thread. On ``grpc.aio``, which has no ``abort_with_status``, hand its three
    fields to ``context.abort``.
    """
    status: grpc.Status = rpc_status.to_status(
        _status(code, reason, message, metadata, retry_after_s)
    )
    return status


def details_bin(
    code: grpc.StatusCode,
    reason: str,
    message: str,
    metadata: Mapping[str, str] = _NOTHING,
    retry_after_s: float | None = None,
) -> bytes:
    """The value of ``grpc-status-details-bin`` for the same arguments as ``rich_status``.

    The server that sets it must also send ``code`` and the (cut) message as the status,
    since clients reject a status that contradicts its details.
    """
    value: bytes = _status(code, reason, message, metadata, retry_after_s).SerializeToString()
    return value


def read_error_info(
    trailing_metadata: Iterable[tuple[str, str | bytes]] | None,
) -> ErrorInfo | None:
    """The ErrorInfo of domain ``rifl`` in an answer's trailing metadata, or None.

    Accepts what sync and aio calls return, None included. Never raises on what a
    peer sent: what cannot be read is None. A negative retry delay reads as 0.
    """
    for entry in trailing_metadata or ():
        if len(entry) == 2 and entry[0] == DETAILS_KEY and isinstance(entry[1], bytes):
            found = _read(entry[1])
            if found is not None:
                return found
    return None


def saying(value: bytes, code: grpc.StatusCode, message: str) -> bytes:
    """Return a rifl ``grpc-status-details-bin`` with this code and message.

    For an error that is raised with another code than it came with: readers of rich errors
    (``grpc_status``, and Google's clients by it) reject one that contradicts its status.
    Other values are returned unchanged.
    """
    try:
        status = status_pb2.Status.FromString(value)
        if not any(map(_is_ours, status.details)):
            return value
    except DecodeError:
        return value
    status.code, status.message = code.value[0], message
    told: bytes = status.SerializeToString()
    return told


def without_error_info(value: bytes) -> bytes:
    """Take our ErrorInfo, and the RetryInfo beside it, out of a ``grpc-status-details-bin``.

    Empty if no detail is left. A value without a detail of rifl's is returned unchanged.
    """
    try:
        status = status_pb2.Status.FromString(value)
        if not any(map(_is_ours, status.details)):
            return value
    except DecodeError:
        return value
    retry = error_details_pb2.RetryInfo.DESCRIPTOR
    left = [each for each in status.details if not (each.Is(retry) or _is_ours(each))]
    del status.details[:]
    status.details.extend(left)
    stripped: bytes = status.SerializeToString() if left else b""
    return stripped


def _is_ours(detail: Any) -> bool:
    info = error_details_pb2.ErrorInfo()
    if not detail.Is(info.DESCRIPTOR):
        return False
    try:
        detail.Unpack(info)
    except DecodeError:
        return False
    return bool(info.domain == DOMAIN)


def _status(
    code: grpc.StatusCode,
    reason: str,
    message: str,
    metadata: Mapping[str, str],
    retry_after_s: float | None,
) -> status_pb2.Status:
    if code is grpc.StatusCode.OK:
        raise ValueError("a refusal cannot be OK")
    status = status_pb2.Status(code=code.value[0], message=message[:_MAX_MESSAGE_CHARS])
    info = error_details_pb2.ErrorInfo(domain=DOMAIN, reason=reason, metadata=metadata)
    status.details.add().Pack(info)
    if retry_after_s is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromNanoseconds(round(retry_after_s * 1e9))
        status.details.add().Pack(retry)
    return status


def _read(value: bytes) -> ErrorInfo | None:
    info = error_details_pb2.ErrorInfo()
    retry = error_details_pb2.RetryInfo()
    found = False
    retry_after_s: float | None = None
    try:
        for detail in status_pb2.Status.FromString(value).details:
            if not found and detail.Is(info.DESCRIPTOR):
                detail.Unpack(info)
                found = info.domain == DOMAIN
            elif detail.Is(retry.DESCRIPTOR):
                detail.Unpack(retry)
                delay = retry.retry_delay
                retry_after_s = max(0.0, delay.seconds + delay.nanos / 1e9)
    except DecodeError:
        return None
    return ErrorInfo(info.reason, dict(info.metadata), retry_after_s) if found else None
