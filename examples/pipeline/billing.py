"""The service that is called in the end: ``python -m examples.pipeline.billing DATABASE``.

An unchanged handler: it writes down what it is called with. The player calls it, by way of rifl.
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
from examples.pipeline.rides import BILLS
from examples.pipeline.v1 import pipeline_pb2, pipeline_pb2_grpc

__all__ = ["METHOD", "charged", "create"]

METHOD = "/pipeline.v1.Billing/Charge"
_INSERT = "INSERT INTO charge (rider, hour, rides, cents) VALUES (?, ?, ?, ?)"


def create(database: Path) -> None:
    """Make the table of charges, empty."""
    with contextlib.closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute(
            "CREATE TABLE charge (number INTEGER PRIMARY KEY, rider TEXT, hour INTEGER, "
            "rides INTEGER, cents INTEGER)"
        )


def charged(database: Path) -> int:
    """Return how many charges there are so far."""
    with contextlib.closing(sqlite3.connect(database, timeout=30)) as connection:
        (count,) = connection.execute("SELECT count(*) FROM charge").fetchone()
    return int(count)


class Billing(pipeline_pb2_grpc.BillingServicer):
    """Each call of ``Charge`` is a charge."""

    def Charge(
        self, request: pipeline_pb2.Bill, context: grpc.ServicerContext
    ) -> pipeline_pb2.Charged:
        """Write the charge down."""
        row = (request.rider, request.hour.seconds, request.rides, request.cents)
        answer = pipeline_pb2.Charged()
        with rifl.transaction(context) as connection:
            connection.execute(_INSERT, row)
            rifl.record(context, answer, connection)
        return answer


def main(database: Path) -> None:
    """Serve until standard input closes."""
    with rifl.Deduplicator(f"sqlite:///{database}", methods={METHOD: "atomic"}) as dedup:
        server = grpc.server(ThreadPoolExecutor(8), interceptors=[dedup.interceptor()])
        pipeline_pb2_grpc.add_BillingServicer_to_server(Billing(), server)
        dedup.add_to_server(server)
        sharedlog.add_target_to_server(server, dedup, {BILLS: [METHOD]})
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        print(f"listening {port}", flush=True)
        sys.stdin.read()
        server.stop(grace=1).wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
