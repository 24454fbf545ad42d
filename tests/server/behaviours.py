"""Handlers that do everything a handler may do, for sync and for aio servers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
from google.protobuf.wrappers_pb2 import StringValue
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

__all__ = ["COROUTINES", "FUNCTIONS", "SERVICE"]

SERVICE = "test.Behaviours"
_TRAILING = (("t", "one"), ("t", "two"), ("t-bin", b"\x00\xff"))
_INITIAL = (("i", "one"), ("i-bin", b"\xfe"))
_BIG = "x" * 20_000


def _rich() -> Any:
    status = status_pb2.Status(code=9, message="not like this")
    detail = error_details_pb2.QuotaFailure()
    detail.violations.add(subject="s", description="d")
    status.details.add().Pack(detail)
    return rpc_status.to_status(status)


class _UnprintableError(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


class _Tuple(tuple):
    """A metadata sequence of a type of its own."""

    __slots__ = ()


def normal(request: Any, context: Any) -> Any:
    """Answer."""
    return StringValue(value=request.value + "!")


def empty(request: Any, context: Any) -> Any:
    """Answer with a message of no bytes."""
    return StringValue()


def code_and_response(request: Any, context: Any) -> Any:
    """Set a status and return a message all the same."""
    context.set_code(grpc.StatusCode.ALREADY_EXISTS)
    context.set_details("was there")
    return StringValue(value="and yet")


def code_alone(request: Any, context: Any) -> Any:
    """Set a code without details."""
    context.set_code(grpc.StatusCode.NOT_FOUND)
    return StringValue()


def details_alone(request: Any, context: Any) -> Any:
    """Set details of an OK."""
    context.set_details("all is well")
    return StringValue(value="ok")


def code_ok(request: Any, context: Any) -> Any:
    """Set the code OK."""
    context.set_code(grpc.StatusCode.OK)
    return StringValue(value="ok")


def none(request: Any, context: Any) -> Any:
    """Return nothing."""


def code_and_none(request: Any, context: Any) -> Any:
    """Set a status and return nothing."""
    context.set_code(grpc.StatusCode.OUT_OF_RANGE)
    context.set_details("far out")


def details_and_none(request: Any, context: Any) -> Any:
    """Set details and return nothing."""
    context.set_details("half done")


def wrong_type(request: Any, context: Any) -> Any:
    """Return what cannot be serialised."""
    return {"not": "a message"}


def raises(request: Any, context: Any) -> Any:
    """Raise."""
    raise KeyError("missing")


def raises_unprintable(request: Any, context: Any) -> Any:
    """Raise what has no text."""
    raise _UnprintableError


def code_then_raise(request: Any, context: Any) -> Any:
    """Set a code, then raise."""
    context.set_code(grpc.StatusCode.DATA_LOSS)
    raise ValueError("broken")


def status_then_raise(request: Any, context: Any) -> Any:
    """Set code and details, then raise."""
    context.set_code(grpc.StatusCode.DATA_LOSS)
    context.set_details("said before")
    raise ValueError("broken")


def details_then_raise(request: Any, context: Any) -> Any:
    """Set details, then raise."""
    context.set_details("said before")
    raise ValueError("broken")


def trailing_then_raise(request: Any, context: Any) -> Any:
    """Set trailing metadata, then raise."""
    context.set_trailing_metadata(_TRAILING)
    raise ValueError("broken")


def trailing(request: Any, context: Any) -> Any:
    """Set trailing metadata, text and binary."""
    context.set_trailing_metadata(_TRAILING)
    return StringValue(value="t")


def trailing_twice(request: Any, context: Any) -> Any:
    """Set trailing metadata twice; the second replaces the first."""
    context.set_trailing_metadata((("gone", "1"),))
    context.set_trailing_metadata(_Tuple(_TRAILING))
    return StringValue(value="t")


def compressed(request: Any, context: Any) -> Any:
    """Ask for compression."""
    context.set_compression(grpc.Compression.Gzip)
    return StringValue(value=_BIG)


def uncompressed(request: Any, context: Any) -> Any:
    """Turn compression off for this message."""
    context.disable_next_message_compression()
    return StringValue(value=_BIG)


def reads_context(request: Any, context: Any) -> Any:
    """Answer with what the context says of the call."""
    metadata = dict(context.invocation_metadata())
    facts = [
        metadata["asked"],
        context.peer().split(":")[0],
        bool(context.auth_context() is not None),
        context.peer_identities(),
        context.peer_identity_key(),
        10 < context.time_remaining() < 60,
    ]
    return StringValue(value=repr(facts))


def reads_itself(request: Any, context: Any) -> Any:
    """Answer with what the context says of the status set."""
    before = (context.code(), context.details(), context.trailing_metadata())
    context.set_code(grpc.StatusCode.OK)
    context.set_details("d")
    context.set_trailing_metadata((("k", "v"),))
    after = (context.code(), context.details(), context.trailing_metadata())
    return StringValue(value=repr([before, after]))


def _sync_abort(request: Any, context: Any) -> Any:
    context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not now")


def _sync_abort_rich(request: Any, context: Any) -> Any:
    context.abort_with_status(_rich())


def _sync_abort_ok(request: Any, context: Any) -> Any:
    context.abort(grpc.StatusCode.OK, "fine?")


def _sync_abort_after_trailing(request: Any, context: Any) -> Any:
    context.set_trailing_metadata(_TRAILING)
    context.abort(grpc.StatusCode.ABORTED, "dé tails")


def _sync_abort_caught(request: Any, context: Any) -> Any:
    try:
        context.abort(grpc.StatusCode.ABORTED, "caught")
    except Exception:  # noqa: BLE001 - a handler that swallows its own abort
        return StringValue(value="never mind")


def _sync_initial(request: Any, context: Any) -> Any:
    context.send_initial_metadata(_INITIAL)
    return StringValue(value="i")


def _sync_initial_then_abort(request: Any, context: Any) -> Any:
    context.send_initial_metadata(_INITIAL)
    context.abort(grpc.StatusCode.INTERNAL, "late")


def _sync_bytes_details(request: Any, context: Any) -> Any:
    context.set_code(grpc.StatusCode.INTERNAL)
    context.set_details(b"as bytes")
    return StringValue()


def _sync_bad_code(request: Any, context: Any) -> Any:
    context.set_code(42)
    return StringValue()


async def _abort(request: Any, context: Any) -> Any:
    await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not now")


async def _abort_rich(request: Any, context: Any) -> Any:
    status = _rich()
    await context.abort(status.code, status.details, status.trailing_metadata)


async def _abort_ok(request: Any, context: Any) -> Any:
    await context.abort(grpc.StatusCode.OK, "fine?")


async def _abort_after_trailing(request: Any, context: Any) -> Any:
    context.set_trailing_metadata(_TRAILING)
    await context.abort(grpc.StatusCode.ABORTED, "dé tails")


async def _abort_without_details(request: Any, context: Any) -> Any:
    await context.abort(grpc.StatusCode.ABORTED)


async def _abort_with_none(request: Any, context: Any) -> Any:
    await context.abort(grpc.StatusCode.ABORTED, None)


async def _abort_caught(request: Any, context: Any) -> Any:
    try:
        await context.abort(grpc.StatusCode.ABORTED, "caught")
    except Exception:  # noqa: BLE001 - a handler that swallows its own abort
        return StringValue(value="never mind")


async def _initial(request: Any, context: Any) -> Any:
    await context.send_initial_metadata(_INITIAL)
    return StringValue(value="i")


async def _initial_then_abort(request: Any, context: Any) -> Any:
    await context.send_initial_metadata(_INITIAL)
    await context.abort(grpc.StatusCode.INTERNAL, "late")


_SHARED: dict[str, Callable[..., Any]] = {
    "Normal": normal,
    "Empty": empty,
    "CodeAndResponse": code_and_response,
    "CodeAlone": code_alone,
    "DetailsAlone": details_alone,
    "CodeOk": code_ok,
    "None": none,
    "CodeAndNone": code_and_none,
    "DetailsAndNone": details_and_none,
    "WrongType": wrong_type,
    "Raises": raises,
    "RaisesUnprintable": raises_unprintable,
    "CodeThenRaise": code_then_raise,
    "StatusThenRaise": status_then_raise,
    "DetailsThenRaise": details_then_raise,
    "TrailingThenRaise": trailing_then_raise,
    "Trailing": trailing,
    "TrailingTwice": trailing_twice,
    "Compressed": compressed,
    "Uncompressed": uncompressed,
    "ReadsContext": reads_context,
    "ReadsItself": reads_itself,
}

FUNCTIONS: dict[str, Callable[..., Any]] = {
    **_SHARED,
    "Abort": _sync_abort,
    "AbortRich": _sync_abort_rich,
    "AbortOk": _sync_abort_ok,
    "AbortAfterTrailing": _sync_abort_after_trailing,
    "AbortCaught": _sync_abort_caught,
    "Initial": _sync_initial,
    "InitialThenAbort": _sync_initial_then_abort,
    "BytesDetails": _sync_bytes_details,
    "BadCode": _sync_bad_code,
}


def _coroutine(function: Callable[..., Any]) -> Callable[..., Any]:
    async def handler(request: Any, context: Any) -> Any:
        return function(request, context)

    return handler


COROUTINES: dict[str, Callable[..., Any]] = {
    **{name: _coroutine(function) for name, function in _SHARED.items()},
    "Abort": _abort,
    "AbortRich": _abort_rich,
    "AbortOk": _abort_ok,
    "AbortAfterTrailing": _abort_after_trailing,
    "AbortWithoutDetails": _abort_without_details,
    "AbortWithNone": _abort_with_none,
    "AbortCaught": _abort_caught,
    "Initial": _initial,
    "InitialThenAbort": _initial_then_abort,
}
