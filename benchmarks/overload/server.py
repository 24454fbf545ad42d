"""A server with so many places for its work, bare or behind rifl; noted is what it does.

Prints its port, and serves until SIGTERM.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

import rifl
import rifl.aio
from benchmarks.overload.effects import AioEffects, Effects, aio_effects, effects
from benchmarks.overload.notes import Notes
from rifl.v1 import rifl_pb2

__all__ = ["METHOD", "PLACES", "WORK_S", "main"]

METHOD = "/bench.v1.Bench/Call"
PLACES = 8
WORK_S = 0.04
# Threads of a pool behind ``max_running``: those that wait for a place have one, too.
_WAITING_THREADS = 400
Request = rifl_pb2.MetadataEntry


def _deduplicator(options: argparse.Namespace) -> rifl.Deduplicator | None:
    if options.side in ("bare", "retries"):
        return None
    more: dict[str, Any] = {"max_running": PLACES} if options.side == "places" else {}
    policy = rifl.MethodPolicy(kind=options.kind, **more)
    return rifl.Deduplicator(options.store, methods={METHOD: policy})


class _Arrivals(grpc.ServerInterceptor):
    """Notes each attempt, on gRPC's own thread: before it waits for one of the pool."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes

    def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
        """Note it."""
        if details.method == METHOD:
            self._notes.arrived(time.monotonic())
        return continuation(details)


class _AioArrivals(grpc.aio.ServerInterceptor):
    """The same on an event loop."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes

    async def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
        """Note it."""
        if details.method == METHOD:
            self._notes.arrived(time.monotonic())
        return await continuation(details)


def _handlers(behavior: Callable[[Any, Any], Any]) -> Any:
    handler: Any = grpc.unary_unary_rpc_method_handler(
        behavior,
        request_deserializer=Request.FromString,
        response_serializer=Request.SerializeToString,
    )
    return grpc.method_handlers_generic_handler("bench.v1.Bench", {"Call": handler})


def _behavior(notes: Notes, effect: Effects) -> Callable[[Any, Any], Any]:
    def call(request: Any, context: Any) -> Any:
        notes.began(time.monotonic(), request.key)
        time.sleep(WORK_S)
        effect(request, context)
        now = time.monotonic()
        notes.ended(now, request.key, late=now > float(request.value))
        return request

    return call


def _aio_behavior(notes: Notes, effect: AioEffects) -> Callable[[Any, Any], Any]:
    places = asyncio.Semaphore(PLACES)

    async def call(request: Any, context: Any) -> Any:
        # What a connection pool of so many connections does.
        async with places:
            notes.began(time.monotonic(), request.key)
            await asyncio.sleep(WORK_S)
            await effect(request, context)
            now = time.monotonic()
            notes.ended(now, request.key, late=now > float(request.value))
        return request

    return call


def _serve(options: argparse.Namespace, notes: Notes) -> None:
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    dedup = _deduplicator(options)
    threads = _WAITING_THREADS if options.side == "places" else PLACES
    own = [dedup.interceptor()] if dedup else []
    server = grpc.server(ThreadPoolExecutor(threads), interceptors=[_Arrivals(notes), *own])
    effect = effects(options.own, options.kind, recorded=dedup is not None)
    server.add_generic_rpc_handlers((_handlers(_behavior(notes, effect)),))
    if dedup:
        dedup.add_to_server(server)
    print(server.add_insecure_port(f"127.0.0.1:{options.port}"), flush=True)
    server.start()
    stopped.wait()
    server.stop(0.1).wait()
    if dedup:
        dedup.close()


async def _serve_aio(options: argparse.Namespace, notes: Notes) -> None:
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    dedup = _deduplicator(options)
    own = [dedup.aio_interceptor()] if dedup else []
    server = grpc.aio.server(interceptors=[_AioArrivals(notes), *own])
    effect = await aio_effects(options.own, options.kind, recorded=dedup is not None)
    server.add_generic_rpc_handlers((_handlers(_aio_behavior(notes, effect)),))
    if dedup:
        dedup.add_to_server(server)
    print(server.add_insecure_port(f"127.0.0.1:{options.port}"), flush=True)
    await server.start()
    await stopped.wait()
    await server.stop(0.1)
    if dedup:
        await dedup.aclose()


def main() -> None:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser(prog="benchmarks.overload.server")
    parser.add_argument("--flavor", choices=["sync", "aio"], required=True)
    parser.add_argument("--side", choices=["bare", "retries", "rifl", "places"], required=True)
    parser.add_argument("--kind", choices=["plain", "idempotent", "atomic"], required=True)
    parser.add_argument("--store", required=True)
    parser.add_argument("--own", default="", help="the URL of the handler's own database")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--notes", type=Path, required=True)
    options = parser.parse_args()
    notes = Notes(options.notes)
    if options.flavor == "aio":
        asyncio.run(_serve_aio(options, notes))
    else:
        _serve(options, notes)


if __name__ == "__main__":
    main()
