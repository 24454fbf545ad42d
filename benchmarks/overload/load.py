"""Calls that begin at a rate of their own, whatever becomes of the ones before."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, NamedTuple

import grpc
import grpc.aio

import rifl
import rifl.aio
from benchmarks.overload.server import METHOD
from rifl.v1 import rifl_pb2

__all__ = ["Call", "Client", "Rate", "run"]

_THREADS = 900
# Seen from the load's beginning, seconds; calls a second.
Rate = Callable[[float], float]
_RETRIES = {
    "methodConfig": [
        {
            "name": [{}],
            "retryPolicy": {
                "maxAttempts": 4,
                "initialBackoff": "0.1s",
                "maxBackoff": "1s",
                "backoffMultiplier": 2,
                "retryableStatusCodes": ["UNAVAILABLE", "DEADLINE_EXCEEDED"],
            },
        }
    ]
}
_RECONNECT = [
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 200),
]


class Client(NamedTuple):
    """How calls are made: by which side's channel, and with what."""

    side: str
    deadline_s: float
    attempt_timeout_s: float | None
    hedge_after_s: float | None

    def channel(self, addresses: list[str], *, aio: bool) -> Any:
        """Open one; within the loop where it is for one."""
        if self.side in ("rifl", "places"):
            keywords: dict[str, Any] = {"hedge_after": self.hedge_after_s}
            if self.attempt_timeout_s is not None:
                keywords["retry"] = rifl.RetryPolicy(attempt_timeout_s=self.attempt_timeout_s)
            return (rifl.aio if aio else rifl).connect(addresses, **keywords)
        options: list[tuple[str, Any]] = list(_RECONNECT)
        config: dict[str, Any] = {}
        if self.side == "retries":
            config = _RETRIES
        else:
            options.append(("grpc.enable_retries", 0))
        if len(addresses) > 1:
            config = {**config, "loadBalancingConfig": [{"round_robin": {}}]}
        options.append(("grpc.service_config", json.dumps(config)))
        target = "ipv4:" + ",".join(addresses)
        return (grpc.aio if aio else grpc).insecure_channel(target, options)


class Call(NamedTuple):
    """When it began, and whether it was answered in time."""

    began: float
    answered: bool


def run(
    client: Client, addresses: list[str], rate: Rate, seconds: float, *, channels: int, aio: bool
) -> list[Call]:
    """Load the addresses for so long, by so many channels in turn."""
    if aio:
        return asyncio.run(_run_aio(client, addresses, rate, seconds, channels))
    return _run_sync(client, addresses, rate, seconds, channels)


def _run_sync(
    client: Client, addresses: list[str], rate: Rate, seconds: float, channels: int
) -> list[Call]:
    opened = [client.channel(addresses, aio=False) for _ in range(channels)]
    stubs = [_stub(channel) for channel in opened]
    found: list[Call] = []
    lock = threading.Lock()

    def call(number: int, due: float) -> None:
        answered = False
        with suppress(Exception):
            left = due + client.deadline_s - time.monotonic()
            if left > 0:
                stubs[number % channels](_request(number, due + client.deadline_s), timeout=left)
                answered = time.monotonic() <= due + client.deadline_s
        with lock:
            found.append(Call(due, answered))

    with ThreadPoolExecutor(_THREADS) as pool:
        begin = time.monotonic()
        for number, due in _times(rate, seconds):
            pause = begin + due - time.monotonic()
            if pause > 0:
                time.sleep(pause)
            pool.submit(call, number, begin + due)
    for channel in opened:
        channel.close()
    return sorted(found)


async def _run_aio(
    client: Client, addresses: list[str], rate: Rate, seconds: float, channels: int
) -> list[Call]:
    opened = [client.channel(addresses, aio=True) for _ in range(channels)]
    stubs = [_stub(channel) for channel in opened]
    found: list[Call] = []

    async def call(number: int, due: float) -> None:
        answered = False
        with suppress(Exception):
            left = due + client.deadline_s - time.monotonic()
            if left > 0:
                request = _request(number, due + client.deadline_s)
                await stubs[number % channels](request, timeout=left)
                answered = time.monotonic() <= due + client.deadline_s
        found.append(Call(due, answered))

    begin = time.monotonic()
    async with asyncio.TaskGroup() as tasks:
        for number, due in _times(rate, seconds):
            pause = begin + due - time.monotonic()
            if pause > 0:
                await asyncio.sleep(pause)
            tasks.create_task(call(number, begin + due))
    for channel in opened:
        await channel.close()
    return sorted(found)


def _times(rate: Rate, seconds: float) -> list[tuple[int, float]]:
    at = 0.0
    found: list[tuple[int, float]] = []
    while at < seconds:
        found.append((len(found), at))
        at += 1 / rate(at)
    return found


def _stub(channel: Any) -> Any:
    return channel.unary_unary(
        METHOD,
        request_serializer=rifl_pb2.MetadataEntry.SerializeToString,
        response_deserializer=rifl_pb2.MetadataEntry.FromString,
        _registered_method=True,
    )


def _request(number: int, deadline: float) -> Any:
    return rifl_pb2.MetadataEntry(key=f"call-{number}", value=repr(deadline).encode())
