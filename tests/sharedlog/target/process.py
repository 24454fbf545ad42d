"""A target's process: ``python -m tests.sharedlog.target.process URL EFFECTS HANGING [own]``.

It prints its address, and hangs with the message that it is told to, in the middle of its handler.
``own``: atomic handlers over PostgreSQL have a connection of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import sys
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import psycopg

import rifl
import rifl.aio
import sharedlog
from tests.helpers.servers import generic
from tests.sharedlog.target.shop import ATOMIC, IDEMPOTENT, METHODS, PLAIN

__all__ = ["main"]


async def serve(url: str, effects: Path, hanging: bytes, *, own: bool) -> None:
    """Serve until the process ends."""

    async def hang(request: bytes) -> None:
        if request == hanging:
            sys.stdout.write(f"running {request.decode()}\n")
            sys.stdout.flush()
            await asyncio.Event().wait()

    async def plain(request: bytes, context: Any) -> bytes:
        with effects.open("ab") as file:
            file.write(request + b"\n")
        await hang(request)
        return b"done"

    async def atomic(request: bytes, context: Any) -> bytes:
        if url.startswith("sqlite"):
            async with rifl.aio.transaction(context) as connection:
                connection.execute("INSERT INTO effect VALUES (?)", (int(request),))
                await hang(request)
                rifl.record(context, b"done", connection)
            return b"done"
        async with contextlib.AsyncExitStack() as stack:
            mine = None
            if own:
                connecting = await psycopg.AsyncConnection.connect(url.partition("?")[0])
                mine = await stack.enter_async_context(connecting)
            connection = await stack.enter_async_context(rifl.aio.transaction(context, mine))
            await connection.execute(
                "INSERT INTO target_effect (name, lsn) VALUES (%s, %s)",
                (effects.name, int(request)),
            )
            await hang(request)
            await rifl.aio.record(context, b"done", connection)
        return b"done"

    async with rifl.Deduplicator(url, methods=METHODS) as dedup:
        server = grpc.aio.server(interceptors=[dedup.aio_interceptor()])
        methods = {"Atomic": atomic, "Idempotent": plain, "Plain": plain}
        server.add_generic_rpc_handlers((generic("shop.S", methods),))
        dedup.add_to_server(server)
        streams = {"orders": [ATOMIC, IDEMPOTENT, PLAIN]}
        sharedlog.add_target_to_server(server, dedup, streams)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        sys.stdout.write(f"127.0.0.1:{port}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


def main() -> None:
    """Serve as the command line says."""
    url, effects, hanging = sys.argv[1:4]
    if url.startswith("sqlite"):
        with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS effect (lsn INTEGER)")
        connection.close()
    asyncio.run(serve(url, Path(effects), hanging.encode(), own="own" in sys.argv[4:]))


if __name__ == "__main__":
    main()
