"""The followers of a served log: ``python -m benchmarks.log.followed ADDRESS FOLLOWERS MESSAGES``.

That process follows so many times, and prints how long each message took to each follower. The
server is a process of its own, whose processor time is told.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

import sharedlog
from benchmarks.log.own import Tell
from benchmarks.log.reader import sent_of, stamped
from benchmarks.served import Server, process
from sharedlog._core.envelope import unpack
from sharedlog._wire.methods import SERVICE
from sharedlog.v1 import log_pb2 as pb

__all__ = ["followed"]

_STREAM, _A_SECOND = "orders", 20
_CHANNELS = 4


def followed(folder: Path, followers: Sequence[int], seconds: float, tell: Tell) -> None:
    """Tell, for each number of followers, what the server takes and how long a message does."""
    rights = folder / "rights.toml"
    rights.write_text("[limits]\nfollowers = 0\ncaller_followers = 0\n")
    for count in followers:
        url = f"sqlite:///{folder}/followed-{count}.db"
        with sharedlog.create(url) as log:
            log.stream(_STREAM)
        options = ("--listen", "127.0.0.1:0", "--rights", str(rights))
        with process("sharedlog", "serve", "--log", url, *options) as (address, pid):
            server = Server(address, pid)
            share, took = _delivered(server, count, int(seconds * _A_SECOND))
        ranked = sorted(took)
        median, p99 = statistics.median(ranked), ranked[int(0.99 * (len(ranked) - 1))]
        tell(
            f"{count} followers",
            f"{100 * share:.0f} % of a core at {_A_SECOND} messages a second, median "
            f"{1000 * median:.1f} ms, 99 % {1000 * p99:.1f} ms",
            {
                "server_cores": round(share, 3),
                "median_s": round(median, 5),
                "p99_s": round(p99, 5),
            },
        )


def _delivered(server: Server, followers: int, messages: int) -> tuple[float, list[float]]:
    arguments = (server.address, str(followers), str(messages))
    with (
        sharedlog.open(f"grpc://{server.address}") as log,
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.log.followed", *arguments],
            stdout=subprocess.PIPE,
            text=True,
        ) as client,
    ):
        try:
            assert client.stdout is not None  # noqa: S101 - for the type checker
            client.stdout.readline()
            before, began = server.cpu_s(), time.monotonic()
            for number in range(messages):
                time.sleep(max(0.0, began + number / _A_SECOND - time.monotonic()))
                log.publish(_STREAM, stamped(number + 1))
            took: list[float] = json.loads(client.stdout.readline())
            return (server.cpu_s() - before) / (time.monotonic() - began), took
        finally:
            client.kill()


async def _main(address: str, followers: int, messages: int) -> None:
    async with contextlib.AsyncExitStack() as stack:
        channels = [
            await stack.enter_async_context(
                grpc.aio.insecure_channel(address, (("grpc.use_local_subchannel_pool", 1),))
            )
            for _ in range(_CHANNELS)
        ]
        described = await _call(channels[0], "Describe", pb.Description)(pb.DescribeRequest())
        request = pb.FollowRequest(
            incarnation=described.incarnation, stream=_STREAM, start=pb.Start(end=True)
        )
        calls = [
            _call(channels[number % _CHANNELS], "Follow", pb.FollowReply, streams=True)(request)
            for number in range(followers)
        ]
        for call in calls:
            await call.read()
        print("ready", flush=True)
        took = await asyncio.gather(*(_follow(call, messages) for call in calls))
    print(json.dumps([each for some in took for each in some]), flush=True)


def _call(channel: grpc.aio.Channel, method: str, reply: Any, *, streams: bool = False) -> Any:
    make = channel.unary_stream if streams else channel.unary_unary
    return make(
        f"/{SERVICE}/{method}",
        request_serializer=lambda request: request.SerializeToString(),
        response_deserializer=reply.FromString,
    )


async def _follow(call: Any, messages: int) -> list[float]:
    took: list[float] = []
    while len(took) < messages:
        reply = await call.read()
        now = time.monotonic_ns()
        took += [(now - sent_of(unpack(each.envelope).body)) / 1e9 for each in reply.messages]
    return took


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
