"""A log in a SQLite file: durable with each commit, shared by the processes of one machine."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from sharedlog._core.commit import Commit, Refused, stamped
from sharedlog._core.entry import Row
from sharedlog._core.errors import (
    CorruptLog,
    LogExists,
    LogFull,
    LogUnavailable,
    NewerFormat,
    NoSuchLog,
    TrimmedLog,
)
from sharedlog._core.steps import Lsns, Rows
from sharedlog._engines.checks import check_commit
from sharedlog._engines.engine import READ_BYTES, Limits

FORMAT = 1
_APPLICATION_ID = 0x72666C67
_BUSY_S = 30.0
# How long between two looks for what other processes wrote.
_SHORTEST_S = 0.001
_LONGEST_S = 0.010
# How many entries one transaction removes.
_PIECE = 1000
_SCHEMA = """
CREATE TABLE log_entry (
  lsn INTEGER PRIMARY KEY, at_us INTEGER NOT NULL, body BLOB NOT NULL, tags TEXT NOT NULL
);
CREATE TABLE log_tag (
  tag TEXT NOT NULL, lsn INTEGER NOT NULL, PRIMARY KEY (tag, lsn)
) WITHOUT ROWID;
CREATE TABLE log_key (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE log_head (
  one INTEGER PRIMARY KEY CHECK (one = 1), tail INTEGER NOT NULL, removed INTEGER NOT NULL,
  at_us INTEGER NOT NULL
);
INSERT INTO log_head VALUES (1, 0, 0, 0);
"""
# Between tags, none of which has it.
_BETWEEN = "\n"


def create(path: Path, keys: Mapping[str, bytes] | None = None) -> None:
    """Make an empty log with these keys in a file that is not there; durable when this returns.

    A crash on the way leaves an empty file, which is no log, and to be deleted.

    Raises ``LogExists`` where there is a file, ``LogUnavailable`` where none can be made.
    """
    try:
        # Made by this process or not at all: two that create at once do not both believe it.
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError as error:
        raise LogExists(f"{path}: a file is there") from error
    except OSError as error:
        raise LogUnavailable(f"{path}: {error}") from error
    with _told(path):
        connection = _connect(path)
        try:
            connection.executescript(
                f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA application_id = {_APPLICATION_ID}; "
                f"PRAGMA user_version = {FORMAT};"
            )
            connection.executemany("INSERT INTO log_key VALUES (?, ?)", (keys or {}).items())
            connection.execute("COMMIT")
        finally:
            connection.close()
        _sync_directory(path.parent)


class SqliteEngine:
    """An ``Engine``; any thread, any number of processes of this machine.

    Appends of threads that meet share one transaction, and so one sync of the disk; processes
    take turns. Each has ``synchronous=FULL`` in WAL mode: what returned survives a power cut, as
    far as the disk keeps what it was told to sync. A process that dies leaves whole commits only.
    """

    durability = "on the disk before an append returns (WAL, synchronous=FULL)"
    limits = Limits(entries=10_000, append_bytes=64 << 20, operations=20_000)

    def __init__(self, path: Path) -> None:
        """Open the log. Raises ``NoSuchLog``, ``NewerFormat``, ``CorruptLog``."""
        self._path = path
        self._closing = threading.Event()
        if not path.is_file() or path.stat().st_size == 0:
            raise NoSuchLog(f"{path}: no log is there; create makes one")
        with _told(path):
            self._writer = _connect(path)
            self._reader = _connect(path)
        try:
            self._check()
        except BaseException:
            self.close()
            raise
        # Of the connections; and of what waits to be committed together.
        self._writing = threading.Lock()
        self._reading = threading.Lock()
        self._gate = threading.Lock()
        self._waiting: list[_Pending] = []

    def _check(self) -> None:
        with _told(self._path):
            found = self._reader.execute("PRAGMA application_id").fetchone()[0]
            version = self._reader.execute("PRAGMA user_version").fetchone()[0]
        if found != _APPLICATION_ID:
            raise NoSuchLog(f"{self._path}: a SQLite file, but no log of ours")
        if version > FORMAT:
            raise NewerFormat(f"{self._path}: format {version}, this release knows {FORMAT}")

    def commit(self, commit: Commit) -> Lsns:
        """See ``Engine``."""
        check_commit(commit, self.limits)
        mine = _Pending(commit)
        with self._gate:
            self._waiting.append(mine)
        with self._writing:
            if not mine.done:
                with self._gate:
                    together, self._waiting = self._waiting, []
                self._write(together)
        return mine.result()

    def _write(self, together: Sequence[_Pending]) -> None:
        """Judge and write them in their order, in one transaction."""
        try:
            with _told(self._path), self._transaction() as connection:
                head = _head(connection)
                for each in together:
                    head = self._apply(each, head)
                connection.execute(
                    "UPDATE log_head SET tail = ?, at_us = ?", (head.tail, head.at_us)
                )
        except BaseException as error:
            for each in together:
                each.fail(error)
            if not isinstance(error, Exception):
                raise
        else:
            for each in together:
                each.end()

    def _apply(self, pending: _Pending, head: _Head) -> _Head:
        commit = pending.commit
        tail = head.tail
        found = _get(self._writer, [each.key for each in commit.conditions])
        if any(found[each.key] != each.value for each in commit.conditions):
            pending.refused = Refused(found)
            return head
        first = tail + 1 if commit.entries else tail
        last = tail + len(commit.entries)
        for put in commit.puts:
            value = stamped(put, first, last)
            if value is None:
                self._writer.execute("DELETE FROM log_key WHERE key = ?", (put.key,))
            else:
                self._writer.execute(
                    "INSERT INTO log_key VALUES (?, ?) "
                    "ON CONFLICT (key) DO UPDATE SET value = excluded.value",
                    (put.key, value),
                )
        at_us = max(head.at_us, commit.at_us) if commit.entries else head.at_us
        for lsn, entry in enumerate(commit.entries, first):
            tags = sorted(set(entry.tags))
            self._writer.execute(
                "INSERT INTO log_entry VALUES (?, ?, ?, ?)",
                (lsn, at_us, entry.body, _BETWEEN.join(entry.tags)),
            )
            self._writer.executemany(
                "INSERT INTO log_tag VALUES (?, ?)", [(tag, lsn) for tag in tags]
            )
        pending.lsns = Lsns(first, last)
        return head._replace(tail=last, at_us=at_us)

    def get(self, keys: tuple[str, ...]) -> dict[str, bytes | None]:
        """See ``Engine``."""
        with self._read() as connection:
            return _get(connection, keys)

    def scan(self, prefix: str) -> dict[str, bytes]:
        """See ``Engine``."""
        with self._read() as connection:
            # Keys of one prefix are neighbours; U+10FFFF is above every character that follows.
            rows = connection.execute(
                "SELECT key, value FROM log_key WHERE key >= ? AND key < ?",
                (prefix, prefix + "\U0010ffff"),
            )
            return dict(rows.fetchall())

    def read(self, after: int, limit: int, tag: str | None = None) -> Rows:
        """See ``Engine``."""
        with self._read() as connection:
            head = _head(connection)
            if after < head.removed:
                raise TrimmedLog(f"what follows LSN {after} was trimmed", head.removed + 1)
            if tag is None:
                found = connection.execute(
                    "SELECT lsn, body, tags, at_us FROM log_entry WHERE lsn > ? "
                    "ORDER BY lsn LIMIT ?",
                    (after, limit),
                )
            else:
                found = connection.execute(
                    "SELECT entry.lsn, entry.body, entry.tags, entry.at_us FROM log_tag AS tagged "
                    "JOIN log_entry AS entry ON entry.lsn = tagged.lsn "
                    "WHERE tagged.tag = ? AND tagged.lsn > ? ORDER BY tagged.lsn LIMIT ?",
                    (tag, after, limit),
                )
            rows, cut = _bounded(found, limit)
        if tag is None and [row.lsn for row in rows] != list(
            range(after + 1, after + 1 + len(rows))
        ):
            raise CorruptLog(f"{self._path}: entries behind LSN {after} are missing")
        return Rows(rows, rows[-1].lsn if cut else max(after, head.tail))

    def tail(self) -> int:
        """See ``Engine``."""
        with self._read() as connection:
            return _head(connection).tail

    def first(self) -> int:
        """See ``Engine``."""
        with self._read() as connection:
            return _head(connection).removed + 1

    def wait(self, after: int, timeout_s: float) -> int:
        """See ``Engine``."""
        end = time.monotonic() + timeout_s
        pause_s = _SHORTEST_S
        while (tail := self.tail()) <= after and (left_s := end - time.monotonic()) > 0:
            if self._closing.wait(min(pause_s, left_s)):
                raise LogUnavailable(f"{self._path}: the log was closed")
            pause_s = min(pause_s * 1.1, _LONGEST_S)
        return tail

    def remove(self, through: int) -> None:
        """See ``Engine``."""
        while True:
            with self._writing, _told(self._path), self._transaction() as connection:
                head = _head(connection)
                last = min(through, head.tail, head.removed + _PIECE)
                if last <= head.removed:
                    return
                rows = connection.execute(
                    "SELECT tags, lsn FROM log_entry WHERE lsn <= ?", (last,)
                ).fetchall()
                connection.executemany(
                    "DELETE FROM log_tag WHERE tag = ? AND lsn = ?",
                    [(tag, lsn) for tags, lsn in rows for tag in _tags(tags)],
                )
                connection.execute("DELETE FROM log_entry WHERE lsn <= ?", (last,))
                connection.execute("UPDATE log_head SET removed = ?", (last,))

    def close(self) -> None:
        """See ``Engine``."""
        self._closing.set()
        self._writer.close()
        self._reader.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Write in one step; undone by any error."""
        self._writer.execute("BEGIN IMMEDIATE")
        try:
            yield self._writer
            self._writer.execute("COMMIT")
        except BaseException:
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK")
            raise

    @contextmanager
    def _read(self) -> Iterator[sqlite3.Connection]:
        """Read as of one moment."""
        with self._reading, _told(self._path):
            self._reader.execute("BEGIN")
            try:
                yield self._reader
            finally:
                if self._reader.in_transaction:
                    self._reader.execute("COMMIT")


class _Head(NamedTuple):
    """The log's one row: the newest LSN, the newest removed one, the newest row's time."""

    tail: int
    removed: int
    at_us: int


class _Pending:
    """One caller's commit on its way into a shared transaction."""

    def __init__(self, commit: Commit) -> None:
        self.commit = commit
        self.done = False
        self.lsns: Lsns | None = None
        self.refused: Refused | None = None
        self._error: Exception | None = None

    def end(self) -> None:
        self.done = True

    def fail(self, error: BaseException) -> None:
        if not isinstance(error, Exception):
            # A signal's, in the thread that wrote: it is not the others' to raise.
            error = LogUnavailable("the thread that wrote for this one was interrupted")
        self._error = error
        self.done = True

    def result(self) -> Lsns:
        if self._error is not None:
            raise self._error
        if self.refused is not None:
            raise self.refused
        if self.lsns is None:
            raise LogUnavailable("nobody wrote this one")
        return self.lsns


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
    )
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    return connection


