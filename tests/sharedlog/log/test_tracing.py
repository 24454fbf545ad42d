"""OpenTelemetry: a publisher's span and its followers' are linked, through the log (DESIGN §9)."""

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import sharedlog
import sharedlog.aio
from sharedlog.tracing import TracingLogObserver, message_context, process


@pytest.fixture
def spans(monkeypatch):
    """What the SDK exports of the spans that are made from now on."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    return exporter


def named(spans, name):
    [found] = [each for each in spans.get_finished_spans() if each.name == name]
    return found


@pytest.fixture
def log():
    with sharedlog.create("memory:", observer=TracingLogObserver()) as made:
        made.stream("s", 1)
        yield made


def test_a_publisher_and_its_follower_are_linked(log, spans):
    """The span of who processes a message links to that of who published it (DESIGN §9)."""
    with trace.get_tracer("test").start_as_current_span("caller") as caller:
        position = log.publish("s", b"one")
    [message] = log.read("s", 0)
    with process(message) as current:
        assert trace.get_current_span() is current
    published, processed = named(spans, "publish s"), named(spans, "process s")
    assert published.parent.span_id == caller.get_span_context().span_id
    assert published.kind is trace.SpanKind.PRODUCER
    assert processed.kind is trace.SpanKind.CONSUMER
    assert [each.context.span_id for each in processed.links] == [published.context.span_id]
    assert [each.context.trace_id for each in processed.links] == [published.context.trace_id]
    assert published.attributes["messaging.message.id"] == str(position)
    assert processed.attributes["messaging.message.id"] == str(position)
    child = trace.get_current_span(message_context(message)).get_span_context()
    assert child.span_id == published.context.span_id


async def test_tasks_are_linked_too(spans):
    """The same on an event loop (DESIGN §9, thin shells)."""
    async with await sharedlog.aio.create("memory:", observer=TracingLogObserver()) as log:
        await log.stream("s", 1)
        await log.publish("s", b"one")
        async with log.follow("s") as following:
            async for message in following:
                with process(message):
                    break
    [link] = named(spans, "process s").links
    assert link.context.span_id == named(spans, "publish s").context.span_id


def test_messages_of_a_transaction_carry_their_own_spans(log, spans):
    """Each message of a transaction has a span, whose context is in its envelope (DESIGN §9)."""
    with log.producer().transaction() as transaction:
        transaction.publish("s", b"one")
        transaction.publish("s", b"two")
    carried = [
        trace.get_current_span(message_context(each)).get_span_context().span_id
        for each in log.read("s", 0)
    ]
    assert carried == [each.context.span_id for each in spans.get_finished_spans()]


def test_a_named_seq_is_answered_whatever_its_trace(log, spans):
    """A restarted program's spans are others, and its messages the same (L3)."""
    for _ in range(2):
        with log.producer("relay").transaction(seq=1, follows=0) as transaction:
            transaction.publish("s", b"one")
    assert len(log.read("s", 0)) == 1


def test_a_given_context_is_kept(log, spans):
    """A message that has a trace context keeps it, and the span links there (DESIGN §9)."""
    given = "00-" + "1" * 32 + "-" + "2" * 16 + "-01"
    log.publish("s", b"one", about=sharedlog.About(trace_parent=given))
    assert log.read("s", 0)[0].trace_parent == given
    [link] = named(spans, "publish s").links
    assert link.context.span_id == int("2" * 16, 16)


def test_an_error_ends_the_span(log, spans):
    """What is refused has a span with its error (DESIGN §9)."""
    with pytest.raises(sharedlog.NoSuchStream):
        log.publish("none", b"one")
    found = named(spans, "publish none")
    assert found.status.description == "NoSuchStream"
    assert found.events[0].name == "exception"


def test_without_the_sdk_nothing_is_carried(log):
    """Where nobody records, messages have no context, and following goes on (DESIGN §9)."""
    log.publish("s", b"one")
    [message] = log.read("s", 0)
    assert message.trace_parent == ""
    with process(message) as span:
        assert not span.is_recording()
