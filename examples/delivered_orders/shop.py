"""The order service: ``python -m examples.delivered_orders.shop DATABASE``.

Its handler writes the order, appends the event and records the answer in one transaction of the
SQLite file that holds all three. A repeated call gets the first answer and announces nothing.
"""

from __future__ import annotations

import contextlib
import sqlite3
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

import rifl
import sharedlog

__all__ = ["METHOD", "STREAM", "SUBSTREAMS", "create", "orders", "url"]

METHOD = "/examples.Shop/Place"
STREAM, SUBSTREAMS = "orders", 8


def url(database: Path) -> str:
    """Return the URL of store and log, which share a file."""
    return f"sqlite:///{database}"


def create(database: Path) -> None:
    """Make the log and the table of orders, empty."""
    with sharedlog.create(url(database)) as log:
        log.stream(STREAM, SUBSTREAMS)
    with contextlib.closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("CREATE TABLE sale (number INTEGER PRIMARY KEY, name TEXT)")


def orders(database: Path) -> list[str]:
    """Return what was ordered, in order."""
    with contextlib.closing(sqlite3.connect(database, timeout=30)) as connection:
        return [name for (name,) in connection.execute("SELECT name FROM sale ORDER BY number")]


def main(database: Path) -> None:
    """Serve until standard input closes."""

    def place(request: bytes, context: grpc.ServicerContext) -> bytes:
        answer = b"placed " + request
        with rifl.transaction(context) as connection:
            connection.execute("INSERT INTO sale (name) VALUES (?)", (request.decode(),))
            log.append_in(connection, STREAM, request, key=request)
            rifl.record(context, answer, connection)
        return answer

    with (
        sharedlog.open(url(database)) as log,
        rifl.Deduplicator(url(database), methods={METHOD: "atomic"}) as dedup,
    ):
        server = grpc.server(ThreadPoolExecutor(8), interceptors=[dedup.interceptor()])
        handler: Any = grpc.unary_unary_rpc_method_handler(place)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("examples.Shop", {"Place": handler}),)
        )
        dedup.add_to_server(server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        print(f"listening {port}", flush=True)
        sys.stdin.read()
        server.stop(grace=1).wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
