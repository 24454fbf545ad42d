"""A server process over a shared MariaDB, which suspends itself at a named point.

Arguments as of ``tests.stores.postgres.server_process``; it is a sync server.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import grpc
import pymysql

import rifl
from tests.stores.postgres import server_process as shared
from tests.stores.redis.server_process import handler

_EFFECT = "INSERT INTO effects VALUES (%s)"


def serve(dedup: Any, effects: str, at: Any, address: str) -> None:
    """The server."""
    where = urlsplit(effects)

    def connect() -> Any:
        return pymysql.connect(
            host=where.hostname, port=where.port, user="root", database="rifl", ssl_disabled=True
        )

    def effect(request: bytes, context: Any) -> bytes:
        at("before effect", request)
        with connect() as connection:
            connection.cursor().execute(_EFFECT, (request.decode(),))
            connection.commit()
        at("after effect", request)
        return b"%d" % os.getpid()

    def atomic(request: bytes, context: Any) -> bytes:
        at("before effect", request)
        reply = b"%d" % os.getpid()
        with connect() as connection:
            connection.cursor().execute(_EFFECT, (request.decode(),))
            rifl.record(context, reply, connection)
            at("after record queued", request)
            connection.commit()
        at("after effect", request)
        return reply

    server = grpc.server(ThreadPoolExecutor(16), interceptors=[dedup.interceptor()])
    server.add_generic_rpc_handlers((handler(effect, atomic),))
    dedup.add_to_server(server)
    print(server.add_insecure_port(address), flush=True)
    server.start()
    server.wait_for_termination()


if __name__ == "__main__":
    shared.serve_sync = serve
    shared.main(*sys.argv[1:])
