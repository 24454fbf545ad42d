"""Prometheus metrics (``rifl-grpc[metrics]``): an observer for servers and clients.

::

    rifl.Deduplicator(url, observer=PrometheusObserver())
    rifl.connect(target, observer=PrometheusObserver())

One observer may serve any number of both; a second one needs a registry of its
own. docs/reference/api/metrics.md has all metrics.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

from _rifl_ground.refusals import Outcome
from rifl.core._shared.errors import ForkedProcess
from rifl.core._shared.observer import EndedCall, Observer, ServedCall, Statistics
from rifl.core._shared.reasons import REASONS

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError as error:  # pragma: no cover - needs an environment without it
    raise ImportError("rifl.metrics needs the extra: pip install 'rifl-grpc[metrics]'") from error

__all__ = ["PrometheusObserver"]

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_ENTRIES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_HELD = {
    "clients": "Clients that are tracked.",
    "leases": "Leases that run.",
    "unacknowledged": "Calls of this replica that are known and not acknowledged.",
    "running": "Calls of this replica that are begun and not recorded.",
    "waiting": "Duplicates that wait for a running call.",
    "queued": "Calls that wait for a place of `max_running`.",
    "unheard": "Coroutine handlers that run for no caller.",
    "answer_bytes": "Bytes of large answers that are kept without an acknowledgement.",
}
_OF_THE_STORE = {
    "calls": "Calls of the store whose outcome is unknown, until they are settled, for a week.",
    "oldest_seconds": "Age of the oldest of them.",
}
_SERVING = "0 while a server of the process refuses new calls, else 1. Only while it has one."
_OUTCOMES = (
    "Requests answered, of all methods together. What refusals say is there from the start, with "
    "0: the first shows as an increase."
)
_OUTCOME_LABELS = ("outcome", "reason")
# A refusal may say less than its class: that the call may have run.
_FROM_THE_START = [
    *((outcome.value, "") for outcome in Outcome),
    *(
        (outcome.value, reason)
        for reason, row in REASONS.items()
        for outcome in dict.fromkeys((row.error.outcome, Outcome.UNKNOWN))
    ),
]


class PrometheusObserver(Observer):
    """Counts calls, commits and what is held, under names that begin with ``rifl_``.

    Several deduplicators are summed up; ``rifl_server_serving`` is 0 if one of them refuses new
    calls. Every item of a batch counts as a call on both sides; its seconds are the batch's.

    Over stores that replicas share, a commit is a claim or a record, with its round trip; over
    PostgreSQL also a ``rifl.transaction``, with its records. Commits that a handler makes itself
    do not count. Clients and leases are those of the whole store, a few seconds old: take the
    maximum over replicas, not the sum. Above ten thousand PostgreSQL estimates. The same holds
    of unknown outcomes: one replica counts them, each 15 s. Over ``memory:`` and in groups they
    count as long as their records are kept, from when this process knew them.

    Only methods that the server deduplicates are labels of a server's, so that a
    peer cannot make up new ones. Times are in seconds. Everything is kept in this
    process: after a crash it counts from 0. Thread-safe.

    Raises ``ValueError`` for a registry that has the same metrics already.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=registry)

        def seconds(name: str, text: str, *labels: str) -> Histogram:
            return Histogram(name, text, labels, buckets=_SECONDS, registry=registry)

        def items(name: str, text: str) -> Histogram:
            return Histogram(name, text, ("method",), buckets=_ENTRIES, registry=registry)

        self._served = counter(
            "rifl_server_calls",
            "Requests answered: unary calls, streams, items of a batch, refusals. "
            "The reason is empty for a handler's answer.",
            *("method", "outcome", "reason"),
        )
        # Prometheus looks its labels up at some length, for every call.
        self._by_answer: dict[tuple[str, Outcome, str], tuple[Counter, Histogram]] = {}
        self._serving_time = seconds(
            "rifl_server_call_seconds",
            "From arrival to answer, waits included.",
            "method",
            "outcome",
        )
        self._commit_time = seconds(
            "rifl_store_commit_seconds", "Duration of one commit of the store."
        )
        self._commit_entries = Histogram(
            "rifl_store_commit_entries",
            "Records and intents in one commit.",
            buckets=_ENTRIES,
            registry=registry,
        )
        self._commit_failures = counter("rifl_store_commit_failures", "Commits that failed.")
        self._callers = counter(
            "rifl_server_callers_refused",
            "Secrets, tokens and certificates that were missing or wrong.",
            *("kind", "reason"),
        )
        self._cancelled = counter(
            "rifl_server_cancelled",
            "Coroutine handlers that were cancelled, as no caller waited for them.",
            "method",
        )
        self._ended = counter(
            "rifl_client_calls", "Calls that ended.", "method", "outcome", "reason", "code"
        )
        self._attempts = counter("rifl_client_attempts", "Attempts that were sent.", "method")
        self._retries = counter("rifl_client_retries", "Attempts after the first.", "method")
        self._held_back = counter(
            "rifl_client_held_back",
            "Attempts that found the budget empty and waited: retry or hedge.",
            "method",
            "attempt",
        )
        self._ending_time = seconds(
            "rifl_client_call_seconds", "From a call's first step to its end.", "method", "outcome"
        )
        self._served_batches = items("rifl_server_batch_items", "Items of a batch that arrived.")
        self._ended_batches = items("rifl_client_batch_items", "Items of a batch that ended.")
        self._servers = _Servers(self._served)
        registry.register(self._servers)

    def attached(self, statistics: Callable[[], Statistics]) -> None:
        """Count what this deduplicator holds, too, when scraped."""
        self._servers.add(statistics)

    def detached(self, statistics: Callable[[], Statistics]) -> None:
        """Count it no longer."""
        self._servers.remove(statistics)

    def call_served(self, served: ServedCall) -> None:
        """Count an arrival."""
        key = (served.method, served.outcome, served.reason)
        found = self._by_answer.get(key)
        if found is None:
            method, outcome = served.method, served.outcome.value
            found = self._by_answer[key] = (
                self._served.labels(method, outcome, served.reason),
                self._serving_time.labels(method, outcome),
            )
        found[0].inc()
        found[1].observe(served.seconds)

    def batch_served(self, served: Sequence[ServedCall]) -> None:
        """Count a batch's arrival, and that of each of its items."""
        if served:
            self._served_batches.labels(served[0].method).observe(len(served))
        super().batch_served(served)

    def committed(self, entries: int, seconds: float, error: Exception | None) -> None:
        """Count a commit."""
        if error is not None:
            self._commit_failures.inc()
            return
        self._commit_time.observe(seconds)
        self._commit_entries.observe(entries)

    def caller_refused(self, kind: str, reason: str) -> None:
        """Count a caller that was not let in."""
        self._callers.labels(kind, reason).inc()

    def handler_cancelled(self, method: str) -> None:
        """Count a handler that was cancelled."""
        self._cancelled.labels(method).inc()

    def call_ended(self, ended: EndedCall, begun: object) -> None:
        """Count a client's call."""
        method, outcome = ended.method, ended.outcome.value
        self._ended.labels(method, outcome, ended.reason, ended.code).inc()
        self._attempts.labels(method).inc(ended.attempts)
        if ended.attempts > 1:
            self._retries.labels(method).inc(ended.attempts - 1)
        self._ending_time.labels(method, outcome).observe(ended.seconds)

    def attempt_held_back(self, method: str, *, hedge: bool) -> None:
        """Count a retry or a hedge that waits for the budget."""
        self._held_back.labels(method, "hedge" if hedge else "retry").inc()

    def batch_ended(self, ended: Sequence[EndedCall], begun: object) -> None:
        """Count a client's batch, and each of its calls."""
        if ended:
            self._ended_batches.labels(ended[0].method).observe(len(ended))
        super().batch_ended(ended, begun)


