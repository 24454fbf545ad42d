"""A server process over a shared Redis, which suspends itself at a named point.

Arguments: store URL, URL of the effects' Redis, ``sync`` or ``aio``, and ``stops`` for
the one that suspends itself: at the point that a request names (``stop NUMBER POINT``),
or after the record of a call with seq 7, each once. A port, where it has to be a
certain one. After a stop whose request also says ``beats`` it goes on once the store has counted
its beat again.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import redis
import redis.asyncio

import rifl
import rifl.aio
from tests.helpers.waiting import until

METHODS = {"/s/Plain": "plain", "/s/Idempotent": "idempotent", "/s/Atomic": "atomic"}


def main(url: str, effects: str, kind: str, stops: str, port: str = "0") -> None:
    """Serve until killed; prints the port."""
    dedup = rifl.Deduplicator(
        url, methods=METHODS, term_s=30, bounds=rifl.Bounds(max_wait_s=20, max_waiters=8)
    )
    stopped = set()

    def at(point: str, request: bytes) -> None:
        wanted = request.startswith(b"stop") and request.endswith(point.encode())
        if wanted and stops == "stops" and request not in stopped:
            stopped.add(request)
            # To this thread: else it may run on a little while another one takes it.
            signal.raise_signal(signal.SIGSTOP)
            if b"beats" in request:
                until(lambda: not store.overdue(), "a beat is counted")

    store: Any = dedup._store
    settle = store._settlement.settle

    def settled(attempt: Any) -> None:
        # The record is durable, and nobody here has heard of it.
        if attempt.call.seq == 7:
            at("after record", b"stop %d after record" % attempt.call.client_id)
        settle(attempt)

    store._settlement.settle = settled
    if kind == "sync":
        serve_sync(dedup, effects, at, f"127.0.0.1:{port}")
    else:
        asyncio.run(serve_aio(dedup, effects, at, f"127.0.0.1:{port}"))


def serve_sync(dedup: Any, effects: str, at: Any, address: str) -> None:
    """The sync server."""
    client = redis.Redis.from_url(effects)

    def effect(request: bytes, context: Any) -> bytes:
        at("before effect", request)
        count = client.incr(b"effects:" + request)
        at("after effect", request)
        return b"%d %d" % (count, os.getpid())

    def atomic(request: bytes, context: Any) -> bytes:
        at("before effect", request)
        with client.pipeline() as pipe:
            reply = b"%d" % os.getpid()
            rifl.record(context, reply, pipe)
            pipe.incr(b"effects:" + request)
            at("after record queued", request)
            pipe.execute()
        at("after effect", request)
        return reply

    server = grpc.server(ThreadPoolExecutor(16), interceptors=[dedup.interceptor()])
    server.add_generic_rpc_handlers((handler(effect, atomic),))
    dedup.add_to_server(server)
    print(server.add_insecure_port(address), flush=True)
    server.start()
    server.wait_for_termination()


async def serve_aio(dedup: Any, effects: str, at: Any, address: str) -> None:
    """The aio server."""
    client = redis.asyncio.Redis.from_url(effects)

    async def effect(request: bytes, context: Any) -> bytes:
        at("before effect", request)
        count = await client.incr(b"effects:" + request)
        at("after effect", request)
        return b"%d %d" % (count, os.getpid())

    async def atomic(request: bytes, context: Any) -> bytes:
        at("before effect", request)
        async with client.pipeline() as pipe:
            reply = b"%d" % os.getpid()
            await rifl.aio.record(context, reply, pipe)
            pipe.incr(b"effects:" + request)
            at("after record queued", request)
            await pipe.execute()
        at("after effect", request)
        return reply

    server = grpc.aio.server(interceptors=[dedup.aio_interceptor()])
    server.add_generic_rpc_handlers((handler(effect, atomic),))
    dedup.add_to_server(server)
    port = server.add_insecure_port(address)
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


def handler(effect: Any, atomic: Any) -> Any:
    """The service of the three methods."""
    return grpc.method_handlers_generic_handler(
        "s",
        {
            "Plain": grpc.unary_unary_rpc_method_handler(effect),
            "Idempotent": grpc.unary_unary_rpc_method_handler(effect),
            "Atomic": grpc.unary_unary_rpc_method_handler(atomic),
        },
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
