"""A target: ``python -m chaos.run.target NAME DATABASE PORT``; what it took is in its own table.

Its handlers are ``atomic``. ``target-1``, and every other one, is on ``grpc.aio``, to which players
send a stream; the others are sent batches. Until standard input closes.
"""

from __future__ import annotations

import asyncio
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

import rifl
import rifl.aio
import sharedlog
from chaos.run.streams import STREAMS
from chaos.run.taken import INSERT, TAKE

_THREADS = 8


def _write(connection: Any, context: Any, request: bytes) -> None:
    message = sharedlog.delivery(context)
    if message is None:
        raise RuntimeError("only a player calls this")
    at, key = message.position, message.key
    name = request.partition(b" ")[0].decode()
    told = None if key is None else key.decode()
    row = (message.stream, message.substream, at.lsn, at.ordinal, name, told)
    connection.execute(INSERT, row)


def _take(request: bytes, context: grpc.ServicerContext) -> bytes:
    with rifl.transaction(context) as connection:
        _write(connection, context, request)
        rifl.record(context, b"", connection)
    return b""


async def _take_async(request: bytes, context: Any) -> bytes:
    async with rifl.aio.transaction(context) as connection:
        _write(connection, context, request)
        await rifl.aio.record(context, b"", connection)
    return b""


def _deduplicator(database: Path) -> rifl.Deduplicator:
    return rifl.Deduplicator(f"sqlite:///{database}", methods={TAKE: "atomic"})


def _add(server: Any, dedup: rifl.Deduplicator, take: Any, port: int) -> None:
    _, service, method = TAKE.split("/")
    handlers: Any = {method: grpc.unary_unary_rpc_method_handler(take)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    dedup.add_to_server(server)
    sharedlog.add_target_to_server(server, dedup, {each: [TAKE] for each in STREAMS})
    server.add_insecure_port(f"127.0.0.1:{port}")


def _serve(database: Path, port: int) -> None:
    with _deduplicator(database) as dedup:
        server = grpc.server(ThreadPoolExecutor(_THREADS), interceptors=[dedup.interceptor()])
        _add(server, dedup, _take, port)
        server.start()
        print("serves", flush=True)
        os.read(0, 1)
        server.stop(None).wait()


async def _serve_async(database: Path, port: int) -> None:
    with _deduplicator(database) as dedup:
        server = grpc.aio.server(interceptors=[dedup.aio_interceptor()])
        _add(server, dedup, _take_async, port)
        await server.start()
        print("serves", flush=True)
        await asyncio.to_thread(os.read, 0, 1)
        await server.stop(None)


def main(name: str, database: str, port: str) -> None:
    """Serve until standard input closes."""
    if int(name.rpartition("-")[2]) % 2:
        asyncio.run(_serve_async(Path(database), int(port)))
    else:
        _serve(Path(database), int(port))


if __name__ == "__main__":
    main(*sys.argv[1:])
