"""Prometheus metrics of groups (``rifl-grpc[metrics]``): for replicas and for witnesses.

::

    curp.Replica(url, ..., observer=PrometheusGroupObserver())

``curp serve --metrics HOST:PORT`` and ``python -m curp.witness --metrics HOST:PORT``
serve them. docs/reference/api/metrics.md has all of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from _rifl_ground.scraping import serve_metrics
from curp._core.witness_table import WitnessTable, WitnessVerdict
from curp.observer import GroupObserver, GroupReport, TakeOver
from rifl.core._shared.errors import ForkedProcess
from rifl.metrics import PrometheusObserver

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError as error:  # pragma: no cover - needs an environment without it
    raise ImportError("curp.metrics needs the extra: pip install 'rifl-grpc[metrics]'") from error

__all__ = ["PrometheusGroupObserver", "WitnessCollector", "serve_metrics"]

_ROLES = ("leader", "standby", "recovering", "stopped")
_RECOVERY_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_WAIT_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class PrometheusGroupObserver(PrometheusObserver, GroupObserver):
    """Counts what a replica does, under names that begin with ``curp_``, and its calls.

    Gauges and answers are looked at when scraped. All of ``rifl.metrics.PrometheusObserver`` come
    with them: commits are appends to the log, and ``rifl_server_serving`` is 1 on the leader.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        super().__init__(registry)
        self._role_changes = Counter(
            "curp_role_changes",
            "Roles that the replica began.",
            ("replica", "role"),
            registry=registry,
        )
        self._recovery_time = Histogram(
            "curp_recovery_seconds",
            "From a new configuration number to the first call taken.",
            ("replica",),
            buckets=_RECOVERY_SECONDS,
            registry=registry,
        )
        self._recovered = Counter(
            "curp_recovered_requests",
            "Calls that a witness held for a new leader: replayed, known or dropped.",
            ("replica", "found"),
            registry=registry,
        )
        self._read_wait = Histogram(
            "curp_read_wait_seconds",
            "How long reads waited for a conflicting call.",
            ("method",),
            buckets=_WAIT_SECONDS,
            registry=registry,
        )
        self._replicas = _Replicas()
        registry.register(self._replicas)

    def group_attached(self, report: Callable[[], GroupReport]) -> None:
        """Look at this replica, too, when scraped."""
        self._replicas.add(report)

    def group_detached(self, report: Callable[[], GroupReport]) -> None:
        """Look at it no longer."""
        self._replicas.remove(report)

    def role_changed(self, replica: str, role: str) -> None:
        """Count a role that began."""
        self._role_changes.labels(replica, role).inc()

    def took_over(self, takeover: TakeOver) -> None:
        """Count a recovery."""
        self._recovery_time.labels(takeover.replica).observe(takeover.seconds)
        known = takeover.held - takeover.replayed - takeover.dropped
        for found, requests in (
            ("replayed", takeover.replayed),
            ("known", known),
            ("dropped", takeover.dropped),
        ):
            self._recovered.labels(takeover.replica, found).inc(requests)

    def read_waited(self, method: str, seconds: float) -> None:
        """Count a read that waited."""
        self._read_wait.labels(method).observe(seconds)


class _Replicas(Collector):
    """The replicas of this process, looked at when scraped."""

    def __init__(self) -> None:
        # Without a lock: each step is one of C's.
        self._reports: list[Callable[[], GroupReport]] = []

    def add(self, report: Callable[[], GroupReport]) -> None:
        self._reports.append(report)

    def remove(self, report: Callable[[], GroupReport]) -> None:
        with contextlib.suppress(ValueError):
            self._reports.remove(report)

    def collect(self) -> Iterator[Metric]:
        reports = list(self._reports)
        found = []
        for report in reports:
            # A forked child holds nothing of what its parent does.
            with contextlib.suppress(ForkedProcess):
                found.append(report())
        return iter(_families(found))

    def describe(self) -> Iterator[Metric]:
        return iter(_families([]))


