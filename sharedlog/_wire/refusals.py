"""A log's refusals as gRPC's statuses, and back: the same class, and whether it was appended.

A ``google.rpc.Status`` with an ``ErrorInfo`` of domain ``sharedlog``, in the trailing metadata.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]  # ships none

from _rifl_ground.refusals import caller_text
from rifl._grpc.status import DETAILS_KEY
from sharedlog._core import errors
from sharedlog._core.errors import LogError

DOMAIN = "sharedlog"
# The message travels twice, and all metadata of an answer must stay below gRPC's 8 KiB.
_MOST_CHARS = 1000
_CODE = grpc.StatusCode

_KINDS: Mapping[type[LogError], tuple[str, grpc.StatusCode]] = {
    errors.InvalidRequest: ("INVALID_REQUEST", _CODE.INVALID_ARGUMENT),
    errors.LogForked: ("LOG_FORKED", _CODE.FAILED_PRECONDITION),
    errors.UnknownProducer: ("UNKNOWN_PRODUCER", _CODE.FAILED_PRECONDITION),
    errors.ProducerRetired: ("PRODUCER_RETIRED", _CODE.FAILED_PRECONDITION),
    errors.OutOfOrder: ("OUT_OF_ORDER", _CODE.FAILED_PRECONDITION),
    errors.AnswerGone: ("ANSWER_GONE", _CODE.FAILED_PRECONDITION),
    errors.SeqReused: ("SEQ_REUSED", _CODE.FAILED_PRECONDITION),
    errors.AlreadyCommitted: ("ALREADY_COMMITTED", _CODE.ALREADY_EXISTS),
    errors.PredecessorMismatch: ("PREDECESSOR_MISMATCH", _CODE.FAILED_PRECONDITION),
    errors.Fenced: ("FENCED", _CODE.FAILED_PRECONDITION),
    errors.SpanGone: ("SPAN_GONE", _CODE.FAILED_PRECONDITION),
    errors.HoldMoved: ("HOLD_MOVED", _CODE.FAILED_PRECONDITION),
    errors.TrimmedLog: ("TRIMMED_LOG", _CODE.OUT_OF_RANGE),
    errors.CorruptLog: ("CORRUPT_LOG", _CODE.DATA_LOSS),
    errors.LogUnavailable: ("LOG_UNAVAILABLE", _CODE.UNAVAILABLE),
    errors.LogFull: ("LOG_FULL", _CODE.RESOURCE_EXHAUSTED),
    errors.QuotaExceeded: ("QUOTA_EXCEEDED", _CODE.RESOURCE_EXHAUSTED),
    errors.NotAllowed: ("NOT_ALLOWED", _CODE.PERMISSION_DENIED),
    errors.NoSuchStream: ("NO_SUCH_STREAM", _CODE.NOT_FOUND),
    errors.NoSuchLog: ("NO_SUCH_LOG", _CODE.NOT_FOUND),
    errors.OtherStore: ("OTHER_STORE", _CODE.FAILED_PRECONDITION),
    errors.NewerFormat: ("NEWER_FORMAT", _CODE.FAILED_PRECONDITION),
}
# How those are made that take more than what they say.
_WITH: Mapping[str, Callable[[str, Mapping[str, int]], LogError]] = {
    "OUT_OF_ORDER": lambda text, said: errors.OutOfOrder(text, said["expected"]),
    "PREDECESSOR_MISMATCH": lambda text, said: errors.PredecessorMismatch(text, said["found"]),
    "FENCED": lambda text, said: errors.Fenced(text, said["number"]),
    "TRIMMED_LOG": lambda text, said: errors.TrimmedLog(text, said["first"], _lost(said)),
}
_NAMES = {name: kind for kind, (name, _) in _KINDS.items()}
_APPENDED = {"true": True, "false": False, "unknown": None}


class Refusal(NamedTuple):
    """An error as a call is ended by it."""

    code: grpc.StatusCode
    details: str
    trailing_metadata: tuple[tuple[str, bytes], ...]


def refusal_of(error: LogError) -> Refusal:
    """Return how an error travels."""
    # What a handle of the server's cannot do any more, another server's can.
    kinds = (kind for kind in type(error).__mro__ if kind in _KINDS)
    reason, code = _KINDS[next(kinds, errors.LogUnavailable)]
    said = {"appended": {True: "true", False: "false", None: "unknown"}[error.appended]}
    for name in ("expected", "found", "number", "first"):
        value = getattr(error, name, None)
        if isinstance(value, int):
            said[name] = str(value)
    if isinstance(error, errors.TrimmedLog) and error.lost is not None:
        said["lost_first"], said["lost_last"] = map(str, error.lost)
    text = " ".join(caller_text(error).split())[:_MOST_CHARS]
    status = status_pb2.Status(code=code.value[0], message=text)
    status.details.add().Pack(
        error_details_pb2.ErrorInfo(domain=DOMAIN, reason=reason, metadata=said)
    )
    return Refusal(code, text, ((DETAILS_KEY, status.SerializeToString()),))


def error_of(call: Any) -> LogError:
    """Return what a call ended with that failed: a log's refusal, or what gRPC says of the way.

    gRPC's own say nothing of whether a request arrived, but for callers that are not let in.
    """
    found = _read(call.trailing_metadata())
    if found is not None:
        return found
    code, text = call.code(), f"{call.code().name}: {call.details()}"
    if code in (_CODE.UNAUTHENTICATED, _CODE.PERMISSION_DENIED):
        return errors.NotAllowed(text)
    if code is _CODE.UNIMPLEMENTED:
        return errors.NoSuchLog(f"no log is served there ({text})")
    return errors.LogUnavailable(text)


def _read(metadata: Iterable[tuple[str, str | bytes]] | None) -> LogError | None:
    for key, value in metadata or ():
        if key != DETAILS_KEY or not isinstance(value, bytes):
            continue
        info = error_details_pb2.ErrorInfo()
        try:
            status = status_pb2.Status.FromString(value)
            for detail in status.details:
                if detail.Is(info.DESCRIPTOR) and detail.Unpack(info) and info.domain == DOMAIN:
                    return _made(info.reason, status.message, info.metadata)
        except (DecodeError, KeyError, ValueError):
            return None
    return None


def _made(reason: str, text: str, metadata: Mapping[str, str]) -> LogError:
    said = {name: int(value) for name, value in metadata.items() if value.isdecimal()}
    make = _WITH.get(reason)
    found = make(text, said) if make is not None else _NAMES.get(reason, LogError)(text)
    appended = _APPENDED.get(metadata.get("appended", ""), found.appended)
    if appended is not found.appended:
        found.appended = appended
    return found


def _lost(said: Mapping[str, int]) -> tuple[int, int] | None:
    return (said["lost_first"], said["lost_last"]) if "lost_first" in said else None
