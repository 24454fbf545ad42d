"""A target in a process of its own: what its handler did is in its SQLite database.

python -m tests.sharedlog.player.target_process KIND DIRECTORY PORT [METHOD_KIND STORE]

Of another kind than atomic, over a store of its own, it is in a file.
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


def noted(directory):
    """What a handler did that is not atomic: substream and body, in order."""
    with contextlib.suppress(FileNotFoundError):
        lines = (Path(directory) / "noted").read_text().splitlines()
        return [(int(at), body) for at, body in (each.split(" ", 1) for each in lines)]
    return []


def noting(directory):
    """Make handlers that note what they did, on either kind of server."""
    file = (Path(directory) / "noted").open("ab", buffering=0)

    def note(request, context):
        file.write(b"%d %s\n" % (sharedlog.delivery(context).substream, request))
        return b""

    async def note_async(request, context):
        return note(request, context)

    return note, note_async


def _dedup(store, method_kind):
    return rifl.Deduplicator(store, methods={METHOD: method_kind})


def _added(server, dedup, handler, port):
    server.add_generic_rpc_handlers((generic("shop.v1.Inventory", {"Reserve": handler}),))
    dedup.add_to_server(server)
    sharedlog.add_target_to_server(server, dedup, {"orders": [METHOD]})
    server.add_insecure_port(f"127.0.0.1:{port}")


def serve_sync(handler, store, method_kind, port):
    """Serve until standard input is closed."""
    with _dedup(store, method_kind) as dedup:
        server = grpc.server(ThreadPoolExecutor(8), interceptors=[dedup.interceptor()])
        _added(server, dedup, handler, port)
        server.start()
        print("serves", flush=True)
        sys.stdin.read()
        server.stop(None).wait()


async def serve_aio(handler, store, method_kind, port):
    """The same on a loop."""
    async with _dedup(store, method_kind) as dedup:
        server = grpc.aio.server(interceptors=[dedup.aio_interceptor()])
        _added(server, dedup, handler, port)
        await server.start()
        print("serves", flush=True)
        await asyncio.to_thread(sys.stdin.read)
        await server.stop(None)


if __name__ == "__main__":
    kind, where, at, *more = sys.argv[1:]
    method, url = more or ("atomic", f"sqlite:///{database(where)}")
    sync, coroutine = noting(where) if more else (reserve, reserve_async)
    if kind == "sync":
        serve_sync(sync, url, method, at)
    else:
        asyncio.run(serve_aio(coroutine, url, method, at))
