"""A bank over one PostgreSQL, as kubernetes.yaml starts it: health, metrics, and an orderly end.

BANK_STORE is the database's URL; the books are in the same one. SIGTERM lets calls end. Run it:
``BANK_STORE=postgresql://... python -m examples.deploying.server``.
"""

from __future__ import annotations

import argparse
import os
import sys
from concurrent.futures import ThreadPoolExecutor

import grpc
from prometheus_client import start_http_server
from psycopg_pool import ConnectionPool

import rifl
from examples.bank.v1 import bank_pb2, bank_pb2_grpc
from rifl.metrics import PrometheusObserver

_THREADS = 16
# Replicas that start at once make the books one after the other.
_BOOKS = """
SELECT pg_advisory_xact_lock(1651469931);
CREATE TABLE IF NOT EXISTS deposit (
    entry bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    reference text NOT NULL,
    account text NOT NULL,
    cents bigint NOT NULL
)
"""


class Bank(bank_pb2_grpc.BankServicer):
    """Keeps the books in the store's database, so that effect and record are one commit."""

    def __init__(self, books: ConnectionPool) -> None:
        self._books = books
        with books.connection() as connection:
            connection.execute(_BOOKS)

    def Deposit(
        self, request: bank_pb2.DepositRequest, context: grpc.ServicerContext
    ) -> bank_pb2.Receipt:
        """Pay in, exactly once."""
        with self._books.connection() as connection, rifl.transaction(context, connection):
            row = connection.execute(
                "INSERT INTO deposit (reference, account, cents) VALUES (%s, %s, %s) "
                "RETURNING entry",
                (request.reference, request.account, request.cents),
            ).fetchone()
            receipt = bank_pb2.Receipt(entry=row[0] if row else 0)
            rifl.record(context, receipt, connection)
        return receipt


def main() -> int:
    """Serve until a signal; return 0 if every call has ended."""
    parser = argparse.ArgumentParser(prog="python -m examples.deploying.server")
    parser.add_argument("--listen", default="127.0.0.1:50051", metavar="HOST:PORT")
    parser.add_argument("--metrics", default="127.0.0.1:9464", metavar="HOST:PORT")
    parser.add_argument("--drain-s", type=float, default=30.0, help="how long calls have to end")
    options = parser.parse_args()
    store = os.environ["BANK_STORE"]
    host, _, port = options.metrics.rpartition(":")
    with (
        ConnectionPool(store, min_size=1, max_size=_THREADS, open=True) as books,
        rifl.Deduplicator(
            store, methods={"/bank.v1.Bank/Deposit": "atomic"}, observer=PrometheusObserver()
        ) as dedup,
    ):
        server = grpc.server(
            ThreadPoolExecutor(_THREADS),
            options=rifl.SERVER_OPTIONS,
            interceptors=[dedup.interceptor()],
        )
        bank_pb2_grpc.add_BankServicer_to_server(Bank(books), server)
        dedup.add_to_server(server)
        dedup.add_health(server, "bank.v1.Bank")
        # Spark's sink asks it what a deposit has.
        dedup.add_reflection(server)
        server.add_insecure_port(options.listen)
        server.start()
        start_http_server(int(port), addr=host)
        return rifl.serve_until_signal(server, dedup, grace=options.drain_s)


if __name__ == "__main__":
    sys.exit(main())
