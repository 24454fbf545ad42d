"""OpenTelemetry's OTLP exporter sends each batch of spans once (docs/how-to/libraries.md)."""

from __future__ import annotations

from typing import Any

from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult

import rifl
from rifl.testing import serve


class _Collector(trace_service_pb2_grpc.TraceServiceServicer):
    def __init__(self) -> None:
        self.spans: list[str] = []

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - the proto's
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                self.spans += [span.name for span in scope.spans]
        return trace_service_pb2.ExportTraceServiceResponse()


def test_spans_are_exported_once_though_answers_are_lost() -> None:
    """The exporter retries UNAVAILABLE itself; with our channel its batch has one effect."""
    collector = _Collector()

    def add(server: Any) -> None:
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)

    with serve(add) as service, rifl.instrument(service.address):
        # It takes gRPC's function at its import: ours by now.
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

        exporter = OTLPSpanExporter(endpoint=service.address, insecure=True, timeout=20)
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        tracer = provider.get_tracer("tests")
        for number in range(5):
            service.faults.arm("drop-answer", 2)
            with tracer.start_as_current_span(f"span {number}"):
                pass
        assert service.faults.struck("drop-answer") == 10
        assert collector.spans == [f"span {number}" for number in range(5)]
        assert exporter.export([]) is SpanExportResult.SUCCESS
        provider.shutdown()
