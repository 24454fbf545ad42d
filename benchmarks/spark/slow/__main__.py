"""A service whose handler waits, as one does that asks another service.

``python -m benchmarks.spark.slow`` prints ``listening PORT`` and serves until its standard input
closes.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import grpc.aio

import rifl
from examples.flights.v1 import flights_pb2, flights_pb2_grpc

_METHOD = "/flights.v1.Books/Post"


class _Books(flights_pb2_grpc.BooksServicer):
    """Books entries, each after a while."""

    def __init__(self, wait_s: float) -> None:
        self._wait_s = wait_s
        self._never = threading.Event()

    def Post(  # noqa: N802 - the proto names it
        self, request: flights_pb2.Flight, context: Any
    ) -> flights_pb2.Entry:
        """Wait in a thread."""
        self._never.wait(self._wait_s)
        return flights_pb2.Entry(entry=1)


class _AioBooks(flights_pb2_grpc.BooksServicer):
    def __init__(self, wait_s: float) -> None:
        self._wait_s = wait_s

    async def Post(  # noqa: N802 - the proto names it
        self, request: flights_pb2.Flight, context: Any
    ) -> flights_pb2.Entry:
        """Wait on the event loop."""
        await asyncio.sleep(self._wait_s)
        return flights_pb2.Entry(entry=1)


def main() -> int:
    """Serve, by threads or on an event loop."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark.slow")
    parser.add_argument("--store", required=True)
    parser.add_argument("--wait-ms", type=float, required=True)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--aio", action="store_true")
    parser.add_argument("--batch-concurrency", type=int, default=1)
    options = parser.parse_args()
    wait_s = options.wait_ms / 1000
    policy = rifl.MethodPolicy(batch_concurrency=options.batch_concurrency)
    with rifl.Deduplicator(options.store, methods={_METHOD: policy}) as dedup:
        if options.aio:
            asyncio.run(_aio(dedup, wait_s))
            return 0
        pool = ThreadPoolExecutor(options.threads)
        server = grpc.server(pool, interceptors=[dedup.interceptor()])
        flights_pb2_grpc.add_BooksServicer_to_server(_Books(wait_s), server)
        dedup.add_to_server(server)
        dedup.add_reflection(server, "flights.v1.Books")
        _listening(server)
        server.start()
        sys.stdin.read()
        server.stop(2).wait()
    return 0


async def _aio(dedup: rifl.Deduplicator, wait_s: float) -> None:
    server = grpc.aio.server(interceptors=[dedup.aio_interceptor()])
    flights_pb2_grpc.add_BooksServicer_to_server(_AioBooks(wait_s), server)
    dedup.add_to_server(server)
    dedup.add_reflection(server, "flights.v1.Books")
    _listening(server)
    await server.start()
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(2)


def _listening(server: Any) -> None:
    print(f"listening {server.add_insecure_port('127.0.0.1:0')}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
