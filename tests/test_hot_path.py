"""The cost of one call in the interpreter, counted: no clock, no noise (performance.md).

Real servers and channels, in this process; counted are the opcodes that run in
modules of the product, the ground floor's among them, on every thread, for a call after the
first ones. The bounds leave no room for another helper function on every call. They are those of
Python 3.11; a later version has other opcodes for the same work, by a share that was counted.
"""

from __future__ import annotations

import gc
import sqlite3
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import grpc
import grpc.aio
import psycopg
import pytest

import rifl
import rifl.aio
from _rifl_ground.sqlite import guard
from chaos.postgres_server import PostgresServer
from chaos.redis_server import RedisServer
from rifl import MethodPolicy
from rifl._stores.sqlite.address import path_of

METHOD = "/p.S/M"
CALLS = 64
# The first renewal comes at any time in a third of it: hardly ever while calls are counted.
_TERM_S = 3600.0
# Of 3.11's opcodes; what is newer than these is held to the last one's.
_SHARES = {(3, 11): 1.0, (3, 12): 0.94, (3, 13): 0.93, (3, 14): 1.01}
SHARE = _SHARES.get(sys.version_info[:2], _SHARES[max(_SHARES)])
_ROOT = str(Path(rifl.__file__).parent.parent)
_OURS = ("rifl", "lease_server", "_rifl_ground")


class Opcodes:
    """Counts opcodes of our modules while it is ``counting``, by function."""

    def __init__(self, ours: tuple[str, ...]) -> None:
        self._ours = ours
        self.counting = False
        self.by_function: Counter[str] = Counter()

    def trace(self, frame: FrameType, event: str, _: Any) -> Any:
        """Be what ``sys.settrace`` takes."""
        if event == "call":
            if not frame.f_code.co_filename.startswith(self._ours):
                return None
            frame.f_trace_opcodes = True
            frame.f_trace_lines = False
        elif event == "opcode" and self.counting:
            self.by_function[frame.f_code.co_qualname] += 1
        return self.trace


@contextmanager
def traced(*packages: str) -> Iterator[Opcodes]:
    """Trace this thread and all that start from now on; of these packages, else of rifl's."""
    opcodes = Opcodes(tuple(f"{_ROOT}/{each}/" for each in packages or _OURS))
    before = sys.gettrace()
    threading.settrace(opcodes.trace)
    sys.settrace(opcodes.trace)
    try:
        yield opcodes
    finally:
        sys.settrace(before)
        threading.settrace(before)


def handlers(behavior: Callable[[bytes, Any], Any]) -> Any:
    handler: Any = grpc.unary_unary_rpc_method_handler(behavior)
    return grpc.method_handlers_generic_handler("p.S", {"M": handler})


def per_call(opcodes: Opcodes) -> float:
    return sum(opcodes.by_function.values()) / CALLS


def told(opcodes: Opcodes) -> str:
    dearest = opcodes.by_function.most_common(12)
    return ", ".join(f"{name} {count / CALLS:.0f}" for name, count in dearest)


@contextmanager
def address(store: str, directory: Path) -> Iterator[str]:
    """Tell where a store is, a server of its own behind it if it needs one."""
    if store == "postgres":
        database = PostgresServer(fsync="off")
        try:
            yield database.url(durability="warn", beat_s=30, dead_after_s=120)
        finally:
            database.stop()
    elif store == "redis":
        server = RedisServer(directory, appendfsync="no")
        try:
            # No beat comes in between.
            yield server.url(durability="warn", beat_s=30, dead_after_s=120)
        finally:
            server.stop()
    else:
        yield store if store == "memory:" else f"sqlite:///{directory / 's.db'}"


def echo(_: str) -> Callable[[bytes, Any], bytes]:
    """Return a handler that does nothing; the others are given where its store is."""
    return lambda request, _: request


def in_sqlite(url: str) -> Callable[[bytes, Any], bytes]:
    """Return a handler whose own transaction has the record."""
    with sqlite3.connect(path_of(url)) as first:
        first.execute("PRAGMA journal_mode=WAL")
        first.execute("CREATE TABLE effect (value BLOB)")
    # The server has one thread.
    connection = sqlite3.connect(path_of(url), check_same_thread=False)

    def act(request: bytes, context: Any) -> bytes:
        with connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT INTO effect VALUES (?)", (request,))
            rifl.record(context, request, connection)
        return request

    return act


def in_a_shared_block(url: str) -> Callable[[bytes, Any], bytes]:
    """Return a handler whose effects and record are in a transaction that calls share."""
    with sqlite3.connect(path_of(url)) as first:
        first.execute("CREATE TABLE effect (value BLOB)")

    def act(request: bytes, context: Any) -> bytes:
        with rifl.transaction(context) as connection:
            connection.execute("INSERT INTO effect VALUES (?)", (request,))
            rifl.record(context, request, connection)
        return request

    return act