class _Servers(Collector):
    """What the deduplicators did and hold, looked at when scraped.

    A process that has none, as one of clients alone, has none of these: it would look like a
    server that refuses calls.
    """

    def __init__(self, served: Counter) -> None:
        # Without a lock: each step is one of C's.
        self._sources: list[Callable[[], Statistics]] = []
        self._served = served
        self._was_server = False

    def add(self, source: Callable[[], Statistics]) -> None:
        self._sources.append(source)
        self._was_server = True

    def remove(self, source: Callable[[], Statistics]) -> None:
        with contextlib.suppress(ValueError):
            self._sources.remove(source)

    def collect(self) -> Iterator[Metric]:
        if self._was_server:
            yield self._outcomes()
        counts = []
        for source in list(self._sources):
            # A forked child holds nothing of what its parent does.
            with contextlib.suppress(ForkedProcess):
                counts.append(source())
        if not counts:
            return
        # Which one refuses, its log says.
        serving = all(count.serving for count in counts)
        yield GaugeMetricFamily("rifl_server_serving", _SERVING, value=float(serving))
        for name, text in _HELD.items():
            total = sum(getattr(count, name) for count in counts)
            yield GaugeMetricFamily(f"rifl_server_{name}", text, value=total)
        counted = [count for count in counts if count.unknown is not None]
        if counted:
            calls = sum(count.unknown or 0 for count in counted)
            oldest_s = max(count.oldest_unknown_s for count in counted)
            for (name, text), value in zip(_OF_THE_STORE.items(), (calls, oldest_s), strict=True):
                yield GaugeMetricFamily(f"rifl_store_unknown_{name}", text, value=value)

    def describe(self) -> Iterator[Metric]:
        # What is counted need not be counted to be registered.
        yield CounterMetricFamily("rifl_server_outcomes", _OUTCOMES, labels=_OUTCOME_LABELS)
        yield GaugeMetricFamily("rifl_server_serving", _SERVING)
        for name, text in _HELD.items():
            yield GaugeMetricFamily(f"rifl_server_{name}", text)
        for name, text in _OF_THE_STORE.items():
            yield GaugeMetricFamily(f"rifl_store_unknown_{name}", text)

    def _outcomes(self) -> Metric:
        totals = dict.fromkeys(_FROM_THE_START, 0.0)
        for family in self._served.collect():
            for sample in family.samples:
                if sample.name.endswith("_total"):
                    key = (sample.labels["outcome"], sample.labels["reason"])
                    totals[key] = totals.get(key, 0.0) + sample.value
        found = CounterMetricFamily("rifl_server_outcomes", _OUTCOMES, labels=_OUTCOME_LABELS)
        for labels, total in totals.items():
            found.add_metric(labels, total)
        return found
