"""OpenTelemetry: attributes on both sides, one trace for all attempts (DESIGN §9)."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import rifl
from rifl.tracing import TracingObserver, caller_context
from tests.echo import METHOD, aio_served, lose_answers, served


@pytest.fixture
def spans() -> Any:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider.get_tracer("test"), exporter


def _spanning(tracer: Any) -> Any:
    """What an instrumentation does: an interceptor with a span around the handler."""

    class Spanning(grpc.ServerInterceptor):
        def intercept_service(self, continuation: Any, details: Any) -> Any:
            handler = continuation(details)
            if details.method != METHOD:
                return handler
            inner = handler.unary_unary

            def spanned(request: bytes, context: Any) -> Any:
                with tracer.start_as_current_span("served", context=caller_context(context)):
                    return inner(request, context)

            return handler._replace(unary_unary=spanned)

    return Spanning()


def _attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def test_all_attempts_are_in_the_callers_trace(spans: Any) -> None:
    """A retry carries the same trace context, and both sides say what became of it (DESIGN §3)."""
    tracer, exporter = spans
    with (
        rifl.Deduplicator("memory:", observer=TracingObserver()) as dedup,
        served(dedup, around=[lose_answers(1), _spanning(tracer)]) as target,
        rifl.connect(target, observer=TracingObserver()) as channel,
        tracer.start_as_current_span("caller") as caller,
    ):
        assert channel.unary_unary(METHOD)(b"x", timeout=10) == b"x"
        rpc_client_id = channel.session.client_id
    finished = exporter.get_finished_spans()
    servers = [span for span in finished if span.name == "served"]
    mine = next(span for span in finished if span.name == "caller")
    parent = caller.get_span_context()
    assert [span.parent.span_id for span in servers] == [parent.span_id, parent.span_id]
    assert {span.context.trace_id for span in servers} == {parent.trace_id}
    identity = {"rifl.client_id": rpc_client_id, "rifl.seq": 1}
    assert [_attributes(span) for span in servers] == [
        {**identity, "rifl.attempt": 1, "rifl.outcome": "executed"},
        {**identity, "rifl.attempt": 2, "rifl.outcome": "replayed"},
    ]
    assert _attributes(mine) == {**identity, "rifl.attempt": 2, "rifl.outcome": "replayed"}


def test_a_callers_own_context_is_kept() -> None:
    """Metadata that has a trace context already goes out as it is (DESIGN §9)."""
    given = (("traceparent", "00-" + "1" * 32 + "-" + "2" * 16 + "-01"),)
    metadata, _ = TracingObserver().call_begins(METHOD, given)
    assert metadata == given


async def test_aio_calls_are_marked_too(spans: Any) -> None:
    """On an event loop the caller's span gets the attributes, a refusal its reason (DESIGN §9)."""
    tracer, exporter = spans
    async with (
        rifl.Deduplicator("memory:", observer=TracingObserver()) as dedup,
        aio_served(dedup) as target,
        rifl.aio.connect(
            target,
            observer=TracingObserver(),
            retry=rifl.RetryPolicy(max_attempts=1),
        ) as channel,
    ):
        call = channel.unary_unary(METHOD)
        with tracer.start_as_current_span("good"):
            await call(b"x", timeout=10)
        dedup.drain()
        with tracer.start_as_current_span("bad"), pytest.raises(grpc.RpcError):
            await call(b"x", timeout=10)
    good, bad = exporter.get_finished_spans()
    assert _attributes(good)["rifl.outcome"] == "executed"
    assert _attributes(bad)["rifl.reason"] == "DRAINING"
    assert _attributes(bad)["rifl.outcome"] == "unknown"


def test_a_batch_is_one_span_with_its_counts(spans: Any) -> None:
    """How many items, and what became of them, on both sides (DESIGN §4, §9)."""
    tracer, exporter = spans
    with (
        rifl.Deduplicator("memory:", observer=TracingObserver()) as dedup,
        served(dedup, around=[_spanning(tracer)]) as target,
        rifl.connect(target, observer=TracingObserver(), session="s") as channel,
        tracer.start_as_current_span("caller"),
    ):
        items = [rifl.BatchItem(b"x", key) for key in (b"1", b"2", b"1")]
        channel.batch(METHOD, items, timeout=10)
    finished = exporter.get_finished_spans()
    assert {span.name for span in finished} == {"served", "caller"}
    for span in finished:
        assert _attributes(span) == {
            "rifl.batch_items": 3,
            "rifl.batch_executed": 2,
            "rifl.batch_replayed": 1,
        }
    assert len({span.context.trace_id for span in finished}) == 1
