"""Batched calls: what their sync and aio shells share (DESIGN §4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rifl._server.answers import refusal_info, refusal_outcome
from rifl._server.engine import Engine
from rifl._wire.envelope import BatchedCall, encode_executed, encode_reply, is_bare, parse_batch
from rifl._wire.envelope import ItemReply as Reply
from rifl._wire.header import ATTEMPTS_BY_GRPC_KEY, find_header
from rifl.core._serving.batching import BatchAnswer
from rifl.core._serving.client_entry import Attempt
from rifl.core._serving.serving import Answer
from rifl.core._shared.call import Call
from rifl.core._shared.codes import CODE_NUMBERS
from rifl.core._shared.errors import (
    BatchTooLarge,
    Draining,
    LeaseExpired,
    NotLeader,
    NotYours,
    RiflError,
    SessionClosed,
    StoreMismatch,
    StoreUnavailable,
)
from rifl.core._shared.outcome import Outcome
from rifl.core._shared.record import CompletionRecord

# Said of the client or of the server, not of the call: told once if told of all.
_OF_ALL = (
    LeaseExpired,
    NotYours,
    SessionClosed,
    StoreMismatch,
    Draining,
    StoreUnavailable,
    NotLeader,
)
# What an item's answer takes beside what it says, roughly.
_ITEM_BYTES = 32


class Batch:
    """One batch under way: its calls, and whether its caller still waits.

    Raises from its constructor what refuses the batch as a whole: ``BadHeader``,
    ``BatchTooLarge``, ``NotYours``, ``LeaseExpired``.
    """

    def __init__(self, engine: Engine, method: str, body: bytes, context: Any) -> None:
        self._engine = engine
        self._method = method
        metadata = context.invocation_metadata()
        header = find_header(metadata)
        self.calls: list[BatchedCall] = parse_batch(
            header or b"",
            method,
            body,
            max_items=engine.max_batch_items,
            max_bytes=engine.max_batch_bytes,
        )
        first = self.calls[0]
        retried = first.attempt == 1 and any(key == ATTEMPTS_BY_GRPC_KEY for key, _ in metadata)
        first.retried_by_grpc = retried
        engine.authenticate(first, context)
        if first.peer or retried:
            for call in self.calls:
                call.peer, call.retried_by_grpc = first.peer, retried
        self._gone = False
        # Handlers that raised: the first one is logged, the others are counted.
        self._raised: list[tuple[Call, BaseException]] = []

    def gone(self) -> bool:
        """Whether nobody waits for the answer any more."""
        return self._gone

    def leave(self) -> None:
        """Note that the caller is gone: no further handlers are begun."""
        self._gone = True
        for call in self.calls:
            call.gone = True

    def raised(self, attempt: Attempt, error: BaseException) -> None:
        """Note that a handler raised; its item is answered as gRPC would."""
        self._raised.append((attempt.call, error))

    def reply(self, answers: Sequence[BatchAnswer], began: float) -> bytes:
        """Return the batch's answer; raises the one refusal that is every item's."""
        self._engine.tail.batch(self._method, self.calls, answers, began, self._raised)
        first = answers[0]
        if isinstance(first, _OF_ALL) and all(type(other) is type(first) for other in answers):
            raise first
        left = self.calls[0].max_response_bytes
        if (executed := _executed(answers)) is not None and (
            sum(map(len, executed)) + _ITEM_BYTES * len(executed) <= left
        ):
            return encode_executed(executed)
        replies: list[Reply] = []
        for call, answer in zip(self.calls, answers, strict=True):
            reply = _reply(call, answer)
            size = reply.record.size + _ITEM_BYTES
            if size <= left:
                left -= size
            else:
                # It is recorded: asked for again, in a smaller batch, it fits.
                error = BatchTooLarge("the answers do not fit one message")
                reply = _refusal(error, call)._replace(outcome=Outcome.UNKNOWN)
            replies.append(reply)
        return encode_reply(replies)


class ItemsContext:
    """gRPC's context as the handlers of a batch may use it: the RPC is not theirs alone.

    Their own contexts note what they say; what is left would be the whole RPC's.
    """

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def cancel(self) -> bool:
        """Do nothing: the other items' answers travel in the same RPC."""
        return False

    def set_compression(self, compression: Any) -> None:
        """Do nothing, as above."""

    def disable_next_message_compression(self) -> None:
        """Do nothing, as above."""


def _executed(answers: Sequence[BatchAnswer]) -> list[bytes] | None:
    """Return the responses if all items were executed, with no more to say of any."""
    responses: list[bytes] = []
    for answer in answers:
        if type(answer) is not Answer:
            return None
        record, outcome = answer
        if outcome is not Outcome.EXECUTED or not is_bare(record):
            return None
        responses.append(record.response)  # type: ignore[arg-type]  # a bare one has one
    return responses


def _reply(call: Call, answer: BatchAnswer) -> Reply:
    if isinstance(answer, Answer):
        return Reply(answer.record, answer.outcome)
    if isinstance(answer, RiflError):
        return _refusal(answer, call)
    # As for a single call: gRPC logs it, and the caller asks again.
    raise answer


def _refusal(error: RiflError, call: Call) -> Reply:
    info, retry_after_s = refusal_info(error, call)
    outcome = refusal_outcome(error, call)
    record = CompletionRecord(
        CODE_NUMBERS[error.code], str(error), outcome=outcome, reason=error.reason
    )
    return Reply(record, outcome, retry_after_s, info)
