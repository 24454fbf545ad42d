"""The report of a write: rows counted by tasks, and told by the driver (log, JSON, Prometheus).

Spark lets a Python sink put nothing into a query's progress. Its hooks run in
processes of their own that come and go, so metrics go to a file that Prometheus's
node exporter collects (its textfile collector).
"""

from __future__ import annotations

import json
import math
import os
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from _rifl_ground.files import replacing
from rifl.spark._driver_log import heard
from rifl.spark._errors import PlanError

# Bounds of neighbouring buckets differ by a twentieth: p99 is that exact.
_BASE = 1.05
_LEAST_S = 1e-5
_HELP = {
    "rows": "Rows that committed writes were given.",
    "sent": "Rows that reached the service.",
    "executed": "Rows that had their effect through the committed attempts.",
    "replayed": "Rows that had had their effect before.",
    "failed": "Rows that failed for good.",
    "dead_lettered": "Failed rows that were put aside.",
    "retries": "Rows sent once more.",
}


@dataclass(slots=True)
class Latencies:
    """How long rows took from being sent until they were answered, in seconds.

    In buckets of 5 % width, so that those of tasks can be summed.
    """

    buckets: Counter[int] = field(default_factory=Counter)

    def add(self, seconds: float, rows: int = 1) -> None:
        """Note that so many rows took so long."""
        at = math.ceil(math.log(max(seconds, _LEAST_S) / _LEAST_S, _BASE))
        self.buckets[at] += rows

    def quantile(self, share: float) -> float | None:
        """Return a time that at least this share of the rows did not exceed."""
        total = self.buckets.total()
        if not total:
            return None
        passed = 0
        for at in sorted(self.buckets):
            passed += self.buckets[at]
            if passed >= share * total:
                break
        return float(_LEAST_S * _BASE**at)


@dataclass(slots=True, kw_only=True)
class Counts:
    """One task's, or one write's, rows.

    ``rows`` came from Spark; ``sent`` of them reached the wire at least once and
    were answered; ``executed`` had their effect through this very task;
    ``replayed`` had it before (an earlier attempt, a twin with the same key and
    content) and got the first answer; ``failed`` for good, of which
    ``dead_lettered`` were put aside and the rest failed the task. ``retries``
    counts rows sent once more. Attempts that Spark threw away are not in a
    write's counts: what they did shows as ``replayed``.

    Invariant: ``sent == executed + replayed + (failed - unsent)``; each row is
    counted once.
    """

    rows: int = 0
    sent: int = 0
    executed: int = 0
    replayed: int = 0
    failed: int = 0
    dead_lettered: int = 0
    retries: int = 0
    latencies: Latencies = field(default_factory=Latencies)

    @classmethod
    def total(cls, parts: Iterable[Counts]) -> Counts:
        """Sum what tasks counted."""
        whole = cls()
        for part in parts:
            whole.rows += part.rows
            whole.sent += part.sent
            whole.executed += part.executed
            whole.replayed += part.replayed
            whole.failed += part.failed
            whole.dead_lettered += part.dead_lettered
            whole.retries += part.retries
            whole.latencies.buckets.update(part.latencies.buckets)
        return whole

    def to_json(self) -> str:
        """Return all of it as text; ``from_json`` reads it."""
        told = {each.name: getattr(self, each.name) for each in fields(self)}
        return json.dumps({**told, "latencies": self.latencies.buckets})

    @classmethod
    def from_json(cls, text: str) -> Counts:
        """Read what ``to_json`` gave."""
        told = json.loads(text)
        buckets = {int(at): count for at, count in told.pop("latencies").items()}
        return cls(**told, latencies=Latencies(Counter(buckets)))

    def summary(self) -> dict[str, Any]:
        """Return the numbers by name; times in seconds, None where nothing was sent."""
        return {
            "rows": self.rows,
            "sent": self.sent,
            "executed": self.executed,
            "replayed": self.replayed,
            "failed": self.failed,
            "dead_lettered": self.dead_lettered,
            "retries": self.retries,
            "p50_s": self.latencies.quantile(0.5),
            "p99_s": self.latencies.quantile(0.99),
        }


