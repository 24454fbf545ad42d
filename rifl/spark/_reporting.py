"""What a write did, told by the driver: its log, a file of JSON lines, Prometheus.

Spark lets a Python sink put nothing into a query's progress. Its hooks run in
processes of their own that come and go, so metrics go to a file that Prometheus's
node exporter collects (its textfile collector).
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

from rifl.spark._counts import Counts
from rifl.spark._errors import PlanError

_log = logging.getLogger("rifl.spark")
_HELP = {
    "rows": "Rows that committed writes were given.",
    "sent": "Rows that reached the service.",
    "executed": "Rows that had their effect through the committed attempts.",
    "replayed": "Rows that had had their effect before.",
    "failed": "Rows that failed for good.",
    "dead_lettered": "Failed rows that were put aside.",
    "retries": "Rows sent once more.",
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
) -> None:
    """Tell of one committed write or micro-batch. Told again if Spark commits again.

    Whatever goes wrong with the files is logged and changes nothing: the rows are
    where they belong.
    """
    told: dict[str, Any] = {"session": session, "method": method}
    if batch is not None:
        told["batch"] = batch
    told |= counts.summary()
    _logger().info(
        "rifl wrote %s",
        " ".join(f"{name}={_short(value)}" for name, value in told.items()),
    )
    try:
        if lines is not None:
            told["at_unix_s"] = time.time()
            with Path(lines).open("a", encoding="utf-8") as file:
                file.write(json.dumps(told) + "\n")
        if metrics is not None:
            _add(Path(metrics), method, counts)
    except (OSError, ValueError) as error:
        _logger().warning("rifl could not write its report: %s", error)


def tell_progress(method: str, task: str, counts: Counts, seconds: float) -> None:
    """Say in a task's own log how far it is: of a Python sink Spark shows nothing meanwhile."""
    _logger().info(
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
    _logger().warning(
        "rifl write to %s aborted; what was executed stays so. Written again with "
        'option("session", "%s") it would be finished, and nothing repeated',
        method,
        session,
    )


def _short(value: Any) -> Any:
    return f"{value:.4g}" if isinstance(value, float) else value


def _logger() -> logging.Logger:
    # These processes are Spark's: nobody else configures logging there, and what
    # they write to standard error is in the driver's log.
    if not _log.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        _log.addHandler(handler)
    _log.setLevel(min(_log.level or logging.INFO, logging.INFO))
    return _log


def _add(path: Path, method: str, counts: Counts) -> None:
    """Add to the totals in the file; it is replaced whole."""
    from prometheus_client import CollectorRegistry, Counter, Gauge, write_to_textfile
    from prometheus_client.parser import text_string_to_metric_families

    registry = CollectorRegistry()
    totals = {
        name: Counter(f"rifl_spark_{name}", text, ["method"], registry=registry)
        for name, text in _HELP.items()
    }
    writes = Counter("rifl_spark_writes", "Committed writes.", ["method"], registry=registry)
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
    write_to_textfile(str(path), registry)
    os.chmod(path, 0o644)
