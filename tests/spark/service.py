"""A bank as a process, whose effects outlive its being killed: one line each in a file.

``python -m tests.spark.service --store URL --effects FILE``: prints ``listening
PORT``. With ``--atomic`` effects are rows of the store's own database.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

import rifl
from examples.bank.v1 import bank_pb2, bank_pb2_grpc


class Bank(bank_pb2_grpc.BankServicer):
    """Deposits are appended to a file; accounts named ``bad-…`` are refused.

    Until there is a file of the effects' name with ``.opened`` behind it.
    """

    def __init__(self, effects: Path, pause_s: float, database: Path | None) -> None:
        self._opened = Path(f"{effects}.opened")
        self._file = os.open(effects, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._pause_s = pause_s
        self._database = database
        self._local = threading.local()
        self._lock = threading.Lock()
        self._never = threading.Event()
        self._count = 0

    def Deposit(self, request: Any, context: Any) -> Any:  # noqa: N802 - the proto names it
        """Have the effect, once for each time this runs."""
        if request.account.startswith("bad-") and not self._opened.exists():
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"no account {request.account}")
        if self._pause_s:
            self._never.wait(self._pause_s)  # a handler that takes its time
        if self._database is not None:
            return self._atomic(request, context)
        os.write(self._file, f"{request.reference}\n".encode())
        with self._lock:
            self._count += 1
            return bank_pb2.Receipt(entry=self._count, balance_cents=request.cents)

    def _atomic(self, request: Any, context: Any) -> Any:
        connection = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = sqlite3.connect(
                self._database, timeout=30, isolation_level=None
            )
        reply = bank_pb2.Receipt(entry=1, balance_cents=request.cents)
        connection.execute("BEGIN IMMEDIATE")
        try:
            connection.execute("INSERT INTO effect VALUES (?)", (request.reference,))
            rifl.record(context, reply, connection)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        return reply


def _credentials(directory: Path) -> grpc.ServerCredentials:
    pair = (directory / "server.pem").read_bytes()
    roots = (directory / "ca.pem").read_bytes()
    return grpc.ssl_server_credentials([(pair, pair)], roots, require_client_auth=True)


def main() -> None:
    """Serve until standard input closes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", default="memory:")
    parser.add_argument("--effects", type=Path, required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--atomic", type=Path)
    parser.add_argument("--kind", default="plain")
    parser.add_argument("--no-reflection", action="store_true")
    parser.add_argument("--max-keys", type=int, default=100_000)
    parser.add_argument("--tls", type=Path, help="a directory with server.pem and ca.pem")
    parser.add_argument("--unrecorded", action="append", default=[], help="a status code")
    options = parser.parse_args()
    if options.atomic is not None:
        with contextlib.closing(sqlite3.connect(options.atomic)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("CREATE TABLE IF NOT EXISTS effect (reference TEXT)")
    deposit = rifl.MethodPolicy(
        kind=rifl.Kind("atomic" if options.atomic else options.kind),
        database=f"sqlite:///{options.atomic}" if options.atomic else None,
        unrecorded=frozenset(options.unrecorded),
    )
    dedup = rifl.Deduplicator(
        options.store,
        methods={"/bank.v1.Bank/Deposit": deposit, "/bank.v1.Bank/Balance": None},
        bounds=rifl.Bounds(max_keys=options.max_keys),
    )
    server = grpc.server(ThreadPoolExecutor(16), interceptors=[dedup.interceptor()])
    bank_pb2_grpc.add_BankServicer_to_server(
        Bank(options.effects, options.pause, options.atomic), server
    )
    dedup.add_to_server(server)
    if not options.no_reflection:
        dedup.add_reflection(server, "bank.v1.Bank")
    address = f"127.0.0.1:{options.port}"
    if options.tls is None:
        port = server.add_insecure_port(address)
    else:
        port = server.add_secure_port(address, _credentials(options.tls))
    server.start()
    print(f"listening {port}", flush=True)
    with contextlib.suppress(OSError):
        os.read(0, 1)
    server.stop(1).wait()
    dedup.close()


if __name__ == "__main__":
    main()
