"""The cost of heartbeats: ``python -m benchmarks.scale.leases --clients 100000``.

A server holds so many clients; some of them renew by gRPC, as idle clients do, unary on
a sync server and by streams on an aio one, several at once. Counted is the processor
time of the server's process a renewal, from which follows the share of a core that all
clients take: each renews three times a term. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from typing import Any

import grpc.aio

from benchmarks.sides import cpu_s, server_process
from lease_server.v1 import lease_server_pb2 as pb

__all__ = ["main", "measure"]

_SERVICE = "/lease_server.v1.LeaseServer/"
_TERM_S = 60.0
# The client's rule: a third of the term after the last renewal.
_RENEWALS_A_TERM = 3
_LIVE = 256
_AT_ONCE = 16
_ROUNDS = 15


def measure(clients: int, flavor: str, round_s: float) -> dict[str, Any]:
    """Return the cost of a renewal, and the share of a core that all of them take."""
    arguments = ("--flavor", flavor, "--store", "memory:", "--idle", str(clients - _LIVE))
    with server_process("benchmarks.server", *arguments) as (port, pid):
        costs, rates = asyncio.run(_renewals(f"127.0.0.1:{port}", pid, flavor, round_s))
    cpu_us = statistics.median(costs)
    needed = clients * _RENEWALS_A_TERM / _TERM_S
    return {
        "clients": clients,
        "by": "stream" if flavor == "aio" else "unary",
        "rounds": len(costs),
        "server_cpu_us": round(cpu_us, 1),
        "server_cpu_us_most": round(max(costs), 1),
        "renewals_per_s_needed": round(needed),
        "cores": round(needed * cpu_us / 1e6, 3),
        "renewals_per_s_measured": round(statistics.median(rates)),
    }


async def _renewals(
    address: str, pid: int, flavor: str, round_s: float
) -> tuple[list[float], list[float]]:
    async with grpc.aio.insecure_channel(address) as channel:
        grant: Any = channel.unary_unary(
            _SERVICE + "Grant",
            request_serializer=pb.GrantRequest.SerializeToString,
            response_deserializer=pb.GrantReply.FromString,
        )
        grants = [await grant(pb.GrantRequest(), timeout=30.0) for _ in range(_LIVE)]
        renewers = [_streamed if flavor == "aio" else _unary] * _AT_ONCE
        costs, rates = [], []
        for _ in range(_ROUNDS + 1):
            before, began = cpu_s(pid), time.perf_counter()
            end = began + round_s
            counts = await asyncio.gather(
                *(renew(channel, grants[at::_AT_ONCE], end) for at, renew in enumerate(renewers))
            )
            costs.append((cpu_s(pid) - before) / sum(counts) * 1e6)
            rates.append(sum(counts) / (time.perf_counter() - began))
        # The first round warms up.
        return costs[1:], rates[1:]


async def _unary(channel: Any, grants: list[Any], end: float) -> int:
    renew = channel.unary_unary(
        _SERVICE + "Renew",
        request_serializer=pb.RenewRequest.SerializeToString,
        response_deserializer=pb.RenewReply.FromString,
    )
    count = 0
    while time.perf_counter() < end:
        grant = grants[count % len(grants)]
        request = pb.RenewRequest(client_id=grant.client_id, token=grant.token)
        reply = await renew(request, timeout=30.0)
        if not reply.term_ms:
            raise RuntimeError("a renewal was refused")
        count += 1
    return count


async def _streamed(channel: Any, grants: list[Any], end: float) -> int:
    keep_alive = channel.stream_stream(
        _SERVICE + "KeepAlive",
        request_serializer=pb.RenewRequest.SerializeToString,
        response_deserializer=pb.RenewReply.FromString,
    )
    # A stream a client, as there would be; opened before they are used.
    streams = [keep_alive(timeout=600.0) for _ in grants]
    count = 0
    while time.perf_counter() < end:
        at = count % len(grants)
        grant, stream = grants[at], streams[at]
        await stream.write(pb.RenewRequest(client_id=grant.client_id, token=grant.token))
        reply = await stream.read()
        if reply is grpc.aio.EOF or reply.refused:
            raise RuntimeError("a renewal was refused")
        count += 1
    for stream in streams:
        stream.cancel()
    return count


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(prog="benchmarks.scale.leases", description=__doc__)
    parser.add_argument("--clients", type=int, default=100_000)
    parser.add_argument("--flavor", choices=["sync", "aio"], default="aio")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a round")
    options = parser.parse_args()
    print(json.dumps(measure(options.clients, options.flavor, options.seconds)))


if __name__ == "__main__":
    main()
