"""OpenTelemetry (``rifl-grpc[tracing]``): attributes on spans, one trace for all attempts.

::

    rifl.Deduplicator(url, observer=TracingObserver())
    rifl.connect(target, observer=TracingObserver())

Makes no spans of its own: it adds to those of your instrumentation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from _rifl_ground.refusals import Outcome
from rifl.core._shared.identity import RpcId
from rifl.core._shared.observer import EndedCall, Observer, ServedCall

try:
    from opentelemetry import propagate, trace
    from opentelemetry.context import Context
except ImportError as error:  # pragma: no cover - needs an environment without it
    raise ImportError("rifl.tracing needs the extra: pip install 'rifl-grpc[tracing]'") from error

__all__ = ["TracingObserver", "caller_context"]


class TracingObserver(Observer):
    """Sets attributes on the current span, and carries the caller's trace context.

    On both sides ``rifl.client_id``, ``rifl.seq`` or ``rifl.key`` (hexadecimal),
    ``rifl.attempt``, ``rifl.outcome`` and ``rifl.reason`` (if there is one). On a
    server the span is the current one around rifl's interceptor; on a client
    the one that was current when the call was made, if it still records when the
    call ends.

    A batch's span has ``rifl.batch_items`` and, for each of its outcomes,
    ``rifl.batch_executed``, ``_replayed``, ``_not_executed`` and ``_unknown``.

    The trace context is put into the metadata once for each call, by the global
    propagators, unless the caller's metadata has it: every attempt carries the
    same. It keeps nothing itself: a span that a crash ends has no rifl attributes.
    Raises nothing; an error of a propagator or span is logged once, and the call goes on.
    Thread-safe.
    """

    def call_served(self, served: ServedCall) -> None:
        """Mark the server's current span."""
        span = trace.get_current_span()
        if not span.is_recording():
            return
        call = served.call
        _mark(
            span,
            None if call is None else call.rpc_id,
            1 if call is None else call.attempt,
            served.outcome,
            served.reason,
        )

    def call_begins(
        self, method: str, metadata: Sequence[tuple[str, Any]]
    ) -> tuple[Sequence[tuple[str, Any]], Any]:
        """Add the trace context to what all attempts carry, and keep the span."""
        carrier: dict[str, str] = {}
        propagate.inject(carrier)
        given = {key.lower() for key, _ in metadata}
        added = [(key, value) for key, value in carrier.items() if key not in given]
        return (*metadata, *added), trace.get_current_span()

    def call_ended(self, ended: EndedCall, begun: Any) -> None:
        """Mark the span that was current when the call was made."""
        if begun is not None and begun.is_recording():
            _mark(begun, ended.rpc_id, ended.attempts, ended.outcome, ended.reason)

    def batch_served(self, served: Sequence[ServedCall]) -> None:
        """Mark the server's current span with what became of a batch."""
        _mark_batch(trace.get_current_span(), served)

    def batch_ended(self, ended: Sequence[EndedCall], begun: Any) -> None:
        """Mark the span that was current when the batch was made."""
        if begun is not None:
            _mark_batch(begun, ended)


def caller_context(context: Any) -> Context:
    """Return the trace context that a call's metadata carries; an empty one if it has none.

    ``context`` is the handler's, ours or gRPC's, sync or aio; any thread. For handlers of
    servers without an instrumentation of their own::

        with tracer.start_as_current_span("Deposit", context=caller_context(context)):
    """
    carrier = {
        key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)
    }
    return propagate.extract(carrier)


def _mark_batch(span: trace.Span, items: Sequence[ServedCall | EndedCall]) -> None:
    if span.is_recording():
        span.set_attribute("rifl.batch_items", len(items))
        for outcome, count in Counter(item.outcome for item in items).items():
            span.set_attribute(f"rifl.batch_{outcome.value.replace('-', '_')}", count)


def _mark(
    span: trace.Span, rpc_id: RpcId | None, attempt: int, outcome: Outcome, reason: str
) -> None:
    if rpc_id is not None:
        span.set_attribute("rifl.client_id", rpc_id.client_id)
        if rpc_id.key is None:
            span.set_attribute("rifl.seq", rpc_id.seq or 0)
        else:
            span.set_attribute("rifl.key", rpc_id.key.hex())
    span.set_attribute("rifl.attempt", attempt)
    span.set_attribute("rifl.outcome", outcome.value)
    if reason:
        span.set_attribute("rifl.reason", reason)