def _families(reports: list[GroupReport]) -> list[Metric]:
    labels = ("group", "replica")

    def gauge(name: str, text: str, value: Callable[[GroupReport], float | None]) -> Metric:
        family = GaugeMetricFamily(f"curp_{name}", text, labels=labels)
        for report in reports:
            if (found := value(report)) is not None:
                family.add_metric((report.group, report.replica), found)
        return family

    roles = GaugeMetricFamily("curp_role", "1 for the replica's role.", labels=(*labels, "role"))
    answers = CounterMetricFamily(
        "curp_answers",
        "Answers: fast, or why one waited for the log (conflict, unregistered, no-witness...).",
        labels=(*labels, "speed"),
    )
    for report in reports:
        for role in _ROLES:
            roles.add_metric((report.group, report.replica, role), float(role == report.role))
        for speed, count in report.answers.items():
            answers.add_metric((report.group, report.replica, speed), count)
    return [
        roles,
        answers,
        gauge(
            "serving",
            "1 while the replica takes calls. Alert if none has it.",
            lambda each: float(each.serves),
        ),
        gauge(
            "engine_silent_seconds",
            "How long the log engine has not answered this replica.",
            lambda each: each.engine_silent_s,
        ),
        gauge(
            "configuration_number",
            "The number in force, 0 if unknown.",
            lambda each: each.configuration,
        ),
        gauge(
            "applied_position", "The last entry in the replica's state.", lambda each: each.applied
        ),
        gauge(
            "log_tail_position",
            "The log's last entry; absent while the engine does not answer.",
            lambda each: each.tail,
        ),
        gauge("lag_entries", "Entries in the log that are not in the replica's state.", _lag),
        gauge(
            "unsynced_entries",
            "Entries that have a place and are not in the log.",
            lambda each: each.unsynced,
        ),
        gauge("witnesses_wanted", "Witnesses that were asked for.", lambda each: each.wanted),
        gauge("witnesses_listed", "Witnesses that serve.", lambda each: each.listed),
    ]


def _lag(report: GroupReport) -> int | None:
    return None if report.tail is None else max(0, report.tail - report.applied)


class WitnessCollector(Collector):
    """A witness, looked at when scraped; its numbers may be of neighbouring moments."""

    def __init__(
        self,
        table: WitnessTable,
        registry: CollectorRegistry = REGISTRY,
        refused: Mapping[tuple[str, str], int] = MappingProxyType({}),
    ) -> None:
        """``refused``: how often callers were not let in, and why; read when scraped."""
        self._table = table
        self._refused = refused
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Look."""
        table = self._table
        records = CounterMetricFamily(
            "curp_witness_records",
            "Records, by what became of them: accepted, conflict, full, too-large, frozen...",
            labels=("verdict",),
        )
        records.add_metric((_word(WitnessVerdict.ACCEPTED),), table.accepted)
        for verdict, count in table.refusals.items():
            records.add_metric((_word(verdict),), count)
        yield records
        callers = CounterMetricFamily(
            "curp_witness_callers_refused",
            "Tokens and certificates that were missing or wrong.",
            labels=("kind", "reason"),
        )
        for labels, count in list(self._refused.items()):
            callers.add_metric(labels, count)
        yield callers
        yield GaugeMetricFamily("curp_witness_held", "Calls that it holds.", value=len(table))
        yield GaugeMetricFamily(
            "curp_witness_slots", "Conflict keys it has room for.", value=table.limits.slots
        )
        yield GaugeMetricFamily(
            "curp_witness_configuration_number",
            "The number in force, frozen or remembered.",
            value=table.configuration,
        )
        modes = GaugeMetricFamily(
            "curp_witness_mode", "1 for the witness's mode.", labels=("mode",)
        )
        for mode in type(table.mode):
            modes.add_metric((mode.value,), float(mode is table.mode))
        yield modes


def _word(verdict: WitnessVerdict) -> str:
    return verdict.name.lower().replace("_", "-")
