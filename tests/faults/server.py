"""A server process to be killed: ``python -m tests.faults.server FOLDER KIND ...``.

``--free`` holds no call, ``--term-s`` is the length of a lease, ``--hold-fsync PATH``
hands the kernel's notifications of fsyncs to whoever listens on that socket.

Every call says in its request where it is to be held: ``<kind>@<point>:<payload>``.
Points are reached in the thread (or task) of the call, never in the journal's, so
that the process can be killed with many calls held at once, each at its own point:

- ``before``: the call is claimed and its intent durable; the handler has not begun;
- ``effect``: the handler did its work, and for an atomic one committed it;
- ``uncommitted``: an atomic handler did its work and recorded, and has not committed;
- ``record``: the record is durable; nothing has been sent.

``held`` lines on standard output name each call that arrived at its point. Effects
are counted in a SQLite file (``effects.db``), or, for atomic methods, in the table
``effect`` of the database whose transaction the record is in.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import signal
import socket
import sqlite3
import sys
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

import rifl
from rifl.core._serving.client_table import Attempt
from rifl.core._serving.later import Later
from tests.faults import syscalls

__all__ = ["METHODS", "UNRECORDED", "URLS", "main"]

SERVICE = "faults.Service"
METHODS = {
    "plain": f"/{SERVICE}/Plain",
    "idempotent": f"/{SERVICE}/Idempotent",
    "atomic": f"/{SERVICE}/Atomic",
    "second": f"/{SERVICE}/Second",
    "third": f"/{SERVICE}/Third",
    "shared": f"/{SERVICE}/Shared",
}
# Whose handlers say that nothing happened, which is not recorded.
UNRECORDED = {
    "refusing": f"/{SERVICE}/Refusing",
    "undoing": f"/{SERVICE}/Undoing",
}
URLS = {"second": "second.db", "third": "third.db", "shared": "shared.db"}
_TERM_S = 60.0
_THREADS = 40


class Points:
    """Holds calls for ever at the point they asked for."""

    def __init__(self, free: bool) -> None:
        self._output = threading.Lock()
        self.free = free

    def say(self, line: str) -> None:
        """Print one line."""
        with self._output:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()

    def is_at(self, request: bytes, point: str) -> bool:
        """Whether this is where the call wants to be held; says so if it is."""
        what = request.decode()
        if self.free or what.partition("@")[2].partition(":")[0] != point:
            return False
        self.say(f"held {what}")
        return True

    def hold(self, request: bytes, point: str) -> None:
        """Hold the call's thread if this is its point."""
        if self.is_at(request, point):
            threading.Event().wait()


class Effects:
    """Effects, counted where they happen."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for name in ("effects.db", "store.db", *URLS.values()):
            connection = self.connect(name)
            connection.execute("CREATE TABLE IF NOT EXISTS effect (what)")
            connection.close()

    def connect(self, name: str) -> sqlite3.Connection:
        """Open one of the databases as a handler would."""
        return sqlite3.connect(self._folder / name, timeout=20)

    def happen(self, what: str) -> None:
        """An effect outside the store."""
        connection = self.connect("effects.db")
        with connection:
            connection.execute("INSERT INTO effect VALUES (?)", (what,))
        connection.close()


def handlers(points: Points, effects: Effects) -> dict[str, Any]:
    """The service's methods, as plain functions."""

    def act(request: bytes, context: Any) -> bytes:
        points.hold(request, "before")
        what = request.decode()
        effects.happen(what)
        if what.startswith("limit:"):
            # Full from here on, until somebody makes room.
            set_limit(int(what.split(":")[1]))
        points.hold(request, "effect")
        return b"done " + request

    def refuse(request: bytes, context: Any) -> bytes:
        if not points.free and not request.startswith(b"fresh"):
            return act(request, context)
        context.set_code(grpc.StatusCode.RESOURCE_EXHAUSTED)
        context.set_details("nothing happened")
        return b""

    def undo(request: bytes, context: Any) -> bytes:
        points.hold(request, "uncommitted")
        return refuse(b"fresh", context)

    def atomic(name: str) -> Any:
        def act_atomically(request: bytes, context: Any) -> bytes:
            points.hold(request, "before")
            connection = effects.connect(name)
            try:
                with connection:
                    connection.execute("INSERT INTO effect VALUES (?)", (request.decode(),))
                    rifl.record(context, b"done " + request, connection)
                    points.hold(request, "uncommitted")
            finally:
                connection.close()
            points.hold(request, "effect")
            return b"done " + request

        return act_atomically

    def act_in_company(request: bytes, context: Any) -> bytes:
        points.hold(request, "before")
        with rifl.transaction(context) as connection:
            connection.execute("INSERT INTO effect VALUES (?)", (request.decode(),))
            rifl.record(context, b"done " + request, connection)
            points.hold(request, "uncommitted")
        points.hold(request, "effect")
        return b"done " + request

    return {
        "Plain": act,
        "Idempotent": act,
        "Atomic": atomic("store.db"),
        "Second": atomic("second.db"),
        "Third": atomic("third.db"),
        "Shared": act_in_company,
        "Refusing": refuse,
        "Undoing": undo,
    }


