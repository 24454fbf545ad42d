"""The tables of a log file, and its format's number."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from curp.log._engine import NewLog
from curp.log._errors import CorruptLog, LogExists

FORMAT = 1
# An entry's place: its group's number above these bits, its LSN in them. One integer
# is the fastest key SQLite has, and keeps a group's entries together.
LSN_BITS = 48

_TABLES = """
CREATE TABLE curp_meta (name TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID;
-- The lease ends at expires_at seconds after that boot, which is '' before the first leader.
CREATE TABLE curp_group (
    group_id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    tail INTEGER NOT NULL DEFAULT 0,
    trimmed INTEGER NOT NULL DEFAULT 0,
    configuration INTEGER NOT NULL DEFAULT 0,
    replica TEXT NOT NULL DEFAULT '',
    address TEXT NOT NULL DEFAULT '',
    boot TEXT NOT NULL DEFAULT '',
    expires_at REAL NOT NULL DEFAULT 0,
    term_s REAL NOT NULL DEFAULT 0,
    -- How many transactions have written the log.
    commits INTEGER NOT NULL DEFAULT 0
);
-- tags is a JSON list of texts.
CREATE TABLE curp_entry (
    place INTEGER PRIMARY KEY,
    append_id BLOB NOT NULL,
    tags TEXT NOT NULL,
    checksum INTEGER NOT NULL,
    body BLOB NOT NULL
);
CREATE TABLE curp_tag (
    group_id INTEGER NOT NULL,
    tag TEXT NOT NULL,
    lsn INTEGER NOT NULL,
    PRIMARY KEY (group_id, tag, lsn)
) WITHOUT ROWID;
CREATE TABLE curp_metadata (
    group_id INTEGER NOT NULL,
    key TEXT NOT NULL,
    value BLOB NOT NULL,
    PRIMARY KEY (group_id, key)
) WITHOUT ROWID;
-- chunks is NULL until the snapshot is whole.
CREATE TABLE curp_snapshot (
    snapshot_id INTEGER PRIMARY KEY AUTOINCREMENT,
    group_id INTEGER NOT NULL,
    lsn INTEGER NOT NULL,
    chunks INTEGER
);
CREATE TABLE curp_chunk (
    snapshot_id INTEGER NOT NULL,
    number INTEGER NOT NULL,
    checksum INTEGER NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (snapshot_id, number)
);
"""


def find_group(connection: sqlite3.Connection, path: Path, name: str) -> int | None:
    """Return a group's number in this file, None if it has none; in a transaction.

    Raises ``CorruptLog`` for a newer format, or for no log of ours.
    """
    if not _has_tables(connection):
        return None
    row = connection.execute("SELECT value FROM curp_meta WHERE name='format'").fetchone()
    if row is None or not isinstance(row[0], int) or row[0] < 1:
        raise CorruptLog(f"{path} is damaged: it has no format number")
    if row[0] > FORMAT:
        raise CorruptLog(
            f"{path} has format {row[0]}, written by a newer release; this one knows {FORMAT}"
        )
    row = connection.execute("SELECT group_id FROM curp_group WHERE name=?", (name,)).fetchone()
    return None if row is None else int(row[0])


def make_group(connection: sqlite3.Connection, path: Path, name: str, new: NewLog) -> int:
    """Create the group's log, and the tables where they are missing; return its number.

    In a transaction for writing. Raises ``LogExists``, ``CorruptLog``.
    """
    if not _has_tables(connection):
        for statement in _TABLES.split(";"):
            connection.execute(statement)
        connection.execute("INSERT INTO curp_meta VALUES ('format', ?)", (FORMAT,))
    if find_group(connection, path, name) is not None:
        raise LogExists.of(str(path), name)
    group_id = connection.execute(
        "INSERT INTO curp_group (name, tail, trimmed, configuration) VALUES (?, ?, ?, ?)",
        (name, new.trimmed, new.trimmed, new.configuration),
    ).lastrowid
    connection.executemany(
        "INSERT INTO curp_metadata VALUES (?, ?, ?)",
        [(group_id, key, value) for key, value in new.metadata.items()],
    )
    return int(group_id or 0)


def counts_commits(connection: sqlite3.Connection) -> bool:
    """Whether the logs of this file count their commits; those of earlier releases do not."""
    columns = connection.execute("PRAGMA table_info(curp_group)").fetchall()
    return any(column[1] == "commits" for column in columns)


def begin_to_count(connection: sqlite3.Connection) -> None:
    """Have an earlier release's logs count their commits; that release still opens them."""
    if not counts_commits(connection):
        connection.execute("ALTER TABLE curp_group ADD COLUMN commits INTEGER NOT NULL DEFAULT 0")


def _has_tables(connection: sqlite3.Connection) -> bool:
    statement = "SELECT count(*) FROM sqlite_master WHERE name='curp_meta'"
    return bool(connection.execute(statement).fetchone()[0])
