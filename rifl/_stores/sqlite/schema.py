"""The rifl tables in a SQLite database, and how it is opened."""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

from _rifl_ground.log import get_logger
from _rifl_ground.sqlite import opening
from _rifl_ground.sqlite.failures import NoWal, Stopped
from rifl._stores.errors import (
    StoreCorrupt,
    StoreError,
    StoreSchemaTooNew,
    StoreUnreachable,
    WrongDatabase,
)
from rifl._stores.sqlite.file_guard import COMMITS, FileIdentity, Guard
from rifl._stores.sqlite.note_file import remove_note

_log = get_logger("rifl.store")

SCHEMA_VERSION = 1
_BUSY_TIMEOUT_S = 30.0
_STATEMENTS = 256
# A file up to this size is checked whole when it is opened: in a second, at most.
_CHECKED_BYTES = 64 << 20

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
    secret BLOB NOT NULL,
    source TEXT NOT NULL,
    writer BLOB NOT NULL,
    UNIQUE (peer, name)
);
CREATE TABLE rifl_client (
    client_id INTEGER PRIMARY KEY,
    first_incomplete INTEGER NOT NULL,
    completed BLOB NOT NULL,
    registered_at_unix_s INTEGER NOT NULL
);
-- Whom a client's lease counts for, if for any caller.
CREATE TABLE rifl_lease (client_id INTEGER PRIMARY KEY, holder BLOB NOT NULL);
-- identity is the seq (an integer) or the key (a blob). record is NULL while
-- the call is an intent: begun, and not known to have ended. The time is that of
-- the intent, then of the record. The commit number is that of the commit which
-- wrote the row last. Of a keyed call until_s says up to which time that was lived through the
-- record is kept, NULL as long as its client, and 0 while the call is an intent.
CREATE TABLE rifl_call (
    client_id INTEGER NOT NULL,
    identity NOT NULL,
    fingerprint BLOB,
    method TEXT NOT NULL,
    until_s REAL,
    record BLOB,
    changed_at_unix_s INTEGER NOT NULL,
    commit_number INTEGER NOT NULL,
    PRIMARY KEY (client_id, identity)
) WITHOUT ROWID;
-- Keyed calls are not read when a store opens: here are those that are to be settled, or end.
CREATE INDEX rifl_until ON rifl_call (until_s) WHERE until_s IS NOT NULL;
-- The keys of each client that have a record, the bytes of both, and the commit that wrote one
-- last: moved with the rows by each writer of these.
CREATE TABLE rifl_keys (
    client_id INTEGER PRIMARY KEY,
    keys INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    commit_number INTEGER NOT NULL
);
CREATE TRIGGER rifl_key_added AFTER INSERT ON rifl_call
WHEN typeof(NEW.identity)='blob' AND NEW.record IS NOT NULL
BEGIN
    INSERT INTO rifl_keys
    VALUES (NEW.client_id, 1, length(NEW.identity) + length(NEW.record), NEW.commit_number)
    ON CONFLICT DO UPDATE SET
        keys=keys + 1,
        bytes=bytes + excluded.bytes,
        commit_number=max(commit_number, excluded.commit_number);
END;
CREATE TRIGGER rifl_key_recorded AFTER UPDATE OF record ON rifl_call
WHEN typeof(NEW.identity)='blob'
BEGIN
    INSERT INTO rifl_keys VALUES (
        NEW.client_id,
        OLD.record IS NULL,
        CASE WHEN OLD.record IS NULL THEN length(NEW.identity) ELSE -length(OLD.record) END
            + length(NEW.record),
        NEW.commit_number
    ) ON CONFLICT DO UPDATE SET
        keys=keys + excluded.keys,
        bytes=bytes + excluded.bytes,
        commit_number=max(commit_number, excluded.commit_number);
END;
CREATE TRIGGER rifl_key_deleted AFTER DELETE ON rifl_call
WHEN typeof(OLD.identity)='blob' AND OLD.record IS NOT NULL
BEGIN
    UPDATE rifl_keys SET keys=keys - 1, bytes=bytes - length(OLD.identity) - length(OLD.record)
    WHERE client_id=OLD.client_id;
    DELETE FROM rifl_keys WHERE client_id=OLD.client_id AND keys < 1;
