"""The service that is called: ``python -m examples.pipeline.rides DATABASE``.

Its handler writes the ride, appends it as an event and records the answer in one transaction of the
SQLite file that holds all three. A repeated call gets the first answer and announces nothing.
"""

from __future__ import annotations

import contextlib
import sqlite3
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

import rifl
import sharedlog
from examples.pipeline.v1 import pipeline_pb2, pipeline_pb2_grpc

__all__ = ["BILLS", "RIDES", "create", "url"]

RIDES, BILLS = "rides", "bills"
_METHOD = "/pipeline.v1.Rides/End"
_SUBSTREAMS = 2
_INSERT = "INSERT INTO ride (id, rider, ended, cents) VALUES (?, ?, ?, ?)"


def url(database: Path) -> str:
    """Return the URL of store and log, which share a file."""
    return f"sqlite:///{database}"


def create(database: Path) -> None:
    """Make the log with its streams, and the table of rides, empty."""
    with sharedlog.create(url(database)) as log:
        for stream in (RIDES, BILLS):
            log.stream(stream, _SUBSTREAMS)
    with contextlib.closing(sqlite3.connect(database)) as connection, connection:
        connection.execute(
            "CREATE TABLE ride (number INTEGER PRIMARY KEY, id TEXT, rider TEXT, "
            "ended INTEGER, cents INTEGER)"
        )


class Rides(pipeline_pb2_grpc.RidesServicer):
    """Each call of ``End`` is a ride and an event."""

    def __init__(self, log: sharedlog.Log) -> None:
        self._log = log

    def End(
        self, request: pipeline_pb2.Ride, context: grpc.ServicerContext
    ) -> pipeline_pb2.Receipt:
        """Write the ride down, and tell of it."""
        receipt = pipeline_pb2.Receipt(cents=request.cents)
        row = (request.id, request.rider, request.ended.seconds, request.cents)
        with rifl.transaction(context) as connection:
            connection.execute(_INSERT, row)
            self._log.append_in(connection, RIDES, request, key=request.rider)
            rifl.record(context, receipt, connection)
        return receipt


def main(database: Path) -> None:
    """Serve until standard input closes."""
    with (
        sharedlog.open(url(database)) as log,
        rifl.Deduplicator(url(database), methods={_METHOD: "atomic"}) as dedup,
    ):
        server = grpc.server(ThreadPoolExecutor(8), interceptors=[dedup.interceptor()])
        pipeline_pb2_grpc.add_RidesServicer_to_server(Rides(log), server)
        dedup.add_to_server(server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        print(f"listening {port}", flush=True)
        sys.stdin.read()
        server.stop(grace=1).wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
