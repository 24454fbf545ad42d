"""Batches on a server: what the sync and aio shells share of them (DESIGN §4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rifl._server.call_engine import CallEngine
from rifl._wire.envelope import BatchedCall, parse_batch
from rifl._wire.header import ATTEMPTS_BY_GRPC_KEY, find_header
from rifl.core._serving.batching import BatchAnswer
from rifl.core._serving.client_entry import Attempt
from rifl.core._shared.call import Call


class Batch:
    """A batch in flight: its calls, and whether its caller still waits.

    Raises from its constructor what refuses the batch as a whole: ``BadHeader``,
    ``BatchTooLarge``, ``NotYours``, ``LeaseExpired``.
    """

    def __init__(self, engine: CallEngine, method: str, body: bytes, context: Any) -> None:
        self._engine = engine
        self._method = method
        metadata = context.invocation_metadata()
        header = find_header(metadata)
        self.calls: list[BatchedCall] = parse_batch(
            header or b"",
            method,
            body,
            max_items=engine.bounds.max_batch_items,
            max_bytes=engine.bounds.max_batch_bytes,
        )
        first = self.calls[0]
        retried = first.attempt == 1 and any(key == ATTEMPTS_BY_GRPC_KEY for key, _ in metadata)
        first.retried_by_grpc = retried
        engine.authenticate(first, context)
        for call in self.calls:
            engine.hide_payload(call)
        if first.peer or retried:
            for call in self.calls:
                call.peer, call.retried_by_grpc = first.peer, retried
        self._gone = False
        self._lapses = engine.store.lapses()
        # Handlers that raised: the first one is logged, the others are counted.
        self._raised: list[tuple[Call, BaseException]] = []

    def gone(self) -> bool:
        """Whether no further handler is begun.

        The caller has stopped waiting for the answer; or this process was suspended for so long
        that another one may have answered.
        """
        store = self._engine.store
        return self._gone or store.overdue() or store.lapses() != self._lapses

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
        return self._engine.replies.envelope(self._method, self.calls, answers, began, self._raised)


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
