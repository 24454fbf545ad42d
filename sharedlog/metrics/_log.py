"""The observer of logs, and the logs that it asks when scraped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sharedlog._core.errors import LogError
from sharedlog._core.observer import HoldReport, LogObserver, LogReport, QueryReport
from sharedlog.metrics._buckets import SECONDS, WAITS


class _Appends(NamedTuple):
    """Prometheus looks its labels up at some length, for every append."""

    appends: Counter
    entries: Counter
    size: Counter
    seconds: Histogram


class PrometheusLogObserver(LogObserver):
    """Counts what programs do with logs, and looks at the logs when scraped.

    Names begin with ``sharedlog_``. The label ``log`` is the URL without user, password and
    options. Counters and seconds are of this process; those "at a scrape" are read from the log
    then, which costs a read for each hold that lags. Every process reports these alike: take the
    maximum, or watch in one process. For a served log, only ``sharedlog serve --metrics HOST:PORT``
    reports them; clients report the rest.

    Thread-safe. Raises ``ValueError`` for a registry that has the same metrics already.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"sharedlog_{name}", text, ("log", *labels), registry=registry)

        def seconds(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(
                f"sharedlog_{name}", text, ("log", *labels), buckets=buckets, registry=registry
            )

        self._appends = counter("appends", "Appends of this process that are in the log.")
        self._entries = counter("appended_entries", "Entries of these appends.")
        self._bytes = counter("appended_bytes", "Bytes of these appends, with tags.")
        self._seconds = seconds(
            "append_seconds", "One append, the wait for its turn included.", SECONDS
        )
        self._refused = counter(
            "refused", "Messages and transactions that got an error, by its name.", "reason"
        )
        self._callers = counter(
            "callers_refused",
            "Tokens, certificates and rights that a served log's callers lacked.",
            *("kind", "reason"),
        )
        self._delivered = counter(
            "delivered", "Messages that followers of this process got.", "stream"
        )
        self._waits = seconds(
            "wait_seconds", "How long a follower had no message, once it has one.", WAITS, "stream"
        )
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

    def caller_refused(self, log: str, kind: str, reason: str) -> None:
        """Count a caller that was not let in."""
        self._callers.labels(log, kind, reason).inc()

    def delivered(self, log: str, stream: str, messages: int, waited_s: float | None) -> None:
        """Count a follower's messages."""
        self._delivered.labels(log, stream).inc(messages)
        if waited_s is not None:
            self._waits.labels(log, stream).observe(waited_s)


class _Logs(Collector):
    """The logs that this process has open, asked when scraped: each once."""

    def __init__(self) -> None:
        # Without a lock: each step is one of C's.
        self._sources: list[tuple[str, Callable[[], LogReport]]] = []

    def add(self, log: str, report: Callable[[], LogReport]) -> None:
        self._sources.append((log, report))

    def remove(self, log: str, report: Callable[[], LogReport]) -> None:
        with suppress(ValueError):
            self._sources.remove((log, report))

    def collect(self) -> Iterator[Metric]:
        sources = dict(list(self._sources))
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
    reachable = GaugeMetricFamily(
        "sharedlog_reachable",
        "At a scrape: 1 if the log answered. If 0, the rest is missing.",
        labels=("log",),
    )
    for log, each in reports.items():
        reachable.add_metric((log,), float(each is not None))
    return [
        reachable,
        gauge("tail_lsn", "At a scrape: the newest entry.", lambda each: each.tail),
        gauge("first_lsn", "At a scrape: the oldest entry.", lambda each: each.first),
        gauge(
            "entries",
            "At a scrape: the number of entries.",
            lambda each: each.tail + 1 - each.first,
        ),
        gauge(
            "open_spans",
            "At a scrape: what is pending, by producer and partition.",
            lambda each: each.open_spans,
        ),
        gauge(
            "oldest_span_seconds",
            "At a scrape: the age of the oldest pending.",
            lambda each: each.oldest_span_s,
        ),
        of_holds(
            "lag_entries",
            "At a scrape: entries after a follower's committed position.",
            lambda each: each.entries,
        ),
        of_holds(
            "lag_seconds",
            "At a scrape: the age of the oldest message in its partition that is not done.",
            lambda each: each.seconds,
        ),
        of_holds(
            "overdue",
            "At a scrape: 1 if its follower has not renewed the hold.",
            lambda each: float(each.overdue),
        ),
        of_queries(
            level,
            "batch",
            "At a scrape: the last batch that a Spark query committed.",
            lambda each: each.batch,
        ),
        of_queries(
            counter, "batches", "At a scrape: batches that it committed.", lambda each: each.batches
        ),
        of_queries(counter, "rows", "At a scrape: rows of these batches.", lambda each: each.rows),
        of_queries(
            counter, "entries", "At a scrape: entries of these batches.", lambda each: each.entries
        ),
        of_queries(
            counter,
            "undone",
            "At a scrape: about how many task attempts had appended and no marker named.",
            lambda each: each.undone,
        ),
        of_queries(
            level,
            "pending",
            "At a scrape: task attempts neither committed nor rolled back.",
            lambda each: each.pending,
        ),
    ]
