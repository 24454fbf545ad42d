"""Calls that are recorded beside calls that are not, in runs that take turns.

On a machine that others use, too, only what is measured side by side can be compared.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import grpc
import grpc.aio

import rifl
import rifl.aio
from benchmarks.callers import Load, run_aio, run_sync
from benchmarks.pairs import Spread

__all__ = ["FLAVORS", "WAYS", "Measured", "side_by_side"]

FLAVORS = ("sync", "aio")
WAYS = ("fast", "adaptive", "synced")
_WARM_CALLS = 40
# In which an adaptive channel measures both ways under the load.
_WARM_S = 2.0


class _Process(Protocol):
    def cpu_s(self) -> float:
        """Return the processor time it has used."""


class Measured(NamedTuple):
    """One way, over its runs. ``to_last``: its calls a second to the last way's, pair by pair.

    The rest are medians of the runs; processor time is of one call: the client's, and each
    server's.
    """

    to_last: Spread
    calls_per_s: float
    median_ms: float
    client_cpu_us: float
    servers_cpu_us: tuple[float, ...]


def side_by_side(
    flavor: str,
    ways: dict[str, str],
    method: str,
    draw: Callable[[], Any],
    servers: Sequence[_Process],
    *,
    callers: int,
    seconds: float,
    pairs: int,
) -> dict[str, Measured]:
    """Measure each way ``pairs`` times, in turn, the order changing every time.

    ``ways``: the target of each; "plain" goes there by gRPC alone, those of ``WAYS`` are values of
    ``group_path``. ``draw`` gives the next request.
    """
    runs = asyncio.run(_all(flavor, ways, method, draw, servers, callers, seconds, pairs))
    last = runs[list(ways)[-1]]
    return {
        way: Measured(
            Spread.of(
                [
                    one.load.calls_per_s / other.load.calls_per_s
                    for one, other in zip(mine, last, strict=True)
                ]
            ),
            statistics.median(run.load.calls_per_s for run in mine),
            statistics.median(run.load.median_ms for run in mine),
            statistics.median(run.load.cpu_us for run in mine),
            tuple(
                statistics.median(run.servers_us[at] for run in mine) for at in range(len(servers))
            ),
        )
        for way, mine in runs.items()
    }


class _Run(NamedTuple):
    load: Load
    servers_us: tuple[float, ...]


async def _all(
    flavor: str,
    ways: dict[str, str],
    method: str,
    draw: Callable[[], Any],
    servers: Sequence[_Process],
    callers: int,
    seconds: float,
    pairs: int,
) -> dict[str, list[_Run]]:
    aio = flavor == "aio"
    runs: dict[str, list[_Run]] = {way: [] for way in ways}
    async with contextlib.AsyncExitStack() as stack:
        calls = {}
        for way, target in ways.items():
            channel = _open(way, target, aio=aio)
            if aio:
                await stack.enter_async_context(channel)
            else:
                stack.enter_context(channel)
            calls[way] = _call(channel, method, draw)

        async def run(way: str, callers: int, seconds: float) -> Load:
            if aio:
                return await run_aio(calls[way], callers, seconds)
            # The loop has nothing else to do.
            return run_sync(calls[way], callers, seconds)

        for way, call in calls.items():
            for _ in range(_WARM_CALLS):
                reply = call(None, timeout=60.0)
                if aio:
                    await reply
                time.sleep(0.005)
            await run(way, callers, _WARM_S)
        for at in range(pairs):
            for way in list(ways) if at % 2 else list(ways)[::-1]:
                before = [server.cpu_s() for server in servers]
                load = await run(way, callers, seconds)
                used = [server.cpu_s() - then for server, then in zip(servers, before, strict=True)]
                called = load.calls_per_s * seconds
                runs[way].append(_Run(load, tuple(each / called * 1e6 for each in used)))
    return runs


def _open(way: str, target: str, *, aio: bool) -> Any:
    if way == "plain":
        return grpc.aio.insecure_channel(target) if aio else grpc.insecure_channel(target)
    chosen = way if way in WAYS else "adaptive"
    return (rifl.aio.connect if aio else rifl.connect)(target, group_path=chosen)


def _call(channel: Any, method: str, draw: Callable[[], Any]) -> Callable[..., Any]:
    stub = channel.unary_unary(
        method, request_serializer=lambda request: request.SerializeToString()
    )
    return lambda request, timeout: stub(draw(), timeout=timeout)
