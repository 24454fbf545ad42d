"""The replicated service that is measured: a map of keys to values, and who serves it."""

from __future__ import annotations

import argparse
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool

import curp
import rifl
from curp.v1 import options_pb2
from rifl.v1 import rifl_pb2

__all__ = ["PUT", "Map", "declare", "handlers", "main"]

_SERVICE = "bench.v1.Keyed"
PUT = f"/{_SERVICE}/Put"
_THREADS = 80


def declare() -> None:
    """Describe the service, once a process."""
    file = descriptor_pb2.FileDescriptorProto(
        name="bench/v1/keyed.proto",
        package="bench.v1",
        syntax="proto3",
        dependency=["rifl/v1/rifl.proto", "curp/v1/options.proto"],
    )
    service = file.service.add(name="Keyed")
    conflict_key: Any = options_pb2.conflict_key
    method = service.method.add(
        name="Put", input_type=".rifl.v1.MetadataEntry", output_type=".rifl.v1.MetadataEntry"
    )
    method.options.Extensions[conflict_key].append("key")
    descriptor_pool.Default().AddSerializedFile(file.SerializeToString())


class Map:
    """What is replicated: a value for each key; putting one answers with the one before."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}

    def put(self, request: rifl_pb2.MetadataEntry, context: Any) -> rifl_pb2.MetadataEntry:
        """Put a value."""
        before = self._values.get(request.key, b"")
        self._values[request.key] = request.value
        return rifl_pb2.MetadataEntry(key=request.key, value=before)

    def reset(self) -> None:
        """Begin anew."""
        self._values = {}

    def snapshot(self) -> bytes:
        """Return all of it."""
        return json.dumps({key: value.hex() for key, value in self._values.items()}).encode()

    def restore(self, snapshot: bytes) -> None:
        """Take all of it from a snapshot."""
        self._values = {key: bytes.fromhex(text) for key, text in json.loads(snapshot).items()}


def handlers(values: Map) -> dict[str, Any]:
    """Return the methods of the service."""
    handler = grpc.unary_unary_rpc_method_handler(
        values.put,
        rifl_pb2.MetadataEntry.FromString,
        rifl_pb2.MetadataEntry.SerializeToString,
    )
    return {"Put": handler}


def main() -> int:
    """Serve until standard input closes: a replica, or without ``--log`` rifl alone."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.keyed", description=__doc__)
    parser.add_argument("--listen", required=True)
    parser.add_argument("--name", default="r1")
    parser.add_argument("--log", default="")
    parser.add_argument("--witness", action="append", default=[])
    options = parser.parse_args()
    declare()
    values = Map()
    guard: Any
    if options.log:
        guard = curp.Replica(
            options.log,
            name=options.name,
            address=options.listen,
            witnesses=options.witness,
            hooks=curp.StateHooks(reset=values.reset),
        )
    else:
        guard = rifl.Deduplicator("memory:")
    with guard:
        server = grpc.server(
            ThreadPoolExecutor(_THREADS),
            interceptors=[guard.interceptor()],
            options=[("grpc.so_reuseport", 0)],
        )
        to = guard.registrar(server) if options.log else server
        to.add_registered_method_handlers(_SERVICE, handlers(values))
        to.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(_SERVICE, handlers(values)),)
        )
        guard.add_to_server(server)
        port = server.add_insecure_port(options.listen)
        server.start()
        if options.log:
            guard.start()
        print(f"127.0.0.1:{port}", flush=True)
        os.read(0, 1)
    server.stop(None).wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
