"""The tables of ours in a SQLite database, and how it is opened."""

from __future__ import annotations

import secrets
import sqlite3
from pathlib import Path

from rifl.stores.errors import (
    StoreCorrupt,
    StoreSchemaTooNew,
    StoreUnreachable,
    WrongDatabase,
)

__all__ = ["SCHEMA_VERSION", "connect", "get_meta", "open_database", "set_meta"]

SCHEMA_VERSION = 2
_BUSY_TIMEOUT_S = 30.0

_TABLES = """
CREATE TABLE rifl_meta (name TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID;
CREATE TABLE rifl_secret (key_id INTEGER PRIMARY KEY, value BLOB NOT NULL);
CREATE TABLE rifl_session (
    client_id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    peer BLOB NOT NULL,
    state TEXT NOT NULL,
    retention_s REAL NOT NULL,
    changed_at_unix_s REAL NOT NULL,
    UNIQUE (peer, name)
);
CREATE TABLE rifl_client (
    client_id INTEGER PRIMARY KEY,
    first_incomplete INTEGER NOT NULL,
    completed BLOB NOT NULL,
    registered_at_unix_s INTEGER
);
-- identity is the seq (an integer) or the key (a blob). record is NULL while
-- the call is an intent: begun, and not known to have ended. The time is that of
-- the intent, then of the record, and NULL in rows that schema 1 wrote.
CREATE TABLE rifl_call (
    client_id INTEGER NOT NULL,
    identity NOT NULL,
    fingerprint BLOB,
    method TEXT NOT NULL,
    record BLOB,
    changed_at_unix_s INTEGER,
    PRIMARY KEY (client_id, identity)
) WITHOUT ROWID;
"""

# What brings a database from one version to the next; run in one transaction
# with the change of the version.
_MIGRATIONS = {
    1: (
        "ALTER TABLE rifl_call ADD COLUMN changed_at_unix_s INTEGER",
        "ALTER TABLE rifl_client ADD COLUMN registered_at_unix_s INTEGER",
    ),
}


def connect(path: Path) -> sqlite3.Connection:
    """Return a connection that any thread may use, one at a time.

    It is in autocommit mode: transactions are begun and ended by our SQL.
    ``synchronous=FULL``: a commit returns after the fsync.
    """
    connection = sqlite3.connect(
        path,
        timeout=_BUSY_TIMEOUT_S,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=64,
    )
    connection.execute("PRAGMA synchronous=FULL")
    return connection


def get_meta(connection: sqlite3.Connection, name: str) -> int | str | None:
    """Return a value kept about the database as a whole."""
    row = connection.execute("SELECT value FROM rifl_meta WHERE name=?", (name,)).fetchone()
    return None if row is None else row[0]


def set_meta(connection: sqlite3.Connection, name: str, value: int | str) -> None:
    """Set a value kept about the database as a whole."""
    connection.execute(
        "INSERT INTO rifl_meta VALUES (?, ?) ON CONFLICT DO UPDATE SET value=excluded.value",
        (name, value),
    )


def open_database(path: Path, store_id: str | None) -> tuple[sqlite3.Connection, str, int]:
    """Open a database, with tables of ours made or checked, for a new incarnation.

    Returns the connection, the store's id and the incarnation's number, which
    fences every writer of an earlier one. ``store_id`` None takes or makes the
    database's own; else the database must belong to that store. Raises
    ``StoreCorrupt``, ``StoreSchemaTooNew``, ``WrongDatabase``, ``StoreUnreachable``.
    """
    connection = None
    try:
        connection = connect(path)
        connection.execute("PRAGMA journal_mode=WAL")
        problem = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if problem != "ok":
            raise StoreCorrupt(f"{path} is damaged: {problem}")
        connection.execute("BEGIN IMMEDIATE")
        store_id, incarnation = _prepare(connection, path, store_id)
        connection.execute("COMMIT")
    except sqlite3.OperationalError as error:
        # Full, read-only, no such directory: nothing wrong with the data.
        _close(connection)
        raise StoreUnreachable(f"cannot open {path}: {error}") from error
    except sqlite3.DatabaseError as error:
        _close(connection)
        raise StoreCorrupt(f"{path} is damaged, or no database: {error}") from error
    except BaseException:
        _close(connection)
        raise
    return connection, store_id, incarnation


def _prepare(connection: sqlite3.Connection, path: Path, store_id: str | None) -> tuple[str, int]:
    known = connection.execute("SELECT 1 FROM sqlite_master WHERE name='rifl_meta'").fetchone()
    if not known:
        for statement in _TABLES.split(";"):
            connection.execute(statement)
        set_meta(connection, "schema_version", SCHEMA_VERSION)
        set_meta(connection, "store_id", store_id or secrets.token_hex(16))
        set_meta(connection, "incarnation", 0)
        set_meta(connection, "next_client_id", 1)
        set_meta(connection, "probes", 0)
    version = int(get_meta(connection, "schema_version") or 0)
    if version > SCHEMA_VERSION:
        raise StoreSchemaTooNew(
            f"{path} has schema {version}; this release knows up to {SCHEMA_VERSION}"
        )
    if version not in range(1, SCHEMA_VERSION + 1):
        raise StoreCorrupt(f"{path} has no schema version that was ever used: {version}")
    for old in range(version, SCHEMA_VERSION):
        for statement in _MIGRATIONS[old]:
            connection.execute(statement)
    set_meta(connection, "schema_version", SCHEMA_VERSION)
    owner = str(get_meta(connection, "store_id"))
    if store_id not in (None, owner):
        raise WrongDatabase(f"{path} holds the records of another store")
    incarnation = int(get_meta(connection, "incarnation") or 0) + 1
    set_meta(connection, "incarnation", incarnation)
    return owner, incarnation


def _close(connection: sqlite3.Connection | None) -> None:
    if connection is not None:
        connection.close()