class HeldAfter(Later):
    """What a store has yet to do, and then nothing more for ever."""

    def __init__(self, pending: Later | None, points: Points, request: bytes) -> None:
        self._pending = pending
        self._points = points
        self._request = request

    def wait(self) -> None:
        """Hold a thread."""
        if self._pending is not None:
            self._pending.wait()
        self._points.hold(self._request, "record")

    def __await__(self) -> Generator[Any, Any, None]:
        """Hold a task."""
        if self._pending is not None:
            yield from self._pending.__await__()
        if self._points.is_at(self._request, "record"):
            yield from asyncio.Event().wait().__await__()


def hold_after_records(store: Any, points: Points, requests: dict[Attempt, bytes]) -> None:
    """Have the thread or task of a call held once its record is durable."""
    adopt, finish = store.adopt, store.finish

    def held(pending: Later | None, attempt: Attempt) -> Later | None:
        request = requests.pop(attempt, b"")
        return HeldAfter(pending, points, request) if b"@record:" in request else pending

    store.adopt = lambda attempt, record: held(adopt(attempt, record), attempt)
    store.finish = lambda attempt, record: held(finish(attempt, record), attempt)


def set_limit(size: int) -> None:
    """Bound the size of files; below zero means no bound."""
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard if size < 0 else size, hard))


def control(points: Points) -> Any:
    """A method without deduplication that breaks and mends the machine under us."""

    def command(request: bytes, context: Any) -> bytes:
        name, _, value = request.decode().partition(" ")
        if name == "limit":
            set_limit(int(value))
        elif name == "fail-fsync":
            syscalls.fail_fsync()
        elif name != "ping":
            context.abort(grpc.StatusCode.UNIMPLEMENTED, name)
        return b"ok"

    return command


def _noting(function: Any, requests: dict[Attempt, bytes]) -> Any:
    def noted(request: bytes, context: Any) -> bytes:
        attempt = getattr(context, "rifl_attempt", None)
        if attempt is not None:
            requests[attempt] = request
        return function(request, context)

    return noted


def _in_thread(function: Any, pool: ThreadPoolExecutor) -> Any:
    async def coroutine(request: bytes, context: Any) -> bytes:
        return await asyncio.get_running_loop().run_in_executor(pool, function, request, context)

    return coroutine


def _generic(methods: dict[str, Any]) -> Any:
    return grpc.method_handlers_generic_handler(
        SERVICE,
        {name: grpc.unary_unary_rpc_method_handler(method) for name, method in methods.items()},
    )


def main(options: argparse.Namespace) -> None:
    """Serve until killed, or until SIGTERM."""
    folder, kind, term_s = options.folder, options.kind, options.term_s
    if options.hold_fsync is not None:
        # Before any other thread: they inherit it.
        hand_over(syscalls.notify_fsync(), options.hold_fsync)
    points, effects = Points(options.free), Effects(folder)
    requests: dict[Attempt, bytes] = {}
    declared: dict[str, Any] = {
        METHODS["plain"]: "plain",
        METHODS["idempotent"]: "idempotent",
        METHODS["atomic"]: "atomic",
        f"/{SERVICE}/Control": None,
    }
    for name, declaration in (("refusing", "idempotent"), ("undoing", "atomic")):
        declared[UNRECORDED[name]] = rifl.MethodPolicy(
            kind=declaration, unrecorded=["RESOURCE_EXHAUSTED"]
        )
    for name, file in URLS.items():
        declared[METHODS[name]] = rifl.MethodPolicy(
            kind=rifl.Kind.ATOMIC, database=f"sqlite:///{folder / file}"
        )
    dedup = rifl.Deduplicator(
        f"sqlite:///{folder / 'store.db'}",
        methods=declared,
        term_s=term_s,
        bounds=rifl.Bounds(max_waiters=4),
        keys_from="anyone",
    )
    hold_after_records(dedup._store, points, requests)
    methods = {
        name: _noting(function, requests) for name, function in handlers(points, effects).items()
    }
    methods["Control"] = control(points)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    if kind == "sync":
        server = grpc.server(ThreadPoolExecutor(_THREADS), interceptors=[dedup.interceptor()])
        server.add_generic_rpc_handlers((_generic(methods),))
        dedup.add_to_server(server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        points.say(f"port {port}")
        stop.wait()
        server.stop(1).wait()
        dedup.close()
    else:
        asyncio.run(_aio(dedup, methods, points, stop))


async def _aio(dedup: Any, methods: dict[str, Any], points: Points, stop: threading.Event) -> None:
    pool = ThreadPoolExecutor(_THREADS)
    server = grpc.aio.server(interceptors=[dedup.aio_interceptor()])
    server.add_generic_rpc_handlers(
        (_generic({name: _in_thread(method, pool) for name, method in methods.items()}),)
    )
    dedup.add_to_server(server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    points.say(f"port {port}")
    await asyncio.get_running_loop().run_in_executor(pool, stop.wait)
    await server.stop(1)
    await dedup.aclose()


def hand_over(listener: int, path: str) -> None:
    """Send a descriptor to whoever listens on a socket, and close our own."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        socket.send_fds(connection, [b"fsync"], [listener])
    os.close(listener)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("kind", choices=("sync", "aio"))
    parser.add_argument("--free", action="store_true")
    parser.add_argument("--term-s", type=float, default=_TERM_S)
    parser.add_argument("--hold-fsync")
    return parser.parse_args()


if __name__ == "__main__":
    main(_options())
    # Threads that are held would keep the interpreter from ending.
    os._exit(0)
