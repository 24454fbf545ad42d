"""A server process over a shared PostgreSQL, which suspends itself at a named point.

Arguments: store URL, URL of the effects' database (the same one), ``sync`` or ``aio``,
``stops`` (or ``-``). A request ``stop ... <point>`` is stopped at its point, once.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import psycopg

import rifl
import rifl.aio
from tests.stores.redis.server_process import METHODS, handler

_EFFECT = "INSERT INTO effects VALUES (%s)"


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

    def effect(request: bytes, context: Any) -> bytes:
        at("before effect", request)
        with psycopg.connect(effects) as connection:
            connection.execute(_EFFECT, (request.decode(),))
        at("after effect", request)
        return b"%d" % os.getpid()

    def atomic(request: bytes, context: Any) -> bytes:
        at("before effect", request)
        reply = b"%d" % os.getpid()
        with psycopg.connect(effects) as connection:
            connection.execute(_EFFECT, (request.decode(),))
            rifl.record(context, reply, connection)
            at("after record queued", request)
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

    async def effect(request: bytes, context: Any) -> bytes:
        at("before effect", request)
        async with await psycopg.AsyncConnection.connect(effects) as connection:
            await connection.execute(_EFFECT, (request.decode(),))
        at("after effect", request)
        return b"%d" % os.getpid()

    async def atomic(request: bytes, context: Any) -> bytes:
        at("before effect", request)
        reply = b"%d" % os.getpid()
        async with await psycopg.AsyncConnection.connect(effects) as connection:
            await connection.execute(_EFFECT, (request.decode(),))
            await rifl.aio.record(context, reply, connection)
            at("after record queued", request)
        at("after effect", request)
        return reply

    server = grpc.aio.server(interceptors=[dedup.aio_interceptor()])
    server.add_generic_rpc_handlers((handler(effect, atomic),))
    dedup.add_to_server(server)
    port = server.add_insecure_port(address)
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    main(*sys.argv[1:])
