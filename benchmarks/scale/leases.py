"""The cost of heartbeats: ``python -m benchmarks.scale.leases --clients 100000``.

A server holds so many clients; some of them renew by gRPC, as idle clients do, unary on
a sync server and by streams on an aio one, several at once. Counted is the processor
time of the server's process a renewal, from which follows the share of a core that all
clients take: each renews three times a term. ``--together 16``: so many of them are channels
of one process, which renew by one request; its rounds alternate with rounds in which each
renews by itself. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import time
from typing import Any

import grpc.aio

from benchmarks.pairs import Spread
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


def measure(clients: int, flavor: str, round_s: float, together: int = 1) -> dict[str, Any]:
    """Return the cost of a renewal, and the share of a core that all of them take.

    ``together``: of so many clients by one request, beside what each costs by itself.
    """
    arguments = ("--flavor", flavor, "--store", "memory:", "--idle", str(clients - _LIVE))
    with server_process("benchmarks.server", *arguments) as (port, pid):
        rounds = asyncio.run(_rounds(f"127.0.0.1:{port}", pid, flavor, round_s, together))
    costs = [cost for each in rounds for cost, _ in each[:1]]
    rates = [rate for each in rounds for _, rate in each[:1]]
    cpu_us = statistics.median(costs)
    needed = clients * _RENEWALS_A_TERM / _TERM_S
    found: dict[str, Any] = {
        "clients": clients,
        "by": "stream" if flavor == "aio" else "unary",
        "rounds": len(costs),
        "server_cpu_us": round(cpu_us, 1),
        "server_cpu_us_most": round(max(costs), 1),
        "renewals_per_s_needed": round(needed),
        "cores": round(needed * cpu_us / 1e6, 3),
        "renewals_per_s_measured": round(statistics.median(rates)),
    }
    if together > 1:
        ratio = Spread.of([shared[0] / alone[0] for shared, alone in rounds])
        found |= {
            "together": together,
            "cpu_to_alone": round(ratio.median, 3),
            "cpu_to_alone_low": round(ratio.low, 3),
            "cpu_to_alone_high": round(ratio.high, 3),
        }
    return found


async def _rounds(
    address: str, pid: int, flavor: str, round_s: float, together: int
) -> list[list[tuple[float, float]]]:
    """Return of each round what a renewal costs and how many there were a second.

    Together first, then each by itself, where these are two.
    """
    async with grpc.aio.insecure_channel(address) as channel:
        grant: Any = channel.unary_unary(
            _SERVICE + "Grant",
            request_serializer=pb.GrantRequest.SerializeToString,
            response_deserializer=pb.GrantReply.FromString,
        )
        grants = [await grant(pb.GrantRequest(), timeout=30.0) for _ in range(_LIVE)]
        renew = _streamed if flavor == "aio" else _unary
        requests = {size: _requests(grants, size) for size in (together, 1)}
        rounds = []
        for _ in range(_ROUNDS + 1):
            found = []
            for each in requests.values():
                before, began = cpu_s(pid), time.perf_counter()
                end = began + round_s
                counts = await asyncio.gather(
                    *(renew(channel, each[at::_AT_ONCE], end) for at in range(_AT_ONCE))
                )
                cost_us = (cpu_s(pid) - before) / sum(counts) * 1e6
                found.append((cost_us, sum(counts) / (time.perf_counter() - began)))
            rounds.append(found)
        # The first round warms up.
        return rounds[1:]


def _requests(grants: list[Any], together: int) -> list[Any]:
    """Return the requests that renew all leases once, so many by each."""
    each = [
        pb.RenewRequest(client_id=grant.client_id, token=grant.token, store=grant.store)
        for grant in grants
    ]
    requests = []
    for at in range(0, len(each), together):
        first, *also = each[at : at + together]
        request = pb.RenewRequest()
        request.CopyFrom(first)
        request.also.extend(also)
        requests.append(request)
    return requests


def _renewed(reply: Any) -> int:
    answers = (reply, *reply.also)
    if not all(answer.term_ms for answer in answers):
        raise RuntimeError("a renewal was refused")
    return len(answers)


async def _unary(channel: Any, requests: list[Any], end: float) -> int:
    renew = channel.unary_unary(
        _SERVICE + "Renew",
        request_serializer=pb.RenewRequest.SerializeToString,
        response_deserializer=pb.RenewReply.FromString,
    )
    count = 0
    for request in itertools.cycle(requests):
        if time.perf_counter() >= end:
            break
        count += _renewed(await renew(request, timeout=30.0))
    return count


async def _streamed(channel: Any, requests: list[Any], end: float) -> int:
    keep_alive = channel.stream_stream(
        _SERVICE + "KeepAlive",
        request_serializer=pb.RenewRequest.SerializeToString,
        response_deserializer=pb.RenewReply.FromString,
    )
    # A stream a client, as there would be; opened before they are used.
    streams = [(keep_alive(timeout=600.0), request) for request in requests]
    count = 0
    for stream, request in itertools.cycle(streams):
        if time.perf_counter() >= end:
            break
        await stream.write(request)
        reply = await stream.read()
        if reply is grpc.aio.EOF:
            raise RuntimeError("a renewal was refused")
        count += _renewed(reply)
    for stream, _ in streams:
        stream.cancel()
    return count


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(prog="benchmarks.scale.leases", description=__doc__)
    parser.add_argument("--clients", type=int, default=100_000)
    parser.add_argument("--flavor", choices=["sync", "aio"], default="aio")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a round")
    parser.add_argument("--together", type=int, default=1, help="renewed by one request")
    options = parser.parse_args()
    print(json.dumps(measure(options.clients, options.flavor, options.seconds, options.together)))


if __name__ == "__main__":
    main()
