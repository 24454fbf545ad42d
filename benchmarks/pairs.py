"""Paired runs: only ratios within one run count on a noisy machine."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import NamedTuple

from benchmarks.callers import Load

__all__ = ["Figure", "compare"]


class Figure(NamedTuple):
    """The median ratios of one variant to its baseline.

    ``throughput`` (calls a second), ``latency`` (median of one call), ``client_cpu``
    and ``server_cpu`` (processor time a call). ``low`` and ``high`` bound the first
    with about 95 % confidence (order statistics of the pairs' ratios, no
    distribution assumed). ``latency_ms`` and ``baseline_latency_ms`` are medians too.
    """

    name: str
    pairs: int
    throughput: float
    low: float
    high: float
    latency: float
    client_cpu: float
    server_cpu: float
    baseline_calls_per_s: float
    calls_per_s: float
    latency_ms: float
    baseline_latency_ms: float


def compare(
    name: str, variant: Callable[[], Load], baseline: Callable[[], Load], pairs: int
) -> Figure:
    """Run both in turn, the order changing from pair to pair, after one warm-up of each."""
    variant()
    baseline()
    runs: list[tuple[Load, Load]] = []
    for at in range(pairs):
        if at % 2:
            first = baseline()
            runs.append((variant(), first))
        else:
            runs.append((variant(), baseline()))
    ratios = sorted(ours.calls_per_s / theirs.calls_per_s for ours, theirs in runs)
    low, high = _interval(len(ratios))
    return Figure(
        name=name,
        pairs=pairs,
        throughput=statistics.median(ratios),
        low=ratios[low],
        high=ratios[high],
        latency=statistics.median(ours.median_ms / theirs.median_ms for ours, theirs in runs),
        client_cpu=statistics.median(ours.cpu_us / theirs.cpu_us for ours, theirs in runs),
        server_cpu=statistics.median(
            ours.server_cpu_us / theirs.server_cpu_us for ours, theirs in runs
        ),
        baseline_calls_per_s=statistics.median(theirs.calls_per_s for _, theirs in runs),
        calls_per_s=statistics.median(ours.calls_per_s for ours, _ in runs),
        latency_ms=statistics.median(ours.median_ms for ours, _ in runs),
        baseline_latency_ms=statistics.median(theirs.median_ms for _, theirs in runs),
    )


def _interval(count: int) -> tuple[int, int]:
    """Return the ranks that hold a median of ``count`` values with 95 % (sign test)."""
    spread = 0.98 * count**0.5
    low = max(0, int(count / 2 - spread))
    return low, count - 1 - low
