"""Paired runs: only ratios within one run count on a noisy machine."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from benchmarks.callers import Load

__all__ = ["Figure", "Pair", "Spread", "figure_of", "fsync_ms", "run_pairs"]

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


class Pair(NamedTuple):
    """A run of rifl and one of the other side, and the fsync measured just before, milliseconds."""

    ours: Load
    theirs: Load
    fsync_ms: float


def run_pairs(variant: Callable[[], Load], baseline: Callable[[], Load], pairs: int) -> list[Pair]:
    """Run both in turn, the order changing from pair to pair, after one warm-up of each."""
    variant()
    baseline()
    found = []
    for at in range(pairs):
        fsync = fsync_ms()
        if at % 2:
            theirs = baseline()
            ours = variant()
        else:
            ours = variant()
            theirs = baseline()
        found.append(Pair(ours, theirs, fsync))
    return found


def figure_of(pairs: Sequence[Pair]) -> Figure:
    """Return what pairs amount to, of one ``run_pairs`` or several."""
    more = [each.ours.median_ms - each.theirs.median_ms for each in pairs]

    def ratio(part: Callable[[Load], float]) -> Spread:
        return Spread.of([part(each.ours) / part(each.theirs) for each in pairs])

    return Figure(
        pairs=len(pairs),
        throughput=ratio(lambda load: load.calls_per_s),
        latency=ratio(lambda load: load.median_ms),
        client_cpu=ratio(lambda load: load.cpu_us),
        server_cpu=ratio(lambda load: load.server_cpu_us),
        more_ms=Spread.of(more),
        fsyncs=Spread.of(
            [one / each.fsync_ms for one, each in zip(more, pairs, strict=True)],
        ),
        fsync_ms=statistics.median(each.fsync_ms for each in pairs),
        calls_per_s=statistics.median(each.ours.calls_per_s for each in pairs),
        baseline_calls_per_s=statistics.median(each.theirs.calls_per_s for each in pairs),
        latency_ms=statistics.median(each.ours.median_ms for each in pairs),
        baseline_latency_ms=statistics.median(each.theirs.median_ms for each in pairs),
        client_cpu_us=statistics.median(each.ours.cpu_us for each in pairs),
        server_cpu_us=statistics.median(each.ours.server_cpu_us for each in pairs),
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
