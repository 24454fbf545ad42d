"""One server process to be measured: plain, guarded by something else, or behind rifl."""

from __future__ import annotations

import argparse
import asyncio
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import grpc.aio

import rifl
from benchmarks.behaviors import behavior_of
from benchmarks.scale.filling import Filler
from rifl.v1 import rifl_pb2

__all__ = ["METHOD", "main"]

METHOD = "/bench.v1.Bench/Call"
_THREADS = 64


def _handlers(behavior: Any) -> Any:
    handler: Any = grpc.unary_unary_rpc_method_handler(
        behavior,
        request_deserializer=rifl_pb2.MetadataEntry.FromString,
        response_serializer=rifl_pb2.MetadataEntry.SerializeToString,
    )
    return grpc.method_handlers_generic_handler("bench.v1.Bench", {"Call": handler})


def _deduplicator(options: argparse.Namespace) -> rifl.Deduplicator | None:
    if options.store == "none":
        return None
    kind = "atomic" if options.kind == "shared" else options.kind
    if options.kind == "unclaimed":
        unclaimed = rifl.MethodPolicy(kind=rifl.Kind.IDEMPOTENT, claim="never")
        return rifl.Deduplicator(options.store, methods={METHOD: unclaimed})
    if not options.idle:
        return rifl.Deduplicator(options.store, default=kind)
    # Idle clients do not renew their leases here, and these must not end meanwhile.
    dedup = rifl.Deduplicator(options.store, default=kind, term_s=3600.0)
    Filler(dedup).idle_clients(options.idle)
    return dedup


def _serve_sync(options: argparse.Namespace) -> None:
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    dedup = _deduplicator(options)
    server = grpc.server(
        ThreadPoolExecutor(_THREADS), interceptors=[dedup.interceptor()] if dedup else []
    )
    server.add_generic_rpc_handlers((_handlers(behavior_of(options.kind, options.own, "sync")),))
    if dedup:
        dedup.add_to_server(server)
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    server.start()
    stopped.wait()
    server.stop(0.1).wait()
    if dedup:
        dedup.close()


async def _serve_aio(options: argparse.Namespace) -> None:
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    dedup = _deduplicator(options)
    server = grpc.aio.server(
        ThreadPoolExecutor(_THREADS), interceptors=[dedup.aio_interceptor()] if dedup else []
    )
    server.add_generic_rpc_handlers((_handlers(behavior_of(options.kind, options.own, "aio")),))
    if dedup:
        dedup.add_to_server(server)
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await stopped.wait()
    await server.stop(0.1)
    if dedup:
        await dedup.aclose()


def main() -> None:
    """Serve until SIGTERM; the first line printed is the port."""
    parser = argparse.ArgumentParser(prog="benchmarks.server")
    parser.add_argument("--flavor", choices=["sync", "aio"], default="sync")
    parser.add_argument("--store", default="none", help="rifl's: none, or a store's URL")
    parser.add_argument("--kind", default="plain", help="how the method is declared, or guarded")
    parser.add_argument("--own", default="", help="the URL of the handler's own database")
    parser.add_argument("--idle", type=int, default=0, help="so many idle clients it holds")
    options = parser.parse_args()
    if options.flavor == "aio":
        asyncio.run(_serve_aio(options))
    else:
        _serve_sync(options)


if __name__ == "__main__":
    main()
