"""Ledger of a consumer's calls: ``python -m chaos.run.ledger DATABASE PORT``; each is a row.

Its method is ``atomic``. Until standard input closes.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

import rifl
from chaos.run.consumed import NOTE

_THREADS = 8


def _note(request: bytes, context: grpc.ServicerContext) -> bytes:
    with rifl.transaction(context) as connection:
        row = connection.execute("INSERT INTO noted (message) VALUES (?)", (request.decode(),))
        answer = str(row.lastrowid).encode()
        rifl.record(context, answer, connection)
    return answer


def main(database: str, port: str) -> None:
    """Serve until standard input closes."""
    with rifl.Deduplicator(f"sqlite:///{database}", methods={NOTE: "atomic"}) as dedup:
        server = grpc.server(ThreadPoolExecutor(_THREADS), interceptors=[dedup.interceptor()])
        _, service, method = NOTE.split("/")
        handlers: Any = {method: grpc.unary_unary_rpc_method_handler(_note)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        dedup.add_to_server(server)
        server.add_insecure_port(f"127.0.0.1:{port}")
        server.start()
        print("serves", flush=True)
        os.read(0, 1)
        server.stop(None).wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
