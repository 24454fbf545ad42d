"""One server process to be measured: plain, or behind rifl over a store."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import grpc.aio

import rifl
from rifl.stores.sqlite.store import path_of
from rifl.v1 import rifl_pb2

__all__ = ["METHOD", "main"]

METHOD = "/bench.v1.Bench/Call"
_THREADS = 64


def _reply(request: rifl_pb2.MetadataEntry) -> rifl_pb2.MetadataEntry:
    return rifl_pb2.MetadataEntry(key=request.key, value=request.value)


def _handlers(behavior: Any) -> Any:
    handler: Any = grpc.unary_unary_rpc_method_handler(
        behavior,
        request_deserializer=rifl_pb2.MetadataEntry.FromString,
        response_serializer=rifl_pb2.MetadataEntry.SerializeToString,
    )
    return grpc.method_handlers_generic_handler("bench.v1.Bench", {"Call": handler})


class _Effects:
    """What an atomic handler does: a row of its own and its record, one transaction."""

    def __init__(self, store: str) -> None:
        self._path = path_of(store)
        self._of_thread = threading.local()
        with self._connection() as connection:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("CREATE TABLE IF NOT EXISTS effect (value BLOB)")

    def reply(self, request: rifl_pb2.MetadataEntry, context: Any) -> rifl_pb2.MetadataEntry:
        """Carry out one call."""
        answer = _reply(request)
        with self._connection() as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT INTO effect VALUES (?)", (request.value,))
            rifl.record(context, answer, connection)
        return answer

    def _connection(self) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = getattr(self._of_thread, "connection", None)
        if connection is None:
            connection = self._of_thread.connection = sqlite3.connect(
                self._path, timeout=30.0, isolation_level="IMMEDIATE"
            )
            connection.execute("PRAGMA synchronous=FULL")
        return connection


def _behavior(store: str, kind: str) -> Any:
    return _Effects(store).reply if kind == "atomic" else lambda request, _: _reply(request)


def _deduplicator(store: str, kind: str) -> rifl.Deduplicator | None:
    return None if store == "none" else rifl.Deduplicator(store, default=kind)


def _serve_sync(store: str, kind: str) -> None:
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    dedup = _deduplicator(store, kind)
    server = grpc.server(
        ThreadPoolExecutor(_THREADS), interceptors=[dedup.interceptor()] if dedup else []
    )
    server.add_generic_rpc_handlers((_handlers(_behavior(store, kind)),))
    if dedup:
        dedup.add_to_server(server)
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    server.start()
    stopped.wait()
    server.stop(0.1).wait()
    if dedup:
        dedup.close()


async def _serve_aio(store: str, kind: str) -> None:
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)

    async def reply(request: rifl_pb2.MetadataEntry, _: Any) -> rifl_pb2.MetadataEntry:
        return _reply(request)

    # A transaction of sqlite3's blocks: in the server's pool, as any plain function.
    behavior = _behavior(store, kind) if kind == "atomic" else reply
    dedup = _deduplicator(store, kind)
    server = grpc.aio.server(
        ThreadPoolExecutor(_THREADS), interceptors=[dedup.aio_interceptor()] if dedup else []
    )
    server.add_generic_rpc_handlers((_handlers(behavior),))
    if dedup:
        dedup.add_to_server(server)
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await stopped.wait()
    await server.stop(0.1)
    if dedup:
        await dedup.aclose()


def main() -> None:
    """Serve until SIGTERM; the first line printed is the port."""
    parser = argparse.ArgumentParser(prog="benchmarks.server")
    parser.add_argument("--flavor", choices=["sync", "aio"], default="sync")
    parser.add_argument("--store", default="none", help="none, or a store's URL")
    parser.add_argument("--kind", default="plain", help="how the method is declared")
    arguments = parser.parse_args()
    if arguments.flavor == "aio":
        asyncio.run(_serve_aio(arguments.store, arguments.kind))
    else:
        _serve_sync(arguments.store, arguments.kind)


if __name__ == "__main__":
    main()
