"""The observer of players, and the players that it asks when scraped."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sharedlog._core.player.observer import DeliveryReport, PlayerObserver, TargetReport
from sharedlog.metrics._buckets import SECONDS


class _Deliveries(NamedTuple):
    """Prometheus looks its labels up at some length, for every delivery."""

    sent: Counter
    again: Counter
    delivery: Histogram
    apply: Histogram


class PrometheusPlayerObserver(PlayerObserver):
    """Counts what players do, and looks at their targets when scraped.

    ::

        sharedlog.Player(log, targets, observer=PrometheusPlayerObserver())

    Names begin with ``sharedlog_target_``. Players that do not lead have no values.

    Thread-safe. Raises ``ValueError`` for a registry that has the same metrics already.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            labels = ("player", "target", *labels)
            return Counter(f"sharedlog_target_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str) -> Histogram:
            labels = ("player", "target")
            return Histogram(
                f"sharedlog_target_{name}", text, labels, registry=registry, buckets=SECONDS
            )

        self._troubles = counter("troubles", "How often the target was cut off.", "cause")
        self._stops = counter("stops", "How often the target stopped.", "why")
        self._deliveries: dict[tuple[str, str], _Deliveries] = {}
        self._sent = counter("deliveries", "Messages that were sent to the target.")
        self._again = counter("redeliveries", "Those that this process had sent before.")
        self._delivery = histogram(
            "delivery_seconds", "From the sending of a message until the target took it."
        )
        self._apply = histogram(
            "apply_seconds", "From the append of a message until the target took it, by two clocks."
        )
        self._letters = counter("dead_letters", "Messages that became dead letters.")
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
        # Without a lock: each step is one of C's.
        self._sources: list[tuple[str, Callable[[], list[TargetReport]]]] = []

    def add(self, player: str, report: Callable[[], list[TargetReport]]) -> None:
        self._sources.append((player, report))

    def remove(self, player: str, report: Callable[[], list[TargetReport]]) -> None:
        with suppress(ValueError):
            self._sources.remove((player, report))

    def collect(self) -> Iterator[Metric]:
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
        "sharedlog_target_state", "1 for the target's state.", labels=(*labels, "state")
    )
    for player, each in all_of_them:
        state.add_metric((player, each.target, each.state), 1.0)
    return [
        state,
        family(
            GaugeMetricFamily,
            "lag_entries",
            "Log entries after the target's index.",
            lambda each: each.lag,
        ),
        family(GaugeMetricFamily, "queued", "Messages that wait here.", lambda each: each.queued),
        family(
            GaugeMetricFamily,
            "in_flight",
            "Messages that are not answered.",
            lambda each: each.in_flight,
        ),
        family(
            CounterMetricFamily,
            "taken",
            "Deliveries that the target acknowledged.",
            lambda each: each.taken,
        ),
    ]
