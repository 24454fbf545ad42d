"""The observer of consumers' processes."""

from __future__ import annotations

import time
from collections.abc import Sequence

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from sharedlog._core.consumer.observer import ConsumerObserver, HandlingReport
from sharedlog._core.streams import stream_of
from sharedlog.metrics._buckets import SECONDS


class PrometheusConsumerObserver(ConsumerObserver):
    """Counts what the processes of consumers do.

    ::

        sharedlog.Consumer(log, ..., observer=PrometheusConsumerObserver())

    Names begin with ``sharedlog_consumer_``. The lag of a consumer is a metric of its log:
    ``sharedlog_hold_lag_entries{name="@consumer:NAME"}``.

    Thread-safe. Raises ``ValueError`` for a registry that has the same metrics already.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            labels = ("consumer", *labels)
            return Counter(f"sharedlog_consumer_{name}", text, labels, registry=registry)

        def seconds(name: str, text: str, label: str) -> Histogram:
            return Histogram(
                f"sharedlog_consumer_{name}",
                text,
                ("consumer", label),
                registry=registry,
                buckets=SECONDS,
            )

        self._messages = counter("messages", "Messages whose effects are committed.", "stream")
        self._transactions = counter("transactions", "Transactions that were committed.")
        self._handler = seconds("handler_seconds", "One run of a function.", "stream")
        self._effect = seconds(
            "effect_seconds",
            "From a message's append to its effects' commit, by two clocks.",
            "stream",
        )
        self._failures = counter("failures", "Failed runs, as attempts count.", "stream")
        self._retrying = Gauge(
            "sharedlog_consumer_retrying_seconds",
            "How long a partition has been retried (the longest); 0 for the first minute.",
            ("consumer", "stream"),
            registry=registry,
        )
        self._retried: dict[tuple[str, str], float] = {}
        self._letters = counter("dead_letters", "Messages that became dead letters.", "stream")
        self._stops = counter("stops", "Partitions that stopped.", "stream")
        self._takeovers = counter(
            "takeovers",
            "Partitions taken; died=true: from a process that did not leave them.",
            "died",
        )
        self._calls = seconds("call_seconds", "One call of a function to a service.", "target")
        self._call_failures = counter(
            "call_failures", "Calls to services without an answer.", "target"
        )

    def handled(self, report: HandlingReport, begun: object, seconds: float, error: str) -> None:
        """Note how long it took."""
        self._handler.labels(report.consumer, report.stream).observe(seconds)

    def committed(self, reports: Sequence[HandlingReport]) -> None:
        """Count them."""
        now_s = time.time()
        for each in reports:
            self._messages.labels(each.consumer, each.stream).inc()
            age_s = max(0.0, now_s - each.appended_us / 1_000_000)
            self._effect.labels(each.consumer, each.stream).observe(age_s)
        if reports:
            self._transactions.labels(reports[0].consumer).inc()

    def called(self, consumer: str, target: str, method: str, seconds: float, error: str) -> None:
        """Note how long it took; count it, if it has no answer."""
        self._calls.labels(consumer, target).observe(seconds)
        if error:
            self._call_failures.labels(consumer, target).inc()

    def failed(self, consumer: str, tag: str) -> None:
        """Count it."""
        self._failures.labels(consumer, stream_of(tag)).inc()

    def retrying(self, consumer: str, tag: str, seconds: float, error: str) -> None:
        """Note for how long, of the substream where it is longest."""
        self._retried[consumer, tag] = seconds
        stream = stream_of(tag)
        of_stream = [
            each
            for (name, other), each in self._retried.items()
            if name == consumer and stream_of(other) == stream
        ]
        self._retrying.labels(consumer, stream).set(max(of_stream))

    def buried(self, consumer: str, tag: str) -> None:
        """Count it."""
        self._letters.labels(consumer, stream_of(tag)).inc()

    def stopped(self, consumer: str, tag: str) -> None:
        """Count it."""
        self._stops.labels(consumer, stream_of(tag)).inc()

    def took_over(self, consumer: str, tag: str, died: bool) -> None:
        """Count it."""
        self._takeovers.labels(consumer, str(died).lower()).inc()
