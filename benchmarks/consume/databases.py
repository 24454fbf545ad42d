"""The databases of the effects: a table of accounts, in a SQLite file or in PostgreSQL."""

from __future__ import annotations

import sqlite3
from typing import Any

from benchmarks.consume.worker import ACCOUNTS

__all__ = ["connected", "create", "update"]

_TABLE = "CREATE TABLE IF NOT EXISTS account (number INTEGER PRIMARY KEY, messages BIGINT)"
_ROW = "INSERT INTO account VALUES ({0}, 0) ON CONFLICT DO NOTHING"
_UPDATE = "UPDATE account SET messages = messages + 1 WHERE number = {0}"


def connected(url: str) -> Any:
    """Return a connection whose commits are durable, in autocommit: ``BEGIN`` begins."""
    if not url.startswith("sqlite:///"):
        import psycopg

        return psycopg.connect(url, autocommit=True)
    connection = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None, timeout=30)
    connection.execute("PRAGMA synchronous = FULL")
    return connection


def create(url: str) -> None:
    """Make the table."""
    connection = connected(url)
    if url.startswith("sqlite:///"):
        connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(_TABLE)
    for number in range(ACCOUNTS):
        connection.execute(_ROW.format(number))
    connection.close()


def update(connection: Any, account: int) -> None:
    """What each message does."""
    if isinstance(connection, sqlite3.Connection):
        connection.execute(_UPDATE.format("?"), (account,))
    else:
        connection.execute(_UPDATE.format("%s"), (account,))
