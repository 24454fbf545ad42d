"""Metrics of streaming queries, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_PREFIX = "rifl_spark_query"
_OUTCOMES = ("executed", "replayed", "failed", "dead_lettered")


class QueryMetrics:
    """Counters and gauges of streaming queries, by their name, or their id without one."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Raises ``ValueError`` for a registry that has them already."""
        from prometheus_client import Counter, Gauge

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"{_PREFIX}_{name}", text, ("query", *labels), registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"{_PREFIX}_{name}", text, ("query", *labels), registry=registry)

        self._batches = counter("batches", "Micro-batches that ended.")
        self._input = counter("input_rows", "Rows that these read.")
        self._seconds = counter("batch_seconds", "How long these took.")
        self._ended = counter("ended", "Ends of runs: stopped, or failed.", "outcome")
        self._calls = counter(
            "calls",
            "Rows of the sink `rifl`, by what became of them; a dead-lettered one failed, too.",
            *("method", "outcome"),
        )
        self._batch = gauge("batch", "The last micro-batch that ended.")
        self._lag = gauge(
            "lag_entries", "Entries of the log after what the query has read.", "stream"
        )
        self._rows = gauge(
            "committed_rows", "Rows that a name of the log has committed.", *("name", "stream")
        )
        self._undone = gauge(
            "undone", "About how many task attempts of a name were rolled back.", "name", "stream"
        )

    def ended(self, query: str, *, failed: bool) -> None:
        """Count the end of a run."""
        self._ended.labels(query, "failed" if failed else "stopped").inc()

    def batch(self, query: str, progress: Mapping[str, Any]) -> None:
        """Count a micro-batch."""
        self._batches.labels(query).inc()
        self._input.labels(query).inc(progress.get("numInputRows") or 0)
        self._seconds.labels(query).inc((progress.get("batchDuration") or 0) / 1000)
        self._batch.labels(query).set(progress["batchId"])

    def calls(self, query: str, told: Iterable[Mapping[str, Any]]) -> None:
        """Count what became of rows, by the lines of a report."""
        for line in told:
            for outcome in _OUTCOMES:
                self._calls.labels(query, line["method"], outcome).inc(line[outcome])

    def lag(self, query: str, stream: str, entries: int) -> None:
        """Note how much of a log a query has not read."""
        self._lag.labels(query, stream).set(entries)

    def committed(self, query: str, row: Mapping[str, Any]) -> None:
        """Note what a log has of a query."""
        which = (query, row["name"], row["stream"])
        self._rows.labels(*which).set(row["all_rows"])
        self._undone.labels(*which).set(row["undone"])