END;
-- Calls whose outcome was unknown, whatever became of their clients, and what an operator
-- said of them.
CREATE TABLE rifl_unknown (
    client_id INTEGER NOT NULL,
    identity NOT NULL,
    method TEXT NOT NULL,
    since_unix_s INTEGER NOT NULL,
    note TEXT,
    PRIMARY KEY (client_id, identity)
) WITHOUT ROWID;
-- What is moved conditionally, beside the records: how far others are who hand work to the
-- server's handlers in an order of their own.
CREATE TABLE rifl_row (
    key TEXT PRIMARY KEY,
    value BLOB NOT NULL,
    commit_number INTEGER NOT NULL
) WITHOUT ROWID;
"""

# Every table and column is named, so that a damaged schema is noticed at once. Negative
# ids are namespaces', which are never granted.
_GRANTED = (
    "FROM (SELECT client_id, identity, fingerprint, method, until_s, record, changed_at_unix_s, "
    "commit_number FROM rifl_call) WHERE client_id >= 0"
)
_IDS = (
    "SELECT min(CASE WHEN client_id >= 0 THEN client_id END), "
    "max(CASE WHEN client_id >= 0 THEN client_id END) FROM "
    "(SELECT client_id, first_incomplete, completed, registered_at_unix_s FROM rifl_client)",
    # Each by itself is found by the primary key: there may be many keys.
    f"SELECT (SELECT min(client_id) {_GRANTED}), (SELECT max(client_id) {_GRANTED})",
    "SELECT min(CASE WHEN client_id >= 0 THEN client_id END), "
    "max(CASE WHEN client_id >= 0 THEN client_id END) FROM "
    "(SELECT client_id, keys, bytes, commit_number FROM rifl_keys)",
    "SELECT min(client_id), max(client_id) FROM "
    "(SELECT client_id, name, peer, state, retention_s, changed_at_unix_s, secret, "
    "source, writer FROM rifl_session)",
    "SELECT min(client_id), max(client_id) FROM (SELECT client_id, holder FROM rifl_lease)",
    "SELECT NULL, max(key_id) FROM (SELECT key_id, value FROM rifl_secret)",
    "SELECT NULL, max(commit_number) FROM (SELECT key, value, commit_number FROM rifl_row)",
)
# The statements that bring a database from a version to the next one, by that version. They
# run in one transaction with the change of the version. No version has been replaced yet.
_MIGRATIONS: dict[int, tuple[str, ...]] = {}


def connect(path: Path) -> sqlite3.Connection:
    """Return a connection that any thread may use, one at a time; see the ground floor's."""
    return opening.connect(
        path,
        opening.Connection,
        busy_s=_BUSY_TIMEOUT_S,
        create=True,
        statements=_STATEMENTS,
        wal=True,
    )


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


def open_database(
    path: Path,
    store_id: str | None,
    connect: Callable[[Path], sqlite3.Connection] = connect,
    guard: Guard | None = None,
) -> tuple[sqlite3.Connection, str, int]:
    """Open a database for a new incarnation; make or check rifl's tables.

    Returns the connection, the store's id and the incarnation's number. ``store_id`` None
    takes or makes the database's own; else the database must belong to that store.
    ``guard`` admits what the file holds, and its mark fences every writer of an earlier
    opening. Raises ``StoreCorrupt``, ``StoreLost``, ``StoreSchemaTooNew``,
    ``WrongDatabase``, ``StoreUnreachable``.
    """
    guard = guard or Guard()
    connection = None
    try:
        if not path.exists() or not path.stat().st_size:
            guard.admit(None)
        connection = connect(path)
        check_pages(connection, path)
        connection.execute("BEGIN IMMEDIATE")
        held, incarnation = _prepare(connection, path, store_id, guard)
        guard.raise_commits(connection, held.commits)
        connection.execute("COMMIT")
        guard.opened(connection, incarnation, held)
    except (sqlite3.Error, ValueError, TypeError) as error:
        _close(connection)
        raise opening_error(path, error) from error
    except BaseException:
        _close(connection)
        raise
    return connection, held.store_id, incarnation


def opening_error(path: Path, error: Exception) -> StoreError:
    """Return what an error met while opening means: damage, or a medium that is in the way."""
    if isinstance(error, Stopped | NoWal):
        return StoreUnreachable(str(error))
    code = getattr(error, "sqlite_errorcode", None)
    # Full, read-only, no such directory: nothing wrong with the data. An error of
    # no such kind is about what was read: a table, a column, a text.
    if isinstance(error, sqlite3.OperationalError) and code not in (None, sqlite3.SQLITE_ERROR):
        return StoreUnreachable(f"cannot open {path}: {error}")
    return StoreCorrupt(f"{path} is damaged, or no database: {error}")


def close_database(
    path: Path, guard: Guard, connect: Callable[[Path], sqlite3.Connection] = connect
) -> None:
    """Say in the file, and in its guard's note, that it was closed well."""
    commits = None
    try:
        guard.check_main()
        with closing(connect(path)) as connection:
            number = guard.number()
            owned = connection.execute(
                "UPDATE rifl_meta SET value=CASE name WHEN 'closed' THEN 1 ELSE ? END "
                "WHERE name IN ('closed', 'commits') "
                "AND (SELECT value FROM rifl_meta WHERE name='opening')=?",
                (number, guard.opening),
            ).rowcount
            if owned:
                commits = number
    except sqlite3.Error as error:
        # It is then opened as after a crash.
        _log.warning("store_not_closed", file=str(path), error=str(error))
    finally:
        guard.closed(commits)


