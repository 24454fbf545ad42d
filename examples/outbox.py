"""Effect, answer and event once each, wherever the server is killed.

A handler writes an order, appends its event to a shared log and records its answer, in one
transaction of the database that holds all three. The server process is killed at every point of
that; started again, it answers the retry. Run it: ``python -m examples.outbox``, over PostgreSQL
with ``--database postgresql://HOST/DATABASE``, and with some of the points only by their names.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import signal
import sqlite3
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

import rifl
import sharedlog
from chaos.faulty_path import FaultyPath
from examples.checking import expect
from examples.server_process import ServerProcess

METHOD = "/examples.Shop/Place"
# Where the server dies, once each.
POINTS = ("before", "effect", "append", "record", "commit", "reply")


class Database:
    """Where store, log and orders are: a SQLite file, or a PostgreSQL database."""

    def __init__(self, url: str, token: str) -> None:
        """``token``: sets this run apart from others in the same database."""
        self.url = url
        self._shared = url.startswith("postgresql")
        self.store = f"{url}?schema=rifl_{token}" if self._shared else url
        self.log = f"{url}?log={token}" if self._shared else url

    def connect(self) -> Any:
        """Return a connection of the caller's own."""
        if self._shared:
            import psycopg

            return psycopg.connect(self.url)
        return sqlite3.connect(self.url.removeprefix("sqlite:///"))

    def create(self) -> None:
        """Make the table of orders, empty."""
        with contextlib.closing(self.connect()) as connection, connection:
            connection.execute("DROP TABLE IF EXISTS sale")
            connection.execute("CREATE TABLE sale (name TEXT)")

    def place(self, connection: Any, name: str) -> None:
        """The effect of a call."""
        insert = "INSERT INTO sale VALUES (%s)" if self._shared else "INSERT INTO sale VALUES (?)"
        connection.execute(insert, (name,))

    def placed(self) -> list[str]:
        """Return the orders that are there."""
        with contextlib.closing(self.connect()) as connection:
            return sorted(name for (name,) in connection.execute("SELECT name FROM sale"))

    @contextlib.contextmanager
    def transaction(self, context: Any) -> Iterator[Any]:
        """The call's: of a SQLite store, which calls share, or on a connection of its own."""
        if not self._shared:
            with rifl.transaction(context) as connection:
                yield connection
            return
        with self.connect() as connection, rifl.transaction(context, connection):
            yield connection


def serve(database: Database, died: Path) -> None:
    """The server process; ``died`` has a directory for each point at which it did."""

    def at(request: bytes, point: str) -> None:
        if request.decode() == point and not (died / point).exists():
            (died / point).mkdir()
            os.kill(os.getpid(), signal.SIGKILL)

    def place(request: bytes, context: grpc.ServicerContext) -> bytes:
        at(request, "before")
        with database.transaction(context) as connection:
            database.place(connection, request.decode())
            at(request, "effect")
            log.append_in(connection, "orders", request, key=request)
            at(request, "append")
            rifl.record(context, b"placed " + request, connection)
            at(request, "record")
            # Some time while the transaction commits, or behind it.
            threading.Thread(target=at, args=(request, "commit")).start()
        at(request, "reply")
        return b"placed " + request

    with (
        sharedlog.open(database.log) as log,
        rifl.Deduplicator(database.store, methods={METHOD: "atomic"}) as dedup,
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


def main(database: Database, died: Path, token: str, points: list[str]) -> None:
    """Place an order for each point, with the server killed there, and read what is there."""
    database.create()
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(sharedlog.create(database.log))
        log.stream("orders", substreams=1)
        path = stack.enter_context(FaultyPath())
        process = stack.enter_context(
            ServerProcess(
                "examples.outbox", "--serve", str(died), token, "--database", database.url
            )
        )
        path.lead_to(process.start())
        channel = stack.enter_context(rifl.connect(path.target))
        call = channel.unary_unary(METHOD)
        for point in points:
            answer = call.future(point.encode(), timeout=60)
            process.wait_until_dead()
            path.lead_to(process.start())
            expect(
                f"killed at {point!r}, and answered", answer.result(), b"placed " + point.encode()
            )
        events = sorted(message.text for message in log.read("orders", 0))
        expect("orders", database.placed(), sorted(points))
        expect("events", events, sorted(points))


def run() -> None:
    """Read the arguments."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--database", metavar="URL")
    parser.add_argument("--serve", nargs=2, metavar=("DIED", "TOKEN"), help="as the server")
    parser.add_argument("points", nargs="*", metavar="POINT", help=", ".join(POINTS))
    arguments = parser.parse_args()
    if arguments.serve:
        died, token = arguments.serve
        serve(Database(arguments.database, token), Path(died))
        return
    with tempfile.TemporaryDirectory() as directory:
        token = secrets.token_hex(6)
        url = arguments.database or f"sqlite:///{directory}/shop.db"
        main(Database(url, token), Path(directory), token, arguments.points or list(POINTS))


if __name__ == "__main__":
    run()
