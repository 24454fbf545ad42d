"""The bank's books: accounts, and a statement with one line for each payment made."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

from examples.bank.v1 import bank_pb2

__all__ = ["InsufficientFunds", "Ledger", "UnknownAccount", "create_books", "deposit", "transfer"]

_SCHEMA = """
CREATE TABLE IF NOT EXISTS account (
    name TEXT PRIMARY KEY,
    cents INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS statement (
    entry INTEGER PRIMARY KEY AUTOINCREMENT,
    reference TEXT NOT NULL,
    from_account TEXT,
    to_account TEXT NOT NULL,
    cents INTEGER NOT NULL
);
"""


class UnknownAccount(LookupError):
    """No such account."""


class InsufficientFunds(ValueError):
    """The account holds less than the withdrawal."""


def create_books(path: Path, opening_cents: Iterable[tuple[str, int]]) -> None:
    """Open these accounts, once."""
    with contextlib.closing(_open(path)) as connection, connection:
        connection.executescript(_SCHEMA)
        connection.executemany("INSERT OR IGNORE INTO account VALUES (?, ?)", opening_cents)


class Ledger:
    """The books, shared by the server's threads: one transaction at a time."""

    def __init__(self, path: Path) -> None:
        self._connection = _open(path)
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All of it or nothing; committed when the block ends without an error."""
        with self._lock, self._connection:
            yield self._connection

    def balance(self, account: str) -> int:
        """In cents; raises UnknownAccount."""
        with self.transaction() as transaction:
            return _balance(transaction, account)

    def statement(self, account: str, after: int, limit: int) -> list[str]:
        """References of payments into an account, in order."""
        with self.transaction() as transaction:
            rows = transaction.execute(
                "SELECT reference FROM statement WHERE to_account = ? ORDER BY entry "
                "LIMIT ? OFFSET ?",
                (account, limit, after),
            ).fetchall()
        return [reference for (reference,) in rows]

    def close(self) -> None:
        """Close the database."""
        with self._lock:
            self._connection.close()


def deposit(transaction: sqlite3.Connection, request: bank_pb2.DepositRequest) -> bank_pb2.Receipt:
    """Pay in, and put it on the statement; raises UnknownAccount."""
    _pay_in(transaction, request.account, request.cents)
    return _enter(transaction, request.reference, None, request.account, request.cents)


def transfer(
    transaction: sqlite3.Connection, request: bank_pb2.TransferRequest
) -> bank_pb2.Receipt:
    """Move money between accounts; raises UnknownAccount or InsufficientFunds."""
    taken = transaction.execute(
        "UPDATE account SET cents = cents - :cents WHERE name = :name AND cents >= :cents",
        {"cents": request.cents, "name": request.from_account},
    )
    if taken.rowcount == 0:
        _balance(transaction, request.from_account)
        raise InsufficientFunds(request.from_account)
    _pay_in(transaction, request.to_account, request.cents)
    return _enter(
        transaction, request.reference, request.from_account, request.to_account, request.cents
    )


def _open(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=30, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    return connection


def _balance(transaction: sqlite3.Connection, account: str) -> int:
    row = transaction.execute("SELECT cents FROM account WHERE name = ?", (account,)).fetchone()
    if row is None:
        raise UnknownAccount(account)
    return int(row[0])


def _pay_in(transaction: sqlite3.Connection, account: str, cents: int) -> None:
    paid = transaction.execute(
        "UPDATE account SET cents = cents + ? WHERE name = ?", (cents, account)
    )
    if paid.rowcount == 0:
        raise UnknownAccount(account)


def _enter(
    transaction: sqlite3.Connection,
    reference: str,
    from_account: str | None,
    to_account: str,
    cents: int,
) -> bank_pb2.Receipt:
    entered = transaction.execute(
        "INSERT INTO statement (reference, from_account, to_account, cents) VALUES (?, ?, ?, ?)",
        (reference, from_account, to_account, cents),
    )
    return bank_pb2.Receipt(
        entry=entered.lastrowid, balance_cents=_balance(transaction, to_account)
    )
