"""Real gRPC servers in the test's process, sync and aio, on a port of their own."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import grpc.aio

__all__ = ["KINDS", "LoopThread", "Served", "generic", "serve"]

# sync: grpc.server; aio: grpc.aio with coroutines; threads: grpc.aio with plain functions.
KINDS = ("sync", "aio", "threads")


class LoopThread:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Any], timeout_s: float = 30.0) -> Any:
        """Run a coroutine to its end."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout_s)

    def close(self) -> None:
        """Stop the loop and close it."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(60)
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()


class Served:
    """A running server: its address, and how to stop it."""

    def __init__(self, address: str, stop: Callable[[float | None], None], loop: Any) -> None:
        self.address = address
        self.stop = stop
        self.loop: LoopThread | None = loop


def generic(service: str, methods: dict[str, Callable[..., Any]], codec: Any = None) -> Any:
    """Return a handler of unary methods: raw bytes, or ``codec`` messages."""
    decode = None if codec is None else codec.FromString
    encode = None if codec is None else codec.SerializeToString
    return grpc.method_handlers_generic_handler(
        service,
        {
            name: grpc.unary_unary_rpc_method_handler(method, decode, encode)
            for name, method in methods.items()
        },
    )


@contextlib.contextmanager
def serve(
    kind: str,
    handlers: Sequence[Any] = (),
    *,
    interceptors: Sequence[Any] = (),
    dedup: Any = None,
    threads: int = 8,
    add: Callable[[Any], None] | None = None,
    compression: Any = None,
) -> Iterator[Served]:
    """Serve on 127.0.0.1, ``dedup`` included if there is one, and stop afterwards.

    ``interceptors`` stand as given; where ``dedup`` is among them it stands for its
    interceptor, else its interceptor is the only one added, in front.
    """
    chain = list(interceptors)
    if dedup is not None and dedup not in chain:
        chain.insert(0, dedup)
    if kind == "sync":
        chain = [item.interceptor() if item is dedup else item for item in chain]
        yield from _sync(handlers, chain, dedup, threads, add, compression)
    else:
        chain = [item.aio_interceptor() if item is dedup else item for item in chain]
        yield from _aio(handlers, chain, dedup, threads, add, compression)


def _sync(
    handlers: Sequence[Any], chain: list[Any], dedup: Any, threads: int, add: Any, compression: Any
) -> Iterator[Served]:
    pool = ThreadPoolExecutor(threads)
    server = grpc.server(pool, interceptors=chain, compression=compression)
    server.add_generic_rpc_handlers(tuple(handlers))
    if dedup is not None:
        dedup.add_to_server(server)
    if add is not None:
        add(server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield Served(f"127.0.0.1:{port}", lambda grace: server.stop(grace).wait(), None)
    finally:
        server.stop(None).wait()
        pool.shutdown(wait=False)


def _aio(
    handlers: Sequence[Any], chain: list[Any], dedup: Any, threads: int, add: Any, compression: Any
) -> Iterator[Served]:
    loop = LoopThread()

    async def start() -> tuple[Any, int]:
        server = grpc.aio.server(
            ThreadPoolExecutor(threads), interceptors=chain, compression=compression
        )
        server.add_generic_rpc_handlers(tuple(handlers))
        if dedup is not None:
            dedup.add_to_server(server)
        if add is not None:
            add(server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        return server, port

    server, port = loop.run(start())
    try:
        yield Served(f"127.0.0.1:{port}", lambda grace: loop.run(server.stop(grace)), loop)
    finally:
        loop.run(server.stop(None))
        loop.close()
