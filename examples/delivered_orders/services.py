"""The services: ``python -m examples.delivered_orders.services NAME DATABASE [CRASH_EVERY]``.

``Take`` is an unchanged handler: in a transaction it writes what it was called with. The player
calls it, by way of rifl. ``Naive`` does the same for the dispatcher that most would write, without.
Mail is slow, and on ``grpc.aio``. Billing crashes by itself: once at each so-many-th order, when
that is written and not answered yet.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

import rifl
import rifl.aio
import sharedlog
from examples.delivered_orders.shop import STREAM

__all__ = ["CRASHING", "NAMES", "create", "naive_of", "taken_by"]

NAMES = ("inventory", "billing", "mail")
CRASHING, _SLOW = "billing", "mail"
_SLOW_S = 0.002
_INSERT = "INSERT INTO effect (name, substream, lsn, ordinal, at_ns) VALUES (?, ?, ?, ?, ?)"


def taken_by(service: str) -> str:
    """Return the method that the player calls."""
    return f"/examples.{service.capitalize()}/Take"


def naive_of(service: str) -> str:
    """Return the method that the naive dispatcher calls."""
    return f"/examples.{service.capitalize()}/Naive"


def create(database: Path) -> None:
    """Make the tables of effects, empty."""
    with contextlib.closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute(
            "CREATE TABLE effect (number INTEGER PRIMARY KEY, name TEXT, substream INTEGER, "
            "lsn INTEGER, ordinal INTEGER, at_ns INTEGER)"
        )
        connection.execute("CREATE TABLE naive_effect (number INTEGER PRIMARY KEY, name TEXT)")


def _write(connection: Any, context: Any, request: bytes) -> None:
    message = sharedlog.delivery(context)
    if message is None:
        raise RuntimeError("only a player calls this")
    at = message.position
    row = (request.decode(), message.substream, at.lsn, at.ordinal, time.time_ns())
    connection.execute(_INSERT, row)


def _naive(database: Path, request: bytes) -> bytes:
    with contextlib.closing(sqlite3.connect(database, timeout=30)) as connection, connection:
        connection.execute("INSERT INTO naive_effect (name) VALUES (?)", (request.decode(),))
    return b""


def _added(server: Any, dedup: rifl.Deduplicator, name: str, take: Any, naive: Any) -> int:
    handlers: Any = {
        "Take": grpc.unary_unary_rpc_method_handler(take),
        "Naive": grpc.unary_unary_rpc_method_handler(naive),
    }
    service = f"examples.{name.capitalize()}"
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    dedup.add_to_server(server)
    sharedlog.add_target_to_server(server, dedup, {STREAM: [taken_by(name)]})
    return server.add_insecure_port("127.0.0.1:0")  # type: ignore[no-any-return]


def _crash(database: Path, called: str, request: bytes, every: int) -> None:
    """End this process, once at each so-many-th order; 0: at none."""
    number = int(request.split()[-1])
    mark = database.with_suffix(f".{called}.{number}")
    if every and (number + 1) % every == 0 and not mark.exists():
        mark.touch()
        os._exit(1)


def serve(name: str, database: Path, every: int) -> None:
    """Serve on ``grpc.server`` until standard input closes; crash at each ``every``-th order."""

    def take(request: bytes, context: grpc.ServicerContext) -> bytes:
        with rifl.transaction(context) as connection:
            _write(connection, context, request)
            rifl.record(context, b"", connection)
        _crash(database, "take", request, every)
        return b""

    def naive(request: bytes, _: grpc.ServicerContext) -> bytes:
        answer = _naive(database, request)
        _crash(database, "naive", request, every)
        return answer

    with _deduplicator(name, database) as dedup:
        server = grpc.server(ThreadPoolExecutor(8), interceptors=[dedup.interceptor()])
        port = _added(server, dedup, name, take, naive)
        server.start()
        print(f"listening {port}", flush=True)
        sys.stdin.read()
        server.stop(grace=1).wait()


async def serve_async(name: str, database: Path) -> None:
    """Serve on ``grpc.aio.server``, slowly, until standard input closes."""

    async def take(request: bytes, context: Any) -> bytes:
        await asyncio.sleep(_SLOW_S)
        async with rifl.aio.transaction(context) as connection:
            _write(connection, context, request)
            await rifl.aio.record(context, b"", connection)
        return b""

    async def naive(request: bytes, _: Any) -> bytes:
        await asyncio.sleep(_SLOW_S)
        return await asyncio.to_thread(_naive, database, request)

    with _deduplicator(name, database) as dedup:
        server = grpc.aio.server(interceptors=[dedup.aio_interceptor()])
        port = _added(server, dedup, name, take, naive)
        await server.start()
        print(f"listening {port}", flush=True)
        await asyncio.to_thread(sys.stdin.read)
        await server.stop(grace=1)


@contextlib.contextmanager
def _deduplicator(name: str, database: Path) -> Iterator[rifl.Deduplicator]:
    with rifl.Deduplicator(f"sqlite:///{database}", methods={taken_by(name): "atomic"}) as dedup:
        yield dedup


if __name__ == "__main__":
    service, file, *more = sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:])
    if service == _SLOW:
        asyncio.run(serve_async(service, file))
    else:
        serve(service, file, more[0] if more else 0)
