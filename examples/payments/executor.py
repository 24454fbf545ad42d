"""An executor: ``python -m examples.payments.executor LOG DATABASE``.

Decides about the payments of its accounts, one after the other: what it writes down, and what it
tells other accounts, views and the service that waits, is one transaction for each message.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import threading
import time
from datetime import timedelta
from typing import Any

import sharedlog
from examples.payments.rules import ACCOUNTS, BANK, LARGE, decisions_of, fee_of, publishing

__all__ = ["NAME", "SCHEMA", "consumer_of", "main"]

NAME = "executors"
PATIENCE = timedelta(seconds=60)
# {number}: what a database calls a number that it gives.
SCHEMA = (
    "CREATE TABLE account (name TEXT PRIMARY KEY, opening BIGINT, overdraft BIGINT, cap BIGINT, "
    "balance BIGINT, held BIGINT, coming BIGINT)",
    "CREATE TABLE entry ({number}, account TEXT, request TEXT, kind TEXT, cents BIGINT)",
    "CREATE TABLE decision ({number}, request TEXT, approved BIGINT, why TEXT, at_ns BIGINT)",
)
_OPEN = "INSERT INTO account VALUES (?, ?, ?, ?, ?, 0, 0)"
_LOOK = "SELECT overdraft, cap, balance, held, coming FROM account WHERE name = ?"
_MOVE = (
    "UPDATE account SET balance = balance + ?, held = held + ?, coming = coming + ? WHERE name = ?"
)
_ENTER = "INSERT INTO entry (account, request, kind, cents) VALUES (?, ?, ?, ?)"
_DECIDE = "INSERT INTO decision (request, approved, why, at_ns) VALUES (?, ?, ?, ?)"


class _Ledger:
    """What an executor does with one message: tables and messages, which commit together."""

    def __init__(self, effects: sharedlog.Effects) -> None:
        self._effects = effects
        connection = effects.connection
        self._connection = connection
        # psycopg's connections write places for parameters otherwise.
        self._place = "?" if isinstance(connection, sqlite3.Connection) else "%s"

    def execute(self, statement: str, *given: Any) -> Any:
        return self._connection.execute(statement.replace("?", self._place), given)

    def move(self, account: str, cents: int = 0, *, held: int = 0, coming: int = 0) -> None:
        self.execute(_MOVE, cents, held, coming, account)

    def enter(self, account: str, said: dict[str, Any], kind: str, cents: int) -> None:
        self.execute(_ENTER, account, said["request"], kind, cents)

    def tell(self, account: str, kind: str, said: dict[str, Any], **more: Any) -> None:
        """Tell the executor that has an account, and the views."""
        self._effects.publish(ACCOUNTS, publishing(kind, said, **more), key=account)

    def decide(self, said: dict[str, Any], why: str, fee: int = 0) -> None:
        """Decide, and answer the service that waits; ``why``: it is declined."""
        self.execute(_DECIDE, said["request"], int(not why), why, time.time_ns())
        value = publishing("decided", request=said["request"], approved=not why, why=why, fee=fee)
        self._effects.publish(decisions_of(said["service"]), value)


def _opened(ledger: _Ledger, said: dict[str, Any]) -> None:
    opening = said["opening"]
    ledger.execute(_OPEN, said["name"], opening, said["overdraft"], said["cap"], opening)


def _pay(ledger: _Ledger, said: dict[str, Any]) -> None:
    """The first stage, at the account that pays."""
    source, whole = said["source"], said["cents"] + fee_of(said["cents"])
    row = ledger.execute(_LOOK, source).fetchone()
    if row is None:
        ledger.decide(said, "no such account")
        return
    overdraft, _, balance, held, _ = row
    if whole > balance - held + overdraft:
        ledger.decide(said, "not covered")
    elif said["cents"] > LARGE:
        # Cents that it may need later go to no other payment.
        ledger.move(source, held=whole)
        ledger.tell(said["destination"], "ask", said)
    else:
        _settle(ledger, said)


def _ask(ledger: _Ledger, said: dict[str, Any]) -> None:
    """The second stage, at the account that is paid."""
    row = ledger.execute(_LOOK, said["destination"]).fetchone()
    takes = False
    if row is not None:
        _, cap, balance, _, coming = row
        takes = balance + coming + said["cents"] <= cap
    if takes:
        ledger.move(said["destination"], coming=said["cents"])
    ledger.tell(said["source"], "answer", said, takes=takes)


def _answer(ledger: _Ledger, said: dict[str, Any]) -> None:
    """The third, at the account that pays: what was held is paid, or let go."""
    ledger.move(said["source"], held=-said["cents"] - fee_of(said["cents"]))
    if said["takes"]:
        _settle(ledger, said)
    else:
        ledger.decide(said, "the other account does not take it")


def _settle(ledger: _Ledger, said: dict[str, Any]) -> None:
    source, cents, fee = said["source"], said["cents"], fee_of(said["cents"])
    ledger.move(source, -cents - fee)
    ledger.enter(source, said, "outgoing", -cents)
    ledger.enter(source, said, "charge", -fee)
    ledger.tell(source, "outgoing", said, fee=fee)
    ledger.tell(said["destination"], "incoming", said)
    ledger.tell(BANK, "fee", said, fee=fee)
    ledger.decide(said, "", fee)


def _incoming(ledger: _Ledger, said: dict[str, Any]) -> None:
    cents, account = said["cents"], said["destination"]
    # A payment to an unknown account opens it: no money is lost.
    ledger.execute(f"{_OPEN} ON CONFLICT (name) DO NOTHING", account, 0, 0, 0, 0)
    ledger.move(account, cents, coming=-cents if cents > LARGE else 0)
    ledger.enter(account, said, "incoming", cents)


def _fee(ledger: _Ledger, said: dict[str, Any]) -> None:
    ledger.move(BANK, said["fee"])
    ledger.enter(BANK, said, "fee", said["fee"])


# What it does with each kind of message; with others nothing: those are for views.
_KINDS = {
    "opened": _opened,
    "pay": _pay,
    "ask": _ask,
    "answer": _answer,
    "incoming": _incoming,
    "fee": _fee,
}


def consumer_of(log: sharedlog.Log, store: str) -> sharedlog.Consumer:
    """Return the consumer; each of its processes has some of the accounts' substreams."""
    consumer = sharedlog.Consumer(log, NAME, [ACCOUNTS], store)

    @consumer.on(ACCOUNTS, json.loads)
    def execute(said: dict[str, Any], effects: sharedlog.Effects) -> None:
        if do := _KINDS.get(said["kind"]):
            do(_Ledger(effects), said)

    return consumer


def main(log_url: str, store: str) -> None:
    """Decide until standard input closes."""
    with sharedlog.open(log_url, timeout=PATIENCE) as log:
        run(consumer_of(log, store))


def run(consumer: sharedlog.Consumer) -> None:
    """Run a consumer until standard input closes."""

    def close() -> None:
        sys.stdin.read()
        consumer.close()

    threading.Thread(target=close, daemon=True).start()
    print("listening 0", flush=True)
    consumer.run()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
