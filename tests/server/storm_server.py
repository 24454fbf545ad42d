"""A server process with a store of its own and its leases elsewhere.

Arguments: SQLite file of store and effects, the lease server's address, a port.
"""

from __future__ import annotations

import sqlite3
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import grpc

import rifl
from tests.helpers.waiting import until

METHOD = "/s/Do"


def main(path: str, lease_server: str, port: str) -> None:
    """Serve until killed; says so when it does."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS effects (name TEXT)")
        connection.commit()

    def handler(request: bytes, context: Any) -> bytes:
        with closing(sqlite3.connect(path, timeout=30)) as connection:
            connection.execute("INSERT INTO effects VALUES (?)", (request.decode(),))
            rifl.record(context, request, connection)
            connection.commit()
        return request

    def opened() -> rifl.Deduplicator | None:
        try:
            return rifl.Deduplicator(
                f"sqlite:///{path}", methods={METHOD: "atomic"}, lease_server=lease_server
            )
        except rifl.stores.StoreUnreachable:
            # It knows clients, and the lease server cannot be asked about them just now.
            return None

    dedup = until(opened, "the lease server is there", 60)
    server = grpc.server(ThreadPoolExecutor(8), interceptors=[dedup.interceptor()])
    method: Any = grpc.unary_unary_rpc_method_handler(handler)
    handlers = grpc.method_handlers_generic_handler("s", {"Do": method})
    server.add_generic_rpc_handlers((handlers,))
    dedup.add_to_server(server)
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    print("ready", flush=True)
    server.wait_for_termination()


if __name__ == "__main__":
    main(*sys.argv[1:])