def accept_copy(path: Path, connection: sqlite3.Connection) -> None:
    """Take the file for the store, whatever it lacks, on an operator's word.

    ``connection`` is to that file, which the caller owns. What was answered since the copy
    was made is not known any more: the caller ends the clients of that time.
    """
    set_meta(connection, "closed", 1)
    remove_note(path)


def check_pages(connection: sqlite3.Connection, path: Path) -> None:
    """Raise ``StoreCorrupt`` for damage; of calls in a large file where they are read."""
    checked = ["1"]
    pages, size = (
        connection.execute(f"PRAGMA {what}").fetchone()[0] for what in ("page_count", "page_size")
    )
    if pages * size > _CHECKED_BYTES:
        tables = "SELECT name FROM sqlite_master WHERE type='table' AND name LIKE 'rifl\\_%' "
        found = connection.execute(tables + "ESCAPE '\\' AND name <> 'rifl_call'")
        checked = [name for (name,) in found]
    for each in checked:
        problem = connection.execute(f"PRAGMA quick_check({each})").fetchone()[0]
        if problem != "ok":
            raise StoreCorrupt(f"{path} is damaged: {problem}")


def _prepare(
    connection: sqlite3.Connection, path: Path, store_id: str | None, guard: Guard
) -> tuple[FileIdentity, int]:
    known = is_known(connection)
    if not known:
        guard.admit(None)
        for statement in _statements(_TABLES):
            connection.execute(statement)
        set_meta(connection, "schema_version", SCHEMA_VERSION)
        set_meta(connection, "store_id", store_id or secrets.token_hex(16))
        set_meta(connection, "incarnation", 0)
        set_meta(connection, "next_client_id", 1)
        set_meta(connection, "probes", 0)
        set_meta(connection, "opening", 0)
        set_meta(connection, "commits", 0)
        set_meta(connection, "closed", 1)
    for old in range(check_version(connection, path), SCHEMA_VERSION):
        for statement in _MIGRATIONS[old]:
            connection.execute(statement)
    set_meta(connection, "schema_version", SCHEMA_VERSION)
    held = identity_of(connection, path, store_id)
    if known:
        guard.admit(held)
    incarnation = _number(connection, "incarnation") + 1
    set_meta(connection, "incarnation", incarnation)
    set_meta(connection, "opening", guard.opening)
    set_meta(connection, "commits", held.commits + 1)
    set_meta(connection, "closed", 0)
    return held._replace(commits=held.commits + 1, closed=False), incarnation


def is_known(connection: sqlite3.Connection) -> bool:
    """Whether the database has rifl's tables."""
    known = connection.execute("SELECT 1 FROM sqlite_master WHERE name='rifl_meta'").fetchone()
    return known is not None


def check_version(connection: sqlite3.Connection, path: Path) -> int:
    """Return the version of the tables; raises ``StoreSchemaTooNew``, ``StoreCorrupt``."""
    version = _number(connection, "schema_version")
    if version > SCHEMA_VERSION:
        raise StoreSchemaTooNew(
            f"{path} has schema {version}; this release knows up to {SCHEMA_VERSION}"
        )
    if version not in range(1, SCHEMA_VERSION + 1):
        raise StoreCorrupt(f"{path} is damaged: its schema version is {version}")
    return version


def identity_of(
    connection: sqlite3.Connection, path: Path, store_id: str | None = None
) -> FileIdentity:
    """Return what tables of this release's version say of themselves; only reads.

    Raises ``WrongDatabase`` if they are not of the store ``store_id``, ``StoreCorrupt``.
    """
    owner = get_meta(connection, "store_id")
    if not isinstance(owner, str):
        raise StoreCorrupt(f"{path} is damaged: it has no store id")
    if store_id not in (None, owner):
        raise WrongDatabase(f"{path} holds the records of another store")
    for ids in _IDS:
        first, last = connection.execute(ids).fetchone()
        if store_id is not None or first is None:
            continue
        # An id granted twice would answer one client with another's records.
        if not 0 < first <= last < _number(connection, "next_client_id"):
            raise StoreCorrupt(f"{path} is damaged: it has clients it never granted")
    (commits,) = connection.execute(COMMITS).fetchone()
    if not isinstance(commits, int):
        raise ValueError(f"its commits are {commits!r}")
    return FileIdentity(owner, commits, bool(_number(connection, "closed")))


def _statements(script: str) -> Iterator[str]:
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _number(connection: sqlite3.Connection, name: str) -> int:
    value = get_meta(connection, name)
    if not isinstance(value, int):
        raise ValueError(f"its {name} is {value!r}")
    return value


def _close(connection: sqlite3.Connection | None) -> None:
    if connection is not None:
        connection.close()
