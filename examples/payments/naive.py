"""A service as most write it: ``python -m examples.payments.naive DIRECTORY``.

Its accounts are in two databases. A payment is written to that of the account that pays, then to
that of the account that is paid. Who gets no answer asks again.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from examples.payments.rules import BANK, LARGE, Account, Payment, fee_of

__all__ = ["PAY", "create", "main"]

_SERVICE = "examples.payments.Naive"
PAY = f"/{_SERVICE}/Pay"
_HALVES = (0, 1)
_MOVE = "UPDATE account SET balance = balance + ? WHERE name = ?"
_LOOK = "SELECT overdraft, cap, balance FROM account WHERE name = ?"


def create(directory: Path, accounts: Sequence[Account]) -> None:
    """Make the two databases; each has an account for fees."""
    for half in _HALVES:
        with contextlib.closing(sqlite3.connect(_file(directory, half))) as connection, connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(
                "CREATE TABLE account (name TEXT PRIMARY KEY, opening INTEGER, overdraft INTEGER, "
                "cap INTEGER, balance INTEGER)"
            )
            connection.executemany(
                "INSERT INTO account VALUES (?, ?, ?, ?, ?)",
                [
                    (each.name, each.opening, each.overdraft, each.cap, each.opening)
                    for each in accounts
                    if each.name == BANK or _half(each.name) == half
                ],
            )


def main(directory: Path) -> None:
    """Serve until standard input closes."""
    lock = threading.Lock()
    halves = [
        sqlite3.connect(_file(directory, half), check_same_thread=False, timeout=30)
        for half in _HALVES
    ]

    def pay(request: bytes, _: Any) -> bytes:
        with lock:
            return json.dumps(_paid(halves, Payment(**json.loads(request)))).encode()

    server = grpc.server(ThreadPoolExecutor(8))
    handlers: dict[str, Any] = {"Pay": grpc.unary_unary_rpc_method_handler(pay)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(f"listening {port}", flush=True)
    sys.stdin.read()
    server.stop(grace=1).wait()


def _paid(halves: Sequence[sqlite3.Connection], payment: Payment) -> dict[str, Any]:
    pays, paid = halves[_half(payment.source)], halves[_half(payment.destination)]
    cents, fee = payment.cents, fee_of(payment.cents)
    overdraft, _, balance = pays.execute(_LOOK, (payment.source,)).fetchone()
    _, cap, other = paid.execute(_LOOK, (payment.destination,)).fetchone()
    if cents + fee > balance + overdraft or (cents > LARGE and other + cents > cap):
        return {"approved": False, "fee": 0}
    pays.execute(_MOVE, (-cents - fee, payment.source))
    pays.execute(_MOVE, (fee, BANK))
    pays.commit()
    paid.execute(_MOVE, (cents, payment.destination))
    paid.commit()
    return {"approved": True, "fee": fee}


def _half(account: str) -> int:
    return int(account.split()[-1]) % 2


def _file(directory: Path, half: int) -> Path:
    return directory / f"naive-{half}.db"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
