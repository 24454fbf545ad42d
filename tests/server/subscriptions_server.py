"""A service whose clients subscribe: one item goes to whoever is subscribed and still there.

``python -m tests.server.subscriptions_server ADDRESS sync|aio DEFAULT``; says on its standard
output when a subscription begins and ends. As a Microsoft durabletask sidecar hands work out:
a handler that does not notice that its subscriber left takes items for nobody.
"""

from __future__ import annotations

import asyncio
import os
import queue
import sys
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import grpc.aio

import rifl

THREADS = 8
_items: queue.Queue[bytes] = queue.Queue()


def _say(what: str) -> None:
    # In one piece: many threads say something.
    os.write(1, what.encode() + b"\n")


def put(request: bytes, context: Any) -> bytes:
    """Hand an item to a subscriber."""
    _items.put(request)
    return b""


def watch(request: bytes, context: Any) -> Iterator[bytes]:
    """Yield items as long as the subscriber is there."""
    _say("begins")
    try:
        while context.is_active():
            try:
                item = _items.get(timeout=0.02)
            except queue.Empty:
                continue
            if not context.is_active():
                _items.put(item)
                break
            yield item
    finally:
        _say("ends")


async def aput(request: bytes, context: Any) -> bytes:
    """Do the same."""
    return put(request, context)


async def awatch(request: bytes, context: Any) -> AsyncIterator[bytes]:
    """Do the same; the task of an abandoned subscription is cancelled."""
    _say("begins")
    try:
        while True:
            try:
                yield _items.get_nowait()
            except queue.Empty:
                await asyncio.sleep(0.02)
    finally:
        _say("ends")


def _add(server: Any, dedup: Any, aio: bool, address: str) -> None:
    handlers: Any = {
        "Put": grpc.unary_unary_rpc_method_handler(aput if aio else put),
        "Watch": grpc.unary_stream_rpc_method_handler(awatch if aio else watch),
    }
    generic = grpc.method_handlers_generic_handler("test.Items", handlers)
    server.add_generic_rpc_handlers((generic,))
    dedup.add_to_server(server)
    server.add_insecure_port(address)


async def _aio(dedup: Any, address: str) -> None:
    server = grpc.aio.server(interceptors=[dedup.aio_interceptor()])
    _add(server, dedup, True, address)
    await server.start()
    _say("serves")
    await server.wait_for_termination()


def main(address: str, kind: str, methods: str) -> None:
    """Serve until killed."""
    dedup = rifl.Deduplicator("memory:", methods={methods: "plain"})
    if kind == "aio":
        asyncio.run(_aio(dedup, address))
        return
    server = grpc.server(ThreadPoolExecutor(THREADS), interceptors=[dedup.interceptor()])
    _add(server, dedup, False, address)
    server.start()
    _say("serves")
    server.wait_for_termination()


if __name__ == "__main__":
    main(*sys.argv[1:])
