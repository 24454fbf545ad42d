"""A service of raw bytes with every kind of call, sync and aio, and its callers."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import grpc

from rifl import testing

__all__ = ["STREAMS", "Kinds", "serving", "trailers", "whole"]

# Deduplicated only where they are declared.
STREAMS = {f"/t.Kinds/{name}": "plain" for name in ("Collect", "First", "Count")}


class Kinds:
    """Counts effects; each kind of call is one method."""

    def __init__(self) -> None:
        self.effects: list[bytes] = []
        self.gate = threading.Event()
        self.gate.set()

    def unary(self, request: bytes, context: Any) -> bytes:
        self.effects.append(request)
        return b"%d" % len(self.effects)

    def collect(self, requests: Iterator[bytes], context: Any) -> bytes:
        self.effects.append(b"|".join(requests))
        return b"%d" % len(self.effects)

    def first(self, requests: Iterator[bytes], context: Any) -> bytes:
        self.effects.append(next(requests))
        return b"%d" % len(self.effects)

    def count(self, request: bytes, context: Any) -> Iterator[bytes]:
        self.effects.append(request)
        run = len(self.effects)
        for at in range(int(request)):
            self.gate.wait(60)
            yield b"%d.%d" % (run, at)

    def echo(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        for request in requests:
            self.effects.append(request)
            yield request

    async def aunary(self, request: bytes, context: Any) -> bytes:
        return self.unary(request, context)

    async def acollect(self, requests: AsyncIterator[bytes], context: Any) -> bytes:
        got = [request async for request in requests]
        return self.collect(iter(got), context)

    async def afirst(self, requests: AsyncIterator[bytes], context: Any) -> bytes:
        return self.first(iter([await context.read()]), context)

    async def acount(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        self.effects.append(request)
        run = len(self.effects)
        for at in range(int(request)):
            while not self.gate.is_set():
                await asyncio.sleep(0.005)
            yield b"%d.%d" % (run, at)

    async def aecho(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for request in requests:
            self.effects.append(request)
            yield request

    def adder(self, kind: str) -> Callable[[Any], None]:
        a = "a" if kind == "aio" else ""
        handlers: dict[str, Any] = {
            "Unary": grpc.unary_unary_rpc_method_handler(getattr(self, a + "unary")),
            "Collect": grpc.stream_unary_rpc_method_handler(getattr(self, a + "collect")),
            "First": grpc.stream_unary_rpc_method_handler(getattr(self, a + "first")),
            "Count": grpc.unary_stream_rpc_method_handler(getattr(self, a + "count")),
            "Echo": grpc.stream_stream_rpc_method_handler(getattr(self, a + "echo")),
        }
        generic = grpc.method_handlers_generic_handler("t.Kinds", handlers)
        return lambda server: server.add_generic_rpc_handlers((generic,))


class _Loop:
    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    def run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(60)
        self.loop.close()


@contextlib.contextmanager
def serving(kind: str, kinds: Kinds, **options: Any) -> Iterator[Any]:
    """Serve on a sync server or, in a thread of its own, on an aio one; streams declared."""
    options["methods"] = {**STREAMS, **options.get("methods", {})}
    if kind == "sync":
        with testing.serve(kinds.adder(kind), **options) as service:
            yield service
        return
    loop = _Loop()
    manager = testing.aio_serve(kinds.adder(kind), **options)
    service = loop.run(manager.__aenter__())
    try:
        yield service
    finally:
        loop.run(manager.__aexit__(None, None, None))
        loop.close()


def trailers(call: Any) -> dict[str, Any]:
    """Return a finished call's trailing metadata."""
    return dict(call.trailing_metadata() or ())


def whole(messages: Any) -> Iterator[bytes]:
    """Yield a stream's messages, and the one that ends it."""
    count = 0
    for message in messages:
        count += 1
        yield message
    yield b"\7rifl-end" + count.to_bytes(8, "big")
