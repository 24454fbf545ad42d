"""OpenTelemetry's interceptor of servers wraps the handlers of rifl's own services as well."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from opentelemetry.instrumentation.grpc import server_interceptor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import rifl


def test_calls_of_rifls_own_services_have_spans() -> None:
    """To interceptors their handlers are unary, and what wraps them is served."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with rifl.Deduplicator("memory:") as dedup:
        chain: Any = [server_interceptor(tracer_provider=provider), dedup.interceptor()]
        server = grpc.server(ThreadPoolExecutor(4), interceptors=chain)
        dedup.add_to_server(server)
        dedup.add_health(server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        methods = ["/lease_server.v1.LeaseServer/Grant", "/grpc.health.v1.Health/Check"]
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            for method in methods:
                assert channel.unary_unary(method)(b"", timeout=10)
        server.stop(None).wait()
    provider.shutdown()
    assert [span.name for span in exporter.get_finished_spans()] == methods
