"""The load: so many callers that call one after the other for a while."""

from __future__ import annotations

import asyncio
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from rifl.v1 import rifl_pb2

__all__ = ["Load", "run_aio", "run_sync"]

_REQUEST = rifl_pb2.MetadataEntry(key="account", value=b"x" * 24)
_TIMEOUT_S = 30.0


class Load(NamedTuple):
    """What one run measured."""

    calls_per_s: float
    median_ms: float
    cpu_us: float
    server_cpu_us: float = 0.0


def run_sync(call: Callable[..., Any], callers: int, seconds: float) -> Load:
    """Call from ``callers`` threads; ``call(request, timeout=...)`` blocks."""
    latencies: list[list[float]] = [[] for _ in range(callers)]
    start = threading.Barrier(callers + 1)

    def work(mine: list[float]) -> None:
        clock = time.perf_counter
        start.wait()
        end = clock() + seconds
        while (begin := clock()) < end:
            call(_REQUEST, timeout=_TIMEOUT_S)
            mine.append(clock() - begin)

    threads = [threading.Thread(target=work, args=(mine,)) for mine in latencies]
    for thread in threads:
        thread.start()
    cpu = time.process_time()
    begin = time.perf_counter()
    start.wait()
    for thread in threads:
        thread.join()
    return _load(latencies, time.perf_counter() - begin, time.process_time() - cpu)


async def run_aio(call: Callable[..., Any], callers: int, seconds: float) -> Load:
    """Call from ``callers`` tasks; ``call(request, timeout=...)`` is awaited."""
    latencies: list[list[float]] = [[] for _ in range(callers)]
    clock = time.perf_counter
    cpu = time.process_time()
    begin = clock()

    async def work(mine: list[float]) -> None:
        end = begin + seconds
        while (at := clock()) < end:
            await call(_REQUEST, timeout=_TIMEOUT_S)
            mine.append(clock() - at)

    await asyncio.gather(*(work(mine) for mine in latencies))
    return _load(latencies, clock() - begin, time.process_time() - cpu)


def _load(latencies: list[list[float]], wall_s: float, cpu_s: float) -> Load:
    every = [latency for mine in latencies for latency in mine]
    return Load(len(every) / wall_s, statistics.median(every) * 1e3, cpu_s / len(every) * 1e6)
