"""Metrics and traces of consumers (DESIGN §9, DESIGN-LOG §14)."""

import json

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry

import rifl
import sharedlog
from sharedlog import ConsumerObserver, InvalidRequest
from sharedlog.metrics import PrometheusConsumerObserver
from sharedlog.testing import drain
from sharedlog.tracing import TracingConsumerObserver, TracingLogObserver
from tests.echo import METHOD, served
from tests.sharedlog.consumer.world import World


@pytest.fixture
def spans(monkeypatch):
    """What the SDK exports of the spans that are made from now on."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    return exporter


def test_metrics_count_messages_failures_dead_letters_and_calls(tmp_path, monkeypatch):
    """By consumer and stream, as they are committed (DESIGN §9)."""
    monkeypatch.setenv("RIFL_SESSION_SECRET", "known to the tests")
    registry = CollectorRegistry()
    world = World(tmp_path, orders=3, substreams=1, attempts=2, dead_letters="dead")
    world.log.stream("dead", substreams=1)
    world.refused = {"c0"}

    def value(name, **labels):
        labels = {"consumer": "billing", **labels}
        return registry.get_sample_value(f"sharedlog_consumer_{name}", labels)

    with rifl.Deduplicator("memory:") as dedup, served(dedup) as target:
        world.looks = lambda order, effects: effects.channel(target).unary_unary(METHOD)(b"")
        drain(world.consumer(observer=PrometheusConsumerObserver(registry)))
        assert value("call_seconds_count", target=target) == 4
        assert value("call_failures_total", target=target) is None
    assert value("messages_total", stream="orders") == 2
    assert value("effect_seconds_count", stream="orders") == 2
    assert value("dead_letters_total", stream="orders") == 2
    assert value("failures_total", stream="orders") >= 4
    assert value("handler_seconds_count", stream="orders") >= 6
    assert value("takeovers_total", died="false") == 1
    assert value("transactions_total") == 2


def test_a_handlers_span_links_to_who_published_and_is_current(tmp_path, spans):
    """What the handler publishes carries it; async handlers have it current, too (DESIGN §9)."""
    log = sharedlog.create("memory:", observer=TracingLogObserver())
    for stream in ("orders", "invoices"):
        log.stream(stream, substreams=1)
    log.publish("orders", b"1")
    log.publish("orders", b"2")
    consumer = sharedlog.Consumer(
        log,
        "billing",
        ["orders"],
        f"sqlite:///{tmp_path / 'bills.db'}",
        observer=[TracingConsumerObserver(), ConsumerObserver()],
    )
    current = []

    @consumer.on("orders", json.loads)
    async def bill(order, effects):
        current.append(trace.get_current_span())
        effects.publish("invoices", str(order))

    drain(consumer)
    assert not trace.get_current_span().get_span_context().is_valid
    published = [each for each in spans.get_finished_spans() if each.name == "publish orders"]
    handled = [each for each in spans.get_finished_spans() if each.name == "process orders"]
    for made, took, seen in zip(published, handled, current, strict=True):
        assert [each.context.span_id for each in took.links] == [made.context.span_id]
        assert took.kind is trace.SpanKind.CONSUMER
        assert took.attributes["sharedlog.consumer"] == "billing"
        assert seen.get_span_context().span_id == took.context.span_id
    carried = [each.trace_parent.split("-")[2] for each in log.read("invoices", 0)]
    assert carried == [f"{each.context.span_id:016x}" for each in handled]


def test_a_handler_that_raises_ends_its_span_with_an_error(tmp_path, spans):
    """And another run has a span of its own (DESIGN §9)."""
    world = World(tmp_path, orders=1, substreams=1)
    failures = iter([ValueError("not yet")])

    def fail(order, effects):
        for error in failures:
            raise error

    world.looks = fail
    drain(world.consumer(observer=TracingConsumerObserver()))
    codes = [each.status.status_code for each in spans.get_finished_spans()]
    assert codes == [trace.StatusCode.ERROR, trace.StatusCode.UNSET]
    world.check()


def test_an_observer_that_raises_changes_nothing(tmp_path):
    """Each of its methods: effects are those of one run (DESIGN §9)."""

    class Broken(ConsumerObserver):
        def __getattribute__(self, name):
            if not name.startswith("_"):
                raise RuntimeError(name)
            return super().__getattribute__(name)

    world = World(tmp_path, orders=3)
    drain(world.consumer(observer=Broken()))
    world.check()
    with pytest.raises(InvalidRequest):
        world.consumer(observer=print)
