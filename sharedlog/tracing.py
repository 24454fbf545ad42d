"""OpenTelemetry of a log (``rifl-grpc[tracing]``): a publisher's trace leads to its followers.

::

    log = sharedlog.open(url, observer=TracingLogObserver())
    log.publish("orders", order)

    for message in log.follow("orders"):
        with process(message):
            ...
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sharedlog._core.consumer.observer import ConsumerObserver, HandlingReport
from sharedlog._core.envelope import MAX_TEXT_BYTES, About
from sharedlog._core.errors import SealedMessage
from sharedlog._core.message import Message
from sharedlog._core.observer import LogObserver
from sharedlog._core.player.observer import DeliveryReport, PlayerObserver
from sharedlog._core.position import Position

try:
    from opentelemetry import trace
    from opentelemetry.context import Context, attach, detach
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as error:  # pragma: no cover - needs an environment without it
    raise ImportError(
        "sharedlog.tracing needs the extra: pip install 'rifl-grpc[tracing]'"
    ) from error

__all__ = [
    "TracingConsumerObserver",
    "TracingLogObserver",
    "TracingPlayerObserver",
    "message_context",
    "process",
]

_W3C = TraceContextTextMapPropagator()


class TracingLogObserver(LogObserver):
    """A span ``publish STREAM`` for each message, whose context travels in its envelope.

    Of kind producer, a child of the current span, with ``messaging.system`` (``sharedlog``),
    ``messaging.destination.name`` and, once it is known, ``messaging.message.id``, the position.
    In a transaction it ends when the message is added to that. A message with a trace context of
    its own (``About.trace_parent``) keeps it, and the span links to it.
    Thread-safe.
    """

    def publish_begins(
        self, log: str, stream: str, about: About | None
    ) -> tuple[About | None, Any]:
        """Begin the span, and have the message carry its context."""
        given = about is not None and about.trace_parent
        span = trace.get_tracer("sharedlog").start_span(
            f"publish {stream}",
            kind=trace.SpanKind.PRODUCER,
            links=_links(about.trace_parent, about.trace_state) if about and given else (),
            attributes={
                "messaging.system": "sharedlog",
                "messaging.operation.type": "send",
                "messaging.destination.name": stream,
                "sharedlog.log": log,
            },
        )
        if given:
            return about, span
        parent, state = _carrying(span)
        return (about or About())._replace(trace_parent=parent, trace_state=state), span

    def publish_ended(
        self, begun: Any, position: Position | None, error: BaseException | None
    ) -> None:
        """End the span, with the position, or the error."""
        if begun is None:
            return
        if position is not None:
            begun.set_attribute("messaging.message.id", str(position))
        if error is not None:
            begun.record_exception(error)
            begun.set_status(trace.StatusCode.ERROR, type(error).__name__)
        begun.end()


class TracingPlayerObserver(PlayerObserver):
    """A span ``deliver STREAM`` for each message that a player sends to a target.

    ::

        sharedlog.Player(log, targets, observer=TracingPlayerObserver())

    Of kind consumer, from the sending until the target has done the message, or failed (status
    error). It is a child of the publisher's span, and links to it. The handler's context has it as
    ``traceparent``, so that ``rifl.tracing.caller_context`` makes the handler's span its child. A
    message without a trace context begins a trace. A retried message has a span for each
    attempt. Attributes: ``messaging.system`` (``sharedlog``), ``messaging.operation.name``
    (``deliver``), ``messaging.destination.name`` and ``.partition.id``, ``messaging.message.id``,
    ``sharedlog.player``, ``sharedlog.target``, ``sharedlog.redelivery``.
    Thread-safe.
    """

    def sending(self, delivery: DeliveryReport) -> tuple[str, str, Any]:
        """Begin the span, and have the message carry its context."""
        parent, state = delivery.trace
        span = trace.get_tracer("sharedlog").start_span(
            f"deliver {delivery.stream}",
            context=_context(parent, state),
            kind=trace.SpanKind.CONSUMER,
            links=_links(parent, state),
            attributes={
                "messaging.system": "sharedlog",
                "messaging.operation.name": "deliver",
                "messaging.operation.type": "process",
                "messaging.destination.name": delivery.stream,
                "messaging.destination.partition.id": str(delivery.position.substream),
                "messaging.message.id": str(delivery.position),
                "sharedlog.player": delivery.player,
                "sharedlog.target": delivery.target,
                "sharedlog.redelivery": delivery.again,
            },
        )
        return (*_carrying(span), span)

    def answered(self, delivery: DeliveryReport, begun: Any, seconds: float, error: str) -> None:
        """End the span."""
        if begun is None:
            return
        if error:
            begun.set_status(trace.StatusCode.ERROR, error)
        begun.end()


class TracingConsumerObserver(ConsumerObserver):
    """A span ``process STREAM`` for each run of a consumer's function, current while it runs.

    ::

        sharedlog.Consumer(log, ..., observer=TracingConsumerObserver())

    Of kind consumer, with a link to the publisher's span: a consumer's work has a trace of its
    own. Messages that the function publishes carry the span's context. Each run has a span; if it
    raises, the span has status error. Attributes as ``process``, and
    ``sharedlog.consumer``. Thread-safe.
    """

    def handling(self, report: HandlingReport) -> tuple[str, str, Any]:
        """Begin the span, and have it be current."""
        parent, state = report.trace
        span = trace.get_tracer("sharedlog").start_span(
            f"process {report.stream}",
            kind=trace.SpanKind.CONSUMER,
            links=_links(parent, state),
            attributes={
                "messaging.system": "sharedlog",
                "messaging.operation.type": "process",
                "messaging.destination.name": report.stream,
                "messaging.destination.partition.id": str(report.position.substream),
                "messaging.message.id": str(report.position),
                "sharedlog.consumer": report.consumer,
            },
        )
        return (*_carrying(span), (span, attach(trace.set_span_in_context(span))))

    def handled(self, report: HandlingReport, begun: Any, seconds: float, error: str) -> None:
        """End the span."""
        if begun is None:
            return
        span, token = begun
        detach(token)
        if error:
            span.set_status(trace.StatusCode.ERROR, error)
        span.end()


@contextmanager
def process(message: Message) -> Iterator[trace.Span]:
    """Make a span ``process STREAM`` current, with a link to the message's publisher.

    It is a link because a follower's work has a trace of its own, and may cover many messages. For
    a child span use ``message_context``. In a thread or a task.
    """
    with trace.get_tracer("sharedlog").start_as_current_span(
        f"process {message.stream}",
        kind=trace.SpanKind.CONSUMER,
        links=_links(*_carried(message)),
        attributes={
            "messaging.system": "sharedlog",
            "messaging.operation.type": "process",
            "messaging.destination.name": message.stream,
            "messaging.destination.partition.id": str(message.substream),
            "messaging.message.id": str(message.position),
        },
    ) as span:
        yield span


def message_context(message: Message) -> Context:
    """Return the trace context of a message's publisher; an empty one if it has none."""
    return _context(*_carried(message))


def _carried(message: Message) -> tuple[str, str]:
    try:
        return message.trace_parent, message.trace_state
    except SealedMessage:
        return "", ""


def _carrying(span: trace.Span) -> tuple[str, str]:
    """Return the headers that make a span the parent: a traceparent, and a tracestate."""
    carrier: dict[str, str] = {}
    _W3C.inject(carrier, trace.set_span_in_context(span))
    parent, state = carrier.get("traceparent", ""), carrier.get("tracestate", "")
    return parent, state if len(state.encode()) <= MAX_TEXT_BYTES else ""


def _context(parent: str, state: str) -> Context:
    carrier = {"traceparent": parent, "tracestate": state}
    return _W3C.extract({name: value for name, value in carrier.items() if value}, Context())


def _links(parent: str, state: str) -> list[trace.Link]:
    found = trace.get_current_span(_context(parent, state)).get_span_context()
    return [trace.Link(found)] if found.is_valid else []
