"""Between what a handler did, what is recorded, and what gRPC sends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

import grpc

from rifl._grpc.codes import STATUS_CODES
from rifl._grpc.status import DETAILS_KEY, details_bin, rich_status
from rifl._server.context import Noted
from rifl._wire.labels import OUTCOME_KEY, RPC_INFO
from rifl.core._serving.sendable import cut, fits, sendable
from rifl.core._serving.serving import Answer, Handled, HandlerResult
from rifl.core._shared.call import Call
from rifl.core._shared.errors import LeaseExpired, NotLeader, RiflError
from rifl.core._shared.outcome import Outcome
from rifl.core._shared.reasons import REASONS, told_outcome
from rifl.core._shared.record import CompletionRecord, Metadata

# Of a refusal, whose text travels twice.
_TEXT_BYTES = 1000
_OK, _UNKNOWN, _INTERNAL = 0, 2, 13
# Past the generated __new__, for what is made on every call.
_tuple: Any = tuple.__new__
_EXECUTED = Outcome.EXECUTED


class Status(NamedTuple):
    """What is sent: metadata, and either a response or a status with none."""

    code: int
    details: str
    initial_metadata: Metadata
    trailing_metadata: Metadata
    response: bytes | None


def returned(
    context: Noted, response: Any, serialize: Callable[[Any], bytes] | None, *, aio: bool
) -> Handled:
    """Return what a handler that returned decided, by the rules of its gRPC server."""
    data: bytes | None = None
    failed: Exception | None = None
    try:
        data = response if serialize is None else serialize(response)
    except Exception as error:  # noqa: BLE001 - whatever a user's serializer raises
        failed = error
    if data is not None and not context.spoke:
        bare: CompletionRecord = _tuple(CompletionRecord, (0, "", data, (), (), _EXECUTED, "", ()))
        return bare
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
    """Do what ``returned`` does, for whoever takes one form only."""
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


def first_metadata(context: Noted) -> Metadata:
    """Return what is sent before the first message of a response stream."""
    initial = context.noted_initial
    # What does not fit is told at the end: the call goes on.
    limit = context.rifl_attempt.policy.max_metadata_bytes
    return initial if not initial or fits(initial, limit) else ()


def is_bare(record: CompletionRecord, call: Call) -> bool:
    """Whether an executed call's answer is its response and nothing else, as most are.

    Trailing metadata set from Python is dear: a first attempt's success that was
    executed carries none of ours.
    """
    # Code, details and metadata, by position: half the cost.
    return call.attempt == 1 and not (
        record[0] or record[1] or record[3] or record[4] or call.marks
    )


def answer_status(answer: Answer, call: Call) -> Status:
    """Return what an answer to a call is sent as, with what the store says beside it.

    Everything says its outcome but a first attempt's success that was executed;
    an error does always, since gRPC and proxies make errors of their own that look
    the same.
    """
    record, outcome = answer
    trailing = record.trailing_metadata
    if record.reason:
        code = STATUS_CODES[record.code]
        details = details_bin(code, record.reason, record.details, _speaks_of(call))
        trailing = (*trailing, (DETAILS_KEY, details))
    if call.attempt > 1 or outcome is not Outcome.EXECUTED or record.code != _OK:
        trailing = (*trailing, (OUTCOME_KEY, outcome.value))
    if call.marks:
        trailing = (*trailing, *call.marks)
    return Status(record.code, record.details, record.initial_metadata, trailing, record.response)


def refusal_status(error: RiflError, call: Call | None) -> Status:
    """Return what a refusal is sent as: rich details and the outcome."""
    info, retry_after_s = refusal_info(error, call)
    code = grpc.StatusCode[error.code]
    status = rich_status(code, error.reason, cut(str(error), _TEXT_BYTES), info, retry_after_s)
    outcome = refusal_outcome(error, call)
    trailing = (*status.trailing_metadata, (OUTCOME_KEY, outcome.value))
    return Status(status.code.value[0], status.details, (), trailing, None)


def refusal_outcome(error: RiflError, call: Call | None) -> Outcome:
    """Return what a refusal says of the call, which others may have sent under its key."""
    call = error.arrival if call is None else call
    return told_outcome(error, keyed=call is not None and call.key is not None)


def refusal_info(error: RiflError, call: Call | None) -> tuple[dict[str, str], float | None]:
    """Return what an ErrorInfo says beside the reason, and when asking again may help.

    ``call`` is the one that is refused; where it is None, the one that the error itself
    was raised for, if that had an identity.
    """
    call = error.arrival if call is None else call
    info = {} if call is None else _speaks_of(call)
    if isinstance(error, LeaseExpired) and call is not None and call.retried_by_grpc:
        info["previous_attempts"] = "true"
    if isinstance(error, NotLeader) and error.leader:
        info["leader"] = error.leader
    if store := error.store or (0 if call is None else call.store):
        info["store"] = f"{store:016x}"
    return info, REASONS[error.reason].retry_after_s


def _speaks_of(call: Call) -> dict[str, str]:
    """Return what binds a label to one identity: forwarded to another caller, it is ignored."""
    return {RPC_INFO: str(call.rpc_id)}


def _text(error: BaseException, *, aio: bool) -> str:
    try:
        return (
            f"Unexpected {type(error)}: {error}"
            if aio
            else f"Exception calling application: {error}"
        )
    except Exception:  # noqa: BLE001 - a __str__ may do anything
        return "Calling application raised unprintable Exception!"


def _number(code: Any, *, aio: bool) -> int:
    if isinstance(code, grpc.StatusCode):
        number: int = code.value[0]
        return number
    # Of numbers gRPC's sync server makes UNKNOWN.
    return code if aio and isinstance(code, int) and code in STATUS_CODES else _UNKNOWN
