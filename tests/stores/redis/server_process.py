"""A server process over a shared Redis, which suspends itself at a named point.

Arguments: store URL, URL of the effects' Redis, ``sync`` or ``aio``, the point (or
``-``). The first call whose request starts with ``stop`` is stopped at the point.
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

METHODS = {"/s/Plain": "plain", "/s/Idempotent": "idempotent", "/s/Atomic": "atomic"}


def main(url: str, effects: str, kind: str, point: str) -> None:
    """Serve until killed; prints the port."""
    dedup = rifl.Deduplicator(url, methods=METHODS, term_s=30, max_wait_s=20, max_waiters=8)
    stopped = []

    def at(name: str, request: bytes) -> None:
        if name == point and request.startswith(b"stop") and not stopped:
            stopped.append(name)
            os.kill(os.getpid(), signal.SIGSTOP)

    store: Any = dedup._store
    settle = store._settle

    def settled(attempt: Any) -> None:
        # The record is durable, and nobody here has heard of it.
        at("after record", b"stop" if attempt.call.seq == 1 else b"")
        settle(attempt)

    store._settle = settled
    if kind == "sync":
        serve_sync(dedup, effects, at)
    else:
        asyncio.run(serve_aio(dedup, effects, at))


def serve_sync(dedup: Any, effects: str, at: Any) -> None:
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
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    server.start()
    server.wait_for_termination()


async def serve_aio(dedup: Any, effects: str, at: Any) -> None:
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
    port = server.add_insecure_port("127.0.0.1:0")
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
