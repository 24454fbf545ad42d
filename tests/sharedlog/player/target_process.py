"""A target in a process of its own: what its handler did is in its SQLite database.

python -m tests.sharedlog.player.target_process KIND DIRECTORY PORT
"""

import asyncio
import contextlib
import sqlite3
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import grpc.aio

import rifl
import rifl.aio
import sharedlog
from tests.helpers.servers import generic

METHOD = "/shop.v1.Inventory/Reserve"


def database(directory):
    """Where its effects are, beside its records."""
    return Path(directory) / "target.db"


def effects(directory):
    """What was done: substream and body, in order."""
    with contextlib.closing(sqlite3.connect(database(directory))) as connection:
        return connection.execute("SELECT substream, body FROM effect ORDER BY rowid").fetchall()


def prepare(directory):
    """Make its table."""
    with contextlib.closing(sqlite3.connect(database(directory))) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE effect (substream INTEGER, body TEXT)")
        connection.commit()


def _insert(connection, context, request):
    found = sharedlog.delivery(context)
    row = (found.substream, request.decode())
    connection.execute("INSERT INTO effect VALUES (?, ?)", row)


def reserve(request, context):
    """Note the call, in one transaction with its record and the index."""
    with rifl.transaction(context) as connection:
        _insert(connection, context, request)
        rifl.record(context, b"", connection)
    return b""


async def reserve_async(request, context):
    """The same on a loop."""
    async with rifl.aio.transaction(context) as connection:
        _insert(connection, context, request)
        rifl.record(context, b"", connection)
    return b""


def _dedup(directory):
    return rifl.Deduplicator(f"sqlite:///{database(directory)}", methods={METHOD: "atomic"})


def _added(server, dedup, handler, port):
    server.add_generic_rpc_handlers((generic("shop.v1.Inventory", {"Reserve": handler}),))
    dedup.add_to_server(server)
    sharedlog.add_target_to_server(server, dedup, {"orders": [METHOD]})
    server.add_insecure_port(f"127.0.0.1:{port}")


def _sync(directory, port):
    with _dedup(directory) as dedup:
        server = grpc.server(ThreadPoolExecutor(8), interceptors=[dedup.interceptor()])
        _added(server, dedup, reserve, port)
        server.start()
        print("serves", flush=True)
        sys.stdin.read()
        server.stop(None).wait()


async def _aio(directory, port):
    with _dedup(directory) as dedup:
        server = grpc.aio.server(interceptors=[dedup.aio_interceptor()])
        _added(server, dedup, reserve_async, port)
        await server.start()
        print("serves", flush=True)
        await asyncio.to_thread(sys.stdin.read)
        await server.stop(None)


if __name__ == "__main__":
    kind, where, at = sys.argv[1:]
    if kind == "sync":
        _sync(where, at)
    else:
        asyncio.run(_aio(where, at))
