"""A bank whose effects outlive its being killed: ``python -m chaos.run.service``.

Every payment is a row of the ledger, an SQLite file that several servers may share,
with the time at which it was made. Prints a line when it listens, and serves until its
standard input closes.

``--worker`` forks a process that serves there by what this one made before, as a
preforking server does that makes its ``Deduplicator`` at module level.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sqlite3
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import structlog

import rifl
from examples.bank.v1 import bank_pb2, bank_pb2_grpc

_THREADS = 24
_BUSY_S = 30.0
_SCHEMA = """
CREATE TABLE IF NOT EXISTS effect (
    entry INTEGER PRIMARY KEY AUTOINCREMENT,
    call INTEGER NOT NULL,
    account TEXT NOT NULL,
    version INTEGER NOT NULL,
    total INTEGER NOT NULL,
    at REAL NOT NULL,
    receipt BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS of_account ON effect (account, version);
"""


class LedgerBank(bank_pb2_grpc.BankServicer):
    """Each payment is one transaction of the ledger; a balance is its newest row."""

    def __init__(self, ledger: Path, *, recorded: bool, receipt_bytes: int) -> None:
        self._lock = threading.Lock()
        self._recorded = recorded
        self._receipt_bytes = receipt_bytes
        self._ledger = sqlite3.connect(
            ledger, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
        )
        self._ledger.execute("PRAGMA journal_mode = WAL")
        self._ledger.execute("PRAGMA synchronous = FULL")
        self._ledger.executescript(_SCHEMA)

    def close(self) -> None:
        """Let the file go."""
        self._ledger.close()

    def Deposit(
        self, request: bank_pb2.DepositRequest, context: grpc.ServicerContext
    ) -> bank_pb2.Receipt:
        """Pay in, as often as this is run."""
        with self._transaction() as transaction:
            version, total = self._account(request.account)
            reply = bank_pb2.Receipt(entry=version + 1, balance_cents=total + request.cents)
            transaction.execute(
                "INSERT INTO effect (call, account, version, total, at, receipt) "
                "VALUES (?, ?, ?, ?, ?, zeroblob(?))",
                (
                    int(request.reference),
                    request.account,
                    reply.entry,
                    reply.balance_cents,
                    time.monotonic(),
                    self._receipt_bytes,
                ),
            )
            if self._recorded:
                rifl.record(context, reply, transaction)
        return reply

    def Balance(
        self, request: bank_pb2.BalanceRequest, context: grpc.ServicerContext
    ) -> bank_pb2.BalanceReply:
        """Tell what an account holds."""
        del context
        with self._lock:
            return bank_pb2.BalanceReply(balance_cents=self._account(request.account)[1])

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._ledger.execute("BEGIN IMMEDIATE")
            try:
                yield self._ledger
                self._ledger.execute("COMMIT")
            except BaseException:
                if self._ledger.in_transaction:
                    self._ledger.execute("ROLLBACK")
                raise

    def _account(self, name: str) -> tuple[int, int]:
        row = self._ledger.execute(
            "SELECT version, total FROM effect WHERE account = ? ORDER BY version DESC LIMIT 1",
            (name,),
        ).fetchone()
        return (int(row[0]), int(row[1])) if row else (0, 0)


def main() -> int:
    """Serve; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m chaos.run.service", description=__doc__)
    parser.add_argument("--listen", required=True, metavar="HOST:PORT")
    parser.add_argument("--ledger", type=Path, required=True)
    parser.add_argument("--store", required=True, help="of completion records")
    parser.add_argument(
        "--method", choices=("plain", "idempotent", "atomic", "grpc"), default="plain"
    )
    parser.add_argument("--term", type=float, default=60.0, help="seconds of a client's lease")
    parser.add_argument("--receipt-bytes", type=int, default=0, help="kept with each payment")
    parser.add_argument("--worker", action="append", default=[], metavar="HOST:PORT")
    options = parser.parse_args()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    # So that those who open it at one time find it made; a connection survives no fork.
    _bank(options).close()
    with contextlib.ExitStack() as stack:
        interceptors = []
        if options.method != "grpc":
            dedup = stack.enter_context(
                rifl.Deduplicator(
                    options.store,
                    term_s=options.term,
                    keys_from="anyone" if options.worker else "authenticated",
                    methods={
                        "/bank.v1.Bank/Deposit": options.method,
                        "/bank.v1.Bank/Balance": "idempotent",
                    },
                )
            )
            interceptors.append(dedup.interceptor())
        for address in options.worker:
            if os.fork() == 0:
                _serve(_server(options, interceptors), address)
                # What the parent opened is the parent's to close.
                os._exit(0)
        server = _server(options, interceptors)
        if options.method != "grpc":
            dedup.add_to_server(server)
            dedup.add_reflection(server, "bank.v1.Bank")
        _serve(server, options.listen, f"listening {options.listen}")
        for _ in options.worker:
            os.wait()
    return 0


def _bank(options: argparse.Namespace) -> LedgerBank:
    return LedgerBank(
        options.ledger,
        recorded=options.method == "atomic",
        receipt_bytes=options.receipt_bytes,
    )


def _server(options: argparse.Namespace, interceptors: list[Any]) -> grpc.Server:
    server = grpc.server(
        ThreadPoolExecutor(_THREADS),
        interceptors=interceptors,
        # A server that comes back takes its own port, and no process shares it.
        options=[("grpc.so_reuseport", 0)],
    )
    bank_pb2_grpc.add_BankServicer_to_server(_bank(options), server)
    return server


def _serve(server: grpc.Server, address: str, said: str = "") -> None:
    """Serve until standard input closes."""
    server.add_insecure_port(address)
    server.start()
    if said:
        print(said, flush=True)
    os.read(0, 1)
    server.stop(1).wait()


if __name__ == "__main__":
    sys.exit(main())