def check_metrics(path: str | None) -> None:
    """Raise ``PlanError`` where metrics are asked for and cannot be written."""
    if path is None:
        return
    try:
        import prometheus_client  # noqa: F401 - asked for on the driver, used there later
    except ImportError as error:
        raise PlanError("metrics need the extra: pip install 'rifl-grpc[metrics]'") from error
    if not path.endswith(".prom") or not Path(path).parent.is_dir():
        raise PlanError(f"metrics: {path!r} is not a .prom file in a directory that is there")


def report(
    counts: Counts,
    *,
    method: str,
    session: str,
    batch: int | None,
    lines: str | None,
    metrics: str | None,
    query: str | None = None,
) -> None:
    """Tell of one committed write or micro-batch. Told again if Spark commits again.

    Whatever goes wrong with the files is logged and changes nothing: the rows are
    where they belong.
    """
    told: dict[str, Any] = {"session": session, "method": method}
    if batch is not None:
        told |= {"query": query, "batch": batch}
    told |= counts.summary()
    heard("rifl.spark").info(
        "rifl wrote %s",
        " ".join(f"{name}={_short(value)}" for name, value in told.items()),
    )
    try:
        if lines is not None:
            told["at_unix_s"] = time.time()
            append_line(Path(lines), told)
        if metrics is not None:
            _add(Path(metrics), method, counts)
    except (OSError, ValueError) as error:
        heard("rifl.spark").warning("rifl could not write its report: %s", error)


def append_line(path: Path, told: dict[str, Any]) -> None:
    """Append a line of JSON, or nothing if there is no room for it; raises ``OSError``."""
    left = memoryview((json.dumps(told) + "\n").encode())
    with path.open("ab", buffering=0) as file:
        begins = file.seek(0, os.SEEK_END)
        try:
            while left:
                left = left[file.write(left) :]
        except OSError:
            # Half a line would spoil the next one, too.
            file.truncate(begins)
            raise


def tell_progress(method: str, task: str, counts: Counts, seconds: float) -> None:
    """Say in a task's own log how far it is: of a Python sink Spark shows nothing meanwhile."""
    heard("rifl.spark").info(
        "rifl writes to %s: task %s has sent %d rows in %.0f s (%.0f a second), executed=%d "
        "replayed=%d retries=%d",
        method,
        task,
        counts.sent,
        seconds,
        counts.sent / max(seconds, 1e-9),
        counts.executed,
        counts.replayed,
        counts.retries,
    )


def tell_aborted(method: str, session: str) -> None:
    """Say in the driver's log how to go on after a write that failed."""
    heard("rifl.spark").warning(
        "rifl write to %s aborted; what was executed stays so. Written again with "
        'option("session", "%s") it would be finished, and nothing repeated',
        method,
        session,
    )


def _short(value: Any) -> Any:
    return f"{value:.4g}" if isinstance(value, float) else value


def _add(path: Path, method: str, counts: Counts) -> None:
    """Add to the totals in the file; it is replaced whole."""
    from prometheus_client import CollectorRegistry, Gauge, generate_latest
    from prometheus_client import Counter as Total
    from prometheus_client.parser import text_string_to_metric_families

    registry = CollectorRegistry()
    totals = {
        name: Total(f"rifl_spark_{name}", text, ["method"], registry=registry)
        for name, text in _HELP.items()
    }
    writes = Total("rifl_spark_writes", "Committed writes.", ["method"], registry=registry)
    last = Gauge(
        "rifl_spark_row_seconds",
        "From sending a row to its answer, in the last write.",
        ["method", "quantile"],
        registry=registry,
    )
    known = {next(iter(counter.describe())).name: counter for counter in (*totals.values(), writes)}
    if path.exists():
        for family in text_string_to_metric_families(path.read_text()):
            for sample in family.samples:
                name = sample.name.removesuffix("_total")
                if name in known and sample.name.endswith("_total"):
                    known[name].labels(sample.labels["method"]).inc(sample.value)
    summary = counts.summary()
    for name, counter in totals.items():
        counter.labels(method).inc(summary[name])
    writes.labels(method).inc()
    for quantile, name in (("0.5", "p50_s"), ("0.99", "p99_s")):
        if summary[name] is not None:
            last.labels(method, quantile).set(summary[name])
    with replacing(path) as part:
        part.write_bytes(generate_latest(registry))
        # The collector runs as another user.
        part.chmod(0o644)
