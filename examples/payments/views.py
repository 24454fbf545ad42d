"""The views: ``python -m examples.payments.views NAME LOG STORE``.

Statements and full-text search in SQLite, balances in Redis. Each follows the accounts' stream, and
can be made anew from its beginning, by another name.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import sys
from pathlib import Path
from typing import Any

import sharedlog
from examples.payments.executor import PATIENCE, run
from examples.payments.rules import ACCOUNTS, BANK

__all__ = ["VIEWS", "create", "lines_of", "main", "view_of"]

_SCHEMAS = {
    "statements": (
        "CREATE TABLE line (number INTEGER PRIMARY KEY, account TEXT, request TEXT, kind TEXT, "
        "cents INTEGER, other TEXT, memo TEXT)",
        "CREATE INDEX line_account ON line (account)",
    ),
    "search": (
        "CREATE VIRTUAL TABLE payment USING fts5(request UNINDEXED, source, destination, memo)",
    ),
}
VIEWS = (*_SCHEMAS, "balances")
_LINE = "INSERT INTO line (account, request, kind, cents, other, memo) VALUES (?, ?, ?, ?, ?, ?)"


def create(view: str, database: Path) -> None:
    """Make the tables of a view in SQLite, empty."""
    with contextlib.closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        for statement in _SCHEMAS[view]:
            connection.execute(statement)


def lines_of(said: dict[str, Any]) -> list[tuple[str, str, str, int, str, str]]:
    """Return what a message adds to statements: account, request, kind, cents, whose, and why."""
    match said["kind"]:
        case "opened":
            return [(said["name"], "", "opening", said["opening"], "", "")]
        case "outgoing":
            source, request, memo = said["source"], said["request"], said["memo"]
            return [
                (source, request, "outgoing", -said["cents"], said["destination"], memo),
                (source, request, "charge", -said["fee"], BANK, memo),
            ]
        case "incoming":
            request, source = said["request"], said["source"]
            return [(said["destination"], request, "incoming", said["cents"], source, said["memo"])]
        case "fee":
            return [(BANK, said["request"], "fee", said["fee"], said["source"], said["memo"])]
    return []


def view_of(log: sharedlog.Log, view: str, name: str, store: str) -> sharedlog.Consumer:
    """Return the consumer, of this name, that keeps a view."""
    consumer = sharedlog.Consumer(log, name, [ACCOUNTS], store)

    def state(said: dict[str, Any], effects: sharedlog.Effects) -> None:
        effects.connection.executemany(_LINE, lines_of(said))

    def index(said: dict[str, Any], effects: sharedlog.Effects) -> None:
        if said["kind"] == "outgoing":
            effects.connection.execute(
                "INSERT INTO payment VALUES (:request, :source, :destination, :memo)", said
            )

    def add(said: dict[str, Any], effects: sharedlog.Effects) -> None:
        for account, _, _, cents, _, _ in lines_of(said):
            effects.connection.hincrby("balances", account, cents)

    consumer.on(ACCOUNTS, json.loads)({"statements": state, "search": index, "balances": add}[view])
    return consumer


def main(view: str, log_url: str, store: str) -> None:
    """Keep a view until standard input closes."""
    with sharedlog.open(log_url, timeout=PATIENCE) as log:
        run(view_of(log, view, view, store))


if __name__ == "__main__":
    main(*sys.argv[1:])
