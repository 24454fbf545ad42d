"""A wrapped server that dies in the middle of calls: URL, port, and a directory for its notes.

A request is ``name:when``. The first process that is asked to die for a name does so,
``before`` or ``after`` the effect; after that the name is served. ``effects`` has a line an
effect, ``arrivals`` one an arrival: the name, the SDK's number of the attempt, what a proxy
says of its own, and what gRPC would say of its own.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

import rifl
from rifl.v1 import rifl_pb2

SERVICE = "proxied.Effects"
_METHODS: dict[str, Any] = {"Plain": "plain", "Idempotent": "idempotent", "Atomic": "atomic"}


class Handlers:
    """Each call's effect is a line of a file, or a row beside its record."""

    def __init__(self, url: str, notes: Path) -> None:
        self._notes = notes
        self.methods = dict(_METHODS)
        if not url.startswith("sqlite:"):
            del self.methods["Atomic"]
            return
        with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as database:
            database.execute("CREATE TABLE IF NOT EXISTS effect (name TEXT)")
            database.commit()

    def handler(self) -> Any:
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {name: grpc.unary_unary_rpc_method_handler(self._of(name)) for name in self.methods},
        )

    def _of(self, method: str) -> Callable[[bytes, Any], bytes]:
        return self._atomic if method == "Atomic" else self._plain

    def _plain(self, request: bytes, context: Any) -> bytes:
        name, when = request.decode().split(":")
        self._note("arrivals", " ".join([name, *_attempt(context.invocation_metadata())]))
        self._die(name, when == "before")
        self._note("effects", name)
        self._die(name, when == "after")
        return name.encode()

    def _atomic(self, request: bytes, context: Any) -> bytes:
        name, when = request.decode().split(":")
        with rifl.transaction(context) as connection:
            self._die(name, when == "before")
            connection.execute("INSERT INTO effect VALUES (?)", (name,))
            rifl.record(context, name.encode(), connection)
            self._die(name, when == "after")
        # The answer is lost after the commit.
        self._die(name, when == "committed")
        return name.encode()

    def _die(self, name: str, wanted: bool) -> None:
        if wanted:
            with contextlib.suppress(FileExistsError):
                os.close(os.open(self._notes / f"died.{name}", os.O_CREAT | os.O_EXCL))
                os.kill(os.getpid(), signal.SIGKILL)

    def _note(self, file: str, line: str) -> None:
        with (self._notes / file).open("a") as notes:
            notes.write(line + "\n")


def _attempt(metadata: Any) -> tuple[str, str, str]:
    told = dict(metadata)
    header = rifl_pb2.CallHeader.FromString(told["rifl-bin"])
    proxys = str(told.get("x-envoy-attempt-count", "-"))
    return str(header.attempt or 1), proxys, str(told.get("grpc-previous-rpc-attempts", "-"))


def main() -> None:
    """Serve until killed."""
    url, port, notes = sys.argv[1:]
    handlers = Handlers(url, Path(notes))
    dedup = rifl.Deduplicator(
        url, methods={f"/{SERVICE}/{name}": kind for name, kind in handlers.methods.items()}
    )
    server = grpc.server(
        ThreadPoolExecutor(16),
        interceptors=[dedup.interceptor()],
        options=[("grpc.so_reuseport", 0)],
    )
    server.add_generic_rpc_handlers((handlers.handler(),))
    dedup.add_to_server(server)
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    server.wait_for_termination()


if __name__ == "__main__":
    main()
