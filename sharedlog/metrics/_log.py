"""Prometheus metrics of a log, of consumers and of players (``rifl-grpc[metrics]``).

::

    sharedlog.open(url, observer=PrometheusObserver())

One observer may serve any number of logs; a second one needs a registry of its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from sharedlog._core.consumer.observer import ConsumerObserver, HandlingReport
from sharedlog._core.errors import LogError
from sharedlog._core.observer import HoldReport, LogReport, Observer, QueryReport
from sharedlog._core.player.observer import DeliveryReport, PlayerObserver, TargetReport
from sharedlog._core.streams import stream_of

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError as error:  # pragma: no cover - needs an environment without it
    raise ImportError(
        "sharedlog.metrics needs the extra: pip install 'rifl-grpc[metrics]'"
    ) from error

__all__ = ["PrometheusConsumerObserver", "PrometheusObserver", "PrometheusPlayerObserver"]

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_WAITS = (0.001, 0.01, 0.1, 1.0, 10.0, 60.0, 600.0, 3600.0)


class _Appends(NamedTuple):
    """Prometheus looks its labels up at some length, for every append."""

    appends: Counter
    entries: Counter
    size: Counter
    seconds: Histogram


class PrometheusObserver(Observer):
    """Counts what programs do with logs, and looks at the logs when scraped.

    Names begin with ``sharedlog_``; every metric has the label ``log``, the log's URL without
    what is secret in it. What this process did: ``sharedlog_appends_total``,
    ``_appended_entries_total``, ``_appended_bytes_total``, ``_append_seconds`` (from the append's
    turn asked for to its answer), ``_refused_total`` by the error's name, ``_delivered_total`` and
    ``_wait_seconds`` by stream.

    Asked of the log when scraped, by each process alike: ``sharedlog_reachable``, ``_tail_lsn``,
    ``_first_lsn``, ``_entries``, ``_open_spans``, ``_oldest_span_seconds``, and by ``name`` and
    ``substream`` of each hold ``_hold_lag_entries``, ``_hold_lag_seconds``, ``_hold_overdue``. That
    costs a read for each hold that lags. By ``name`` of Spark's queries that write:
    ``_query_batch``, ``_query_batches_total``, ``_query_rows_total``, ``_query_entries_total``,
    ``_query_undone_total``, ``_query_pending``.

    Thread-safe. Raises ``ValueError`` for a registry that has the same metrics already.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"sharedlog_{name}", text, ("log", *labels), registry=registry)

        def seconds(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(
                f"sharedlog_{name}", text, ("log", *labels), buckets=buckets, registry=registry
            )

        self._appends = counter("appends", "Appends that are in the log.")
        self._entries = counter("appended_entries", "Their entries.")
        self._bytes = counter("appended_bytes", "Their bytes, with tags.")
        self._seconds = seconds("append_seconds", "One append, its turn included.", _SECONDS)
        self._refused = counter("refused", "Messages and transactions with an error.", "reason")
        self._delivered = counter("delivered", "Messages that followers got.", "stream")
        self._waits = seconds("wait_seconds", "Followers without a message.", _WAITS, "stream")
        self._by_log: dict[str, _Appends] = {}
        self._logs = _Logs()
        registry.register(self._logs)

    def attached(self, log: str, report: Callable[[], LogReport]) -> None:
        """Look at this log, too, when scraped."""
        self._logs.add(log, report)

    def detached(self, log: str, report: Callable[[], LogReport]) -> None:
        """Look at it by this handle no longer."""
        self._logs.remove(log, report)

    def appended(self, log: str, entries: int, size: int, seconds: float) -> None:
        """Count an append."""
        found = self._by_log.get(log)
        if found is None:
            found = self._by_log[log] = _Appends(
                self._appends.labels(log),
                self._entries.labels(log),
                self._bytes.labels(log),
                self._seconds.labels(log),
            )
        found.appends.inc()
        found.entries.inc(entries)
        found.size.inc(size)
        found.seconds.observe(seconds)

    def refused(self, log: str, reason: str) -> None:
        """Count a message or a transaction that has an error."""
        self._refused.labels(log, reason).inc()

    def delivered(self, log: str, stream: str, messages: int, waited_s: float | None) -> None:
        """Count a follower's messages."""
        self._delivered.labels(log, stream).inc(messages)
        if waited_s is not None:
            self._waits.labels(log, stream).observe(waited_s)


class _Logs(Collector):
    """The logs that this process has open, asked when scraped: each once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sources: list[tuple[str, Callable[[], LogReport]]] = []

    def add(self, log: str, report: Callable[[], LogReport]) -> None:
        with self._lock:
            self._sources.append((log, report))

    def remove(self, log: str, report: Callable[[], LogReport]) -> None:
        with self._lock:
            self._sources = [each for each in self._sources if each != (log, report)]

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            sources = dict(self._sources)
        found: dict[str, LogReport | None] = {}
        for log, report in sources.items():
            try:
                found[log] = report()
            except LogError:
                found[log] = None
        return iter(_families(found))

    def describe(self) -> Iterator[Metric]:
        return iter(_families({}))


def _families(reports: dict[str, LogReport | None]) -> list[Metric]:
    there = {log: each for log, each in reports.items() if each is not None}

    def gauge(name: str, text: str, value: Callable[[LogReport], float]) -> Metric:
        family = GaugeMetricFamily(f"sharedlog_{name}", text, labels=("log",))
        for log, each in there.items():
            family.add_metric((log,), value(each))
        return family

    def of_holds(name: str, text: str, value: Callable[[HoldReport], float]) -> Metric:
        labels = ("log", "name", "substream")
        family = GaugeMetricFamily(f"sharedlog_hold_{name}", text, labels=labels)
        for log, each in there.items():
            for hold in each.holds:
                family.add_metric((log, hold.name, hold.tag), value(hold))
        return family

    def of_queries(
        kind: type[GaugeMetricFamily | CounterMetricFamily],
        name: str,
        text: str,
        value: Callable[[QueryReport], float],
    ) -> Metric:
        family = kind(f"sharedlog_query_{name}", text, labels=("log", "name"))
        for log, each in there.items():
            for query in each.queries:
                family.add_metric((log, query.name), value(query))
        return family

    counter, level = CounterMetricFamily, GaugeMetricFamily
    reachable = GaugeMetricFamily("sharedlog_reachable", "1 if it answered.", labels=("log",))
    for log, each in reports.items():
        reachable.add_metric((log,), float(each is not None))
    return [
        reachable,
        gauge("tail_lsn", "The newest entry.", lambda each: each.tail),
        gauge("first_lsn", "The oldest entry that is there.", lambda each: each.first),
        gauge("entries", "Entries that are there.", lambda each: each.tail + 1 - each.first),
        gauge("open_spans", "What is pending.", lambda each: each.open_spans),
        gauge("oldest_span_seconds", "Age of what is pending.", lambda each: each.oldest_span_s),
        of_holds("lag_entries", "Entries behind the hold.", lambda each: each.entries),
        of_holds("lag_seconds", "Age of the oldest one not done.", lambda each: each.seconds),
        of_holds("overdue", "1 if nobody renews it.", lambda each: float(each.overdue)),
        of_queries(level, "batch", "The last one that it committed.", lambda each: each.batch),
        of_queries(counter, "batches", "Batches that it committed.", lambda each: each.batches),
        of_queries(counter, "rows", "Their rows.", lambda each: each.rows),
        of_queries(counter, "entries", "Their entries.", lambda each: each.entries),
        of_queries(counter, "undone", "Attempts nobody reads.", lambda each: each.undone),
        of_queries(level, "pending", "Attempts that are under way.", lambda each: each.pending),
    ]


class _Deliveries(NamedTuple):
    """Those of one target: as above."""

    sent: Counter
    again: Counter
    delivery: Histogram
    apply: Histogram


class PrometheusPlayerObserver(PlayerObserver):
    """Counts what players do, and looks at their targets when scraped.

    ::

        sharedlog.Player(log, targets, observer=PrometheusPlayerObserver())

    Names begin with ``sharedlog_target_``, and every metric has the labels ``player`` and
    ``target``: ``_state`` (1 for the ``state`` that it is in), ``_lag_entries``, ``_queued``,
    ``_in_flight``, ``_taken_total``, ``_troubles_total`` by ``cause``, ``_stops_total`` by ``why``,
    ``_dead_letters_total``; and of deliveries ``_deliveries_total``, ``_redeliveries_total``,
    ``_delivery_seconds`` (from when a message was sent until it was taken) and ``_apply_seconds``
    (from when it was appended, by the clocks of two machines). Of players that do not lead there
    is nothing.

    Thread-safe. Raises ``ValueError`` for a registry that has the same metrics already.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            labels = ("player", "target", *labels)
            return Counter(f"sharedlog_target_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str) -> Histogram:
            labels = ("player", "target")
            return Histogram(
                f"sharedlog_target_{name}", text, labels, registry=registry, buckets=_SECONDS
            )

        self._troubles = counter("troubles", "How often it was cut off.", "cause")
        self._stops = counter("stops", "How often it stopped.", "why")
        self._deliveries: dict[tuple[str, str], _Deliveries] = {}
        self._sent = counter("deliveries", "Messages that were sent to it.")
        self._again = counter("redeliveries", "Of those, that were sent to it before.")
        self._delivery = histogram("delivery_seconds", "From sent to taken.")
        self._apply = histogram("apply_seconds", "From appended to taken, by two clocks.")
        self._letters = counter("dead_letters", "Messages that were given up.")
        self._players = _Players()
        registry.register(self._players)

    def attached(self, player: str, report: Callable[[], list[TargetReport]]) -> None:
        """Look at its targets when scraped."""
        self._players.add(player, report)

    def detached(self, player: str, report: Callable[[], list[TargetReport]]) -> None:
        """Look at them no longer."""
        self._players.remove(player, report)

    def troubled(self, player: str, target: str, cause: str) -> None:
        """Count it."""
        self._troubles.labels(player, target, cause).inc()

    def stopped(self, player: str, target: str, why: str) -> None:
        """Count it."""
        self._stops.labels(player, target, why).inc()

    def buried(self, player: str, target: str) -> None:
        """Count it."""
        self._letters.labels(player, target).inc()

    def sending(self, delivery: DeliveryReport) -> None:
        """Count it."""
        mine = self._of(delivery)
        mine.sent.inc()
        if delivery.again:
            mine.again.inc()

    def answered(self, delivery: DeliveryReport, begun: object, seconds: float, error: str) -> None:
        """Note how long it took, if it was taken."""
        if error:
            return
        mine = self._of(delivery)
        mine.delivery.observe(seconds)
        mine.apply.observe(max(0.0, time.time() - delivery.appended_us / 1_000_000))

    def _of(self, delivery: DeliveryReport) -> _Deliveries:
        key = delivery.player, delivery.target
        found = self._deliveries.get(key)
        if found is None:
            found = self._deliveries[key] = _Deliveries(
                self._sent.labels(*key),
                self._again.labels(*key),
                self._delivery.labels(*key),
                self._apply.labels(*key),
            )
        return found


class _Players(Collector):
    """The players of this process, asked when scraped."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sources: list[tuple[str, Callable[[], list[TargetReport]]]] = []

    def add(self, player: str, report: Callable[[], list[TargetReport]]) -> None:
        with self._lock:
            self._sources.append((player, report))

    def remove(self, player: str, report: Callable[[], list[TargetReport]]) -> None:
        with self._lock:
            self._sources = [each for each in self._sources if each != (player, report)]

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            sources = list(self._sources)
        return iter(_target_families({player: report() for player, report in sources}))

    def describe(self) -> Iterator[Metric]:
        return iter(_target_families({}))


def _target_families(reports: dict[str, list[TargetReport]]) -> list[Metric]:
    labels = ("player", "target")
    all_of_them = [(player, each) for player, found in reports.items() for each in found]

    def family(
        kind: type[GaugeMetricFamily | CounterMetricFamily],
        name: str,
        text: str,
        value: Callable[[TargetReport], float],
    ) -> Metric:
        made = kind(f"sharedlog_target_{name}", text, labels=labels)
        for player, each in all_of_them:
            made.add_metric((player, each.target), value(each))
        return made

    state = GaugeMetricFamily(
        "sharedlog_target_state", "1 for the state it is in.", labels=(*labels, "state")
    )
    for player, each in all_of_them:
        state.add_metric((player, each.target, each.state), 1.0)
    return [
        state,
        family(GaugeMetricFamily, "lag_entries", "Entries behind it.", lambda each: each.lag),
        family(GaugeMetricFamily, "queued", "Messages that wait here.", lambda each: each.queued),
        family(GaugeMetricFamily, "in_flight", "Not answered.", lambda each: each.in_flight),
        family(CounterMetricFamily, "taken", "Acknowledged by it.", lambda each: each.taken),
    ]


class PrometheusConsumerObserver(ConsumerObserver):
    """Counts what the processes of consumers do.

    ::

        sharedlog.Consumer(log, ..., observer=PrometheusConsumerObserver())

    Names begin with ``sharedlog_consumer_``, and every metric has the label ``consumer``. By
    ``stream``: ``_messages_total`` (whose effects are committed), ``_handler_seconds`` (each run),
    ``_effect_seconds`` (from when a message was appended until its effects were committed, by the
    clocks of two machines), ``_failures_total``, ``_dead_letters_total``, ``_stops_total``.
    ``_transactions_total``; ``_takeovers_total`` by ``died``; of calls to services
    ``_call_seconds`` and ``_call_failures_total`` by ``target``. How far a consumer is behind tell
    the metrics of its holds: ``sharedlog_hold_lag_entries{name="consumer.NAME"}``.

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
                buckets=_SECONDS,
            )

        self._messages = counter("messages", "Messages whose effects are committed.", "stream")
        self._transactions = counter("transactions", "Transactions that were committed.")
        self._handler = seconds("handler_seconds", "One run of a handler.", "stream")
        self._effect = seconds("effect_seconds", "From appended to committed.", "stream")
        self._failures = counter("failures", "Runs that failed, as attempts count.", "stream")
        self._letters = counter("dead_letters", "Messages that were given up.", "stream")
        self._stops = counter("stops", "Substreams that stopped.", "stream")
        self._takeovers = counter("takeovers", "Substreams that it took.", "died")
        self._calls = seconds("call_seconds", "A call of a handler to a service.", "target")
        self._call_failures = counter("call_failures", "Those without an answer.", "target")

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

    def buried(self, consumer: str, tag: str) -> None:
        """Count it."""
        self._letters.labels(consumer, stream_of(tag)).inc()

    def stopped(self, consumer: str, tag: str) -> None:
        """Count it."""
        self._stops.labels(consumer, stream_of(tag)).inc()

    def took_over(self, consumer: str, tag: str, died: bool) -> None:
        """Count it."""
        self._takeovers.labels(consumer, str(died).lower()).inc()
