"""Handlers' results: what is recorded of each, by the rules of its gRPC server (DESIGN §4)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc

from _rifl_ground.refusals import Outcome, RiflError, caller_text
from rifl._grpc.codes import STATUS_CODES
from rifl._server.context import AioHandlerContext, Noted
from rifl.core._serving.answer import Handled, HandlerResult
from rifl.core._serving.sendable import fits, sendable
from rifl.core._shared.record import CompletionRecord, Metadata

_OK, _UNKNOWN, _INTERNAL = 0, 2, 13
# Every call makes one: without the generated __new__.
_tuple: Any = tuple.__new__
_EXECUTED = Outcome.EXECUTED


def returned(
    context: Noted, response: Any, serialize: Callable[[Any], bytes] | None, *, aio: bool
) -> Handled:
    """Return what a handler that returned decided, by the rules of its gRPC server."""
    data: bytes | None
    failed: BaseException | None = None
    try:
        data = response if serialize is None else serialize(response)
        if data.__class__ is bytes:
            if not context.spoke:
                bare: CompletionRecord = _tuple(
                    CompletionRecord, (0, "", data, (), (), _EXECUTED, "", ())
                )
                return bare
        elif data is not None:
            data = message_bytes(data)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and isinstance(context, AioHandlerContext):
            # It ends the loop, and is no answer: the next start finds the call as after a crash.
            raise
        # Whatever a user's serializer raises.
        data, failed = None, error
    code = _OK if context.noted_code is None else _number(context.noted_code, aio=aio)
    details = context.noted_details
    if failed is not None and aio and code == _OK:
        return raised_result(context, failed, aio=True)
    if data is None and not aio:
        code = code or _INTERNAL
        details = "Failed to serialize response!" if details is None else details
    record = CompletionRecord(
        code, details or "", data, context.noted_initial, context.noted_trailing
    )
    return sendable(record, context.rifl_attempt.policy.max_metadata_bytes)


def returned_result(
    context: Noted, response: Any, serialize: Callable[[Any], bytes] | None, *, aio: bool
) -> HandlerResult:
    """Do what ``returned`` does, for callers that take one form only."""
    handled = returned(context, response, serialize, aio=aio)
    return handled if isinstance(handled, HandlerResult) else HandlerResult(handled)


def raised_result(context: Noted, error: BaseException, *, aio: bool) -> HandlerResult:
    """Return the result of a handler that aborted, or raised, in the words of its server.

    One that was cancelled, as an event loop does when it ends, has not answered.
    """
    cancelled = isinstance(error, asyncio.CancelledError)
    if cancelled:
        context.rifl_serving.store.was_cancelled(context.rifl_attempt)
    code = _UNKNOWN if context.noted_code is None else _number(context.noted_code, aio=aio)
    details = context.noted_details
    if not context.aborted and (aio or details is None):
        details = _text(error, aio=aio)
    record = CompletionRecord(
        code or _UNKNOWN, details or "", None, context.noted_initial, context.noted_trailing
    )
    return HandlerResult(
        sendable(record, context.rifl_attempt.policy.max_metadata_bytes),
        not context.aborted,
        "the handler was cancelled" if cancelled else "",
        context.rifl_undone,
    )


def message_bytes(data: Any) -> bytes:
    """Return what was serialised; raises ``TypeError`` for what gRPC does not send.

    Behind the handler that would be found too late: the call would never end.
    """
    if not isinstance(data, bytes):
        raise TypeError(f"a message is serialised to bytes, not {type(data).__name__}")
    return data


def first_metadata(context: Noted) -> Metadata:
    """Return what is sent before the first message of a response stream."""
    initial = context.noted_initial
    # What does not fit is told at the end: the call goes on.
    limit = context.rifl_attempt.policy.max_metadata_bytes
    return initial if not initial or fits(initial, limit) else ()


def _text(error: BaseException, *, aio: bool) -> str:
    try:
        # Of rifl's own, as of a transaction that could not begin, callers learn no more elsewhere.
        told = caller_text(error) if isinstance(error, RiflError) else error
        what = f"Unexpected {type(error)}" if aio else "Exception calling application"
        return f"{what}: {told}"
    except Exception:  # noqa: BLE001 - a __str__ may do anything
        return "Calling application raised unprintable Exception!"


def _number(code: Any, *, aio: bool) -> int:
    if isinstance(code, grpc.StatusCode):
        number: int = code.value[0]
        return number
    # Given a number and no code, gRPC's sync server answers UNKNOWN; its aio server takes it.
    return code if aio and isinstance(code, int) and code in STATUS_CODES else _UNKNOWN
