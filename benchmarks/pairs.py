"""Paired runs: only ratios within one run count on a noisy machine."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from benchmarks.callers import Load

__all__ = ["Figure", "Spread", "compare", "fsync_ms"]

_FSYNCS = 20


class Spread(NamedTuple):
    """A median over pairs, and what bounds it with about 95 % confidence.

    Order statistics (a sign test): no distribution is assumed.
    """

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return that of one value a pair."""
        ranked = sorted(values)
        low = max(0, int(len(ranked) / 2 - 0.98 * len(ranked) ** 0.5))
        return cls(statistics.median(ranked), ranked[low], ranked[-1 - low])


class Figure(NamedTuple):
    """One variant to its baseline, over so many pairs.

    Ratios: ``throughput`` (calls a second), ``latency`` (median of one call),
    ``client_cpu`` and ``server_cpu`` (processor time a call). ``more_ms`` is the
    difference of the latencies, ``fsyncs`` the same in fsyncs measured between the
    pairs. The rest are medians of the runs.
    """

    pairs: int
    throughput: Spread
    latency: Spread
    client_cpu: Spread
    server_cpu: Spread
    more_ms: Spread
    fsyncs: Spread
    fsync_ms: float
    calls_per_s: float
    baseline_calls_per_s: float
    latency_ms: float
    baseline_latency_ms: float
    client_cpu_us: float
    server_cpu_us: float

    def as_json(self) -> dict[str, Any]:
        """Return it as plain dictionaries, rounded to what is meant."""
        return {name: _plain(value) for name, value in self._asdict().items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Spread):
        return {name: round(one, 4) for name, one in value._asdict().items()}
    return round(value, 4)


def compare(variant: Callable[[], Load], baseline: Callable[[], Load], pairs: int) -> Figure:
    """Run both in turn, the order changing from pair to pair, after one warm-up of each."""
    variant()
    baseline()
    runs: list[tuple[Load, Load]] = []
    fsyncs: list[float] = []
    for at in range(pairs):
        fsyncs.append(fsync_ms())
        if at % 2:
            first = baseline()
            runs.append((variant(), first))
        else:
            runs.append((variant(), baseline()))
    more = [ours.median_ms - theirs.median_ms for ours, theirs in runs]
    return Figure(
        pairs=pairs,
        throughput=Spread.of([ours.calls_per_s / theirs.calls_per_s for ours, theirs in runs]),
        latency=Spread.of([ours.median_ms / theirs.median_ms for ours, theirs in runs]),
        client_cpu=Spread.of([ours.cpu_us / theirs.cpu_us for ours, theirs in runs]),
        server_cpu=Spread.of([ours.server_cpu_us / theirs.server_cpu_us for ours, theirs in runs]),
        more_ms=Spread.of(more),
        fsyncs=Spread.of([one / fsync for one, fsync in zip(more, fsyncs, strict=True)]),
        fsync_ms=statistics.median(fsyncs),
        calls_per_s=statistics.median(ours.calls_per_s for ours, _ in runs),
        baseline_calls_per_s=statistics.median(theirs.calls_per_s for _, theirs in runs),
        latency_ms=statistics.median(ours.median_ms for ours, _ in runs),
        baseline_latency_ms=statistics.median(theirs.median_ms for _, theirs in runs),
        client_cpu_us=statistics.median(ours.cpu_us for ours, _ in runs),
        server_cpu_us=statistics.median(ours.server_cpu_us for ours, _ in runs),
    )


def fsync_ms() -> float:
    """Measure the fsync of a page just written, milliseconds: the median of twenty."""
    took: list[float] = []
    with tempfile.NamedTemporaryFile() as file:
        for _ in range(_FSYNCS):
            file.write(b"x" * 4096)
            file.flush()
            begin = time.perf_counter()
            os.fsync(file.fileno())
            took.append(time.perf_counter() - begin)
    return statistics.median(took) * 1e3