def _sync_directory(path: Path) -> None:
    # The file's name is not durable before its directory is.
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _head(connection: sqlite3.Connection) -> _Head:
    return _Head(*connection.execute("SELECT tail, removed, at_us FROM log_head").fetchone())


def _bounded(found: Iterable[tuple[int, bytes, str, int]], limit: int) -> tuple[list[Row], bool]:
    """Return rows up to the bound of bytes, and whether it or ``limit`` cut them short."""
    rows: list[Row] = []
    size = 0
    for lsn, body, tags, at_us in found:
        size += len(body)
        if rows and size > READ_BYTES:
            return rows, True
        rows.append(Row(lsn, body, _tags(tags), at_us))
    return rows, len(rows) == limit


def _get(connection: sqlite3.Connection, keys: Sequence[str]) -> dict[str, bytes | None]:
    found: dict[str, bytes | None] = {}
    for key in keys:
        row = connection.execute("SELECT value FROM log_key WHERE key = ?", (key,)).fetchone()
        found[key] = None if row is None else bytes(row[0])
    return found


def _tags(text: str) -> tuple[str, ...]:
    return tuple(text.split(_BETWEEN)) if text else ()


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Have SQLite's errors told as the log's."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if getattr(error, "sqlite_errorname", "") == "SQLITE_FULL":
            raise LogFull(f"{path}: {error}") from error
        raise LogUnavailable(f"{path}: {error}") from error
    except sqlite3.ProgrammingError as error:
        raise LogUnavailable(f"{path}: the log was closed") from error
    except sqlite3.DatabaseError as error:
        raise CorruptLog(f"{path}: {error}") from error