def in_postgres(url: str) -> Callable[[bytes, Any], bytes]:
    """Return a handler whose record travels with its transaction's commit."""
    with psycopg.connect(url.partition("?")[0]) as first:
        first.execute("CREATE TABLE effect (value bytea)")
    connection = psycopg.connect(url.partition("?")[0])

    def act(request: bytes, context: Any) -> bytes:
        with rifl.transaction(context, connection):
            connection.execute("INSERT INTO effect VALUES (%s)", (request,))
            rifl.record(context, request, connection)
        return request

    return act


@pytest.mark.parametrize(
    ("store", "policy", "handler", "most"),
    [
        ("memory:", MethodPolicy(), echo, 1465),
        ("sqlite", MethodPolicy(kind="idempotent"), echo, 2700),
        ("sqlite", MethodPolicy(), echo, 3745),
        ("sqlite", MethodPolicy(kind="atomic"), in_sqlite, 2795),
        ("sqlite", MethodPolicy(kind="atomic"), in_a_shared_block, 4015),
        ("postgres", MethodPolicy(kind="atomic"), in_postgres, 2630),
        ("redis", MethodPolicy(kind="idempotent"), echo, 3175),
        ("redis", MethodPolicy(kind="idempotent", claim="never"), echo, 2300),
    ],
    ids=[
        "memory",
        "sqlite idempotent",
        "sqlite plain",
        "sqlite atomic",
        "sqlite atomic, shared",
        "postgres atomic",
        "redis idempotent",
        "redis never claimed",
    ],
)
def test_a_call_on_a_sync_server_stays_cheap(
    store: str,
    policy: MethodPolicy,
    handler: Callable[[str], Callable[[bytes, Any], bytes]],
    most: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Client and server together stay below a number of opcodes a call."""
    # As a second after the file was made, when its names need no look of their own.
    monkeypatch.setattr(guard, "_STEP_NS", 0)
    with (
        address(store, tmp_path) as url,
        traced() as opcodes,
        rifl.Deduplicator(url, default=policy, term_s=_TERM_S) as dedup,
    ):
        server = grpc.server(ThreadPoolExecutor(1), interceptors=[dedup.interceptor()])
        server.add_generic_rpc_handlers((handlers(handler(url)),))
        dedup.add_to_server(server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        with rifl.connect(f"127.0.0.1:{port}") as channel:
            call = channel.unary_unary(METHOD)
            for _ in range(CALLS):
                call(b"request", timeout=30)
            opcodes.counting = True
            for _ in range(CALLS):
                call(b"request", timeout=30)
            opcodes.counting = False
        server.stop(0).wait()
    assert per_call(opcodes) < most * SHARE, told(opcodes)


@pytest.mark.parametrize("form", ["unary_unary", "stream_unary", "unary_stream"])
def test_a_call_on_a_sync_server_leaves_nothing_to_the_collector(form: str) -> None:
    """No cycle holds what a call was made of: gRPC's own call is freed when it ends."""
    made: list[weakref.ref[Any]] = []

    def note(context: Any, answer: Any) -> Any:
        made.append(weakref.ref(context._inner))
        return answer

    behaviors: dict[str, Callable[[Any, Any], Any]] = {
        "unary_unary": lambda request, context: note(context, request),
        "stream_unary": lambda requests, context: note(context, b"".join(requests)),
        "unary_stream": lambda request, context: note(context, iter((request,))),
    }
    handler = getattr(grpc, f"{form}_rpc_method_handler")(behaviors[form])
    with rifl.Deduplicator("memory:", methods={METHOD: "plain"}) as dedup:
        server = grpc.server(ThreadPoolExecutor(1), interceptors=[dedup.interceptor()])
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("p.S", {"M": handler}),)
        )
        dedup.add_to_server(server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        with rifl.connect(f"127.0.0.1:{port}") as channel:
            call = getattr(channel, form)(METHOD)
            gc.disable()
            try:
                for _ in range(CALLS):
                    answer = call(
                        iter((b"request",)) if form == "stream_unary" else b"request", timeout=30
                    )
                    assert (b"".join(answer) if form == "unary_stream" else answer) == b"request"
                left = sum(context() is not None for context in made)
            finally:
                gc.enable()
        server.stop(0).wait()
    assert len(made) == CALLS
    # The server may be at the end of the last ones still.
    assert left < CALLS / 4


@pytest.mark.parametrize(("kind", "most"), [("plain", 1865)])
async def test_a_call_on_an_aio_server_stays_cheap(kind: Any, most: int) -> None:
    """Client and server together stay below a number of opcodes a call."""

    async def behavior(request: bytes, _: Any) -> bytes:
        return request

    with traced() as opcodes:
        dedup = rifl.Deduplicator("memory:", default=kind, term_s=_TERM_S)
        server = grpc.aio.server(interceptors=[dedup.aio_interceptor()])
        server.add_generic_rpc_handlers((handlers(behavior),))
        dedup.add_to_server(server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with rifl.aio.connect(f"127.0.0.1:{port}") as channel:
            call = channel.unary_unary(METHOD)
            for _ in range(CALLS):
                await call(b"request", timeout=30)
            opcodes.counting = True
            for _ in range(CALLS):
                await call(b"request", timeout=30)
            opcodes.counting = False
        await server.stop(0)
        await dedup.aclose()
    assert per_call(opcodes) < most * SHARE, told(opcodes)
