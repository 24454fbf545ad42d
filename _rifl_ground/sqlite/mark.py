"""The mark in a SQLite file, by which another file that was copied over it is told.

SQLite does not notice a file that was copied over in place: pages that are in its ``-wal`` hide
the others, until they do not. So a row of the file has a random id and a number, which grows. What
the one file says of it, without the ``-wal``, never goes back.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from pathlib import Path
from typing import NamedTuple

from _rifl_ground.sqlite.failures import Replaced, name_of
from _rifl_ground.sqlite.opening import read_alone

TABLE = "rifl_file"
_MAKE = (
    "CREATE TABLE IF NOT EXISTS rifl_file "
    "(one INTEGER PRIMARY KEY CHECK (one = 1), id TEXT NOT NULL, number INTEGER NOT NULL)",
    "INSERT INTO rifl_file VALUES (1, lower(hex(randomblob(16))), 0) ON CONFLICT DO NOTHING",
)
_IS_THERE = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'rifl_file'"
_READ = "SELECT id, number FROM rifl_file"
_RAISE = "UPDATE rifl_file SET number = number + 1 RETURNING id, number"
# A checkpoint of another connection's may be writing the page just then.
_LOOKS = 20
# One that is half-way may keep the file from being read at all, after a VACUUM: it is waited for
# while it writes, and so much longer.
_STILL_S = 10.0
_BETWEEN_LOOKS_S = 0.005


class FoundMark(NamedTuple):
    """A mark that was found in a file."""

    id: str
    number: int


def read_mark(path: Path) -> FoundMark | None:
    """Return the mark of the one file, without its ``-wal``; None: none can be read."""
    try:
        # A checkpoint that is half-way, or that a full disk ended there, has said how many
        # pages there are before they are. SQLite reads such a file only with this.
        rows = read_alone(path, _READ, ["PRAGMA writable_schema=ON"])
    except sqlite3.Error:
        return None
    return _checked(rows[0]) if rows else None


class FileMark:
    """What is known of one file's mark. Any thread.

    With a WAL it is looked for in the one file after something wrote there, and raised by the next
    commit, so that the next checkpoint brings a higher number; an older copy has a lower one.
    Without a WAL every commit raises it, and a transaction that has the file's lock reads it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        # To be looked at: a path is made a name at each look.
        self._name = os.fsencode(path)
        # For a signal's handler that looks in the middle of that: what is noted is then lower.
        self._lock = threading.RLock()
        self._wal = True
        self._id: str | None = None
        # What the one file has at least; None until it is known to have a mark.
        self.number: int | None = None
        # What was raised last: with a WAL the one file may not have it yet.
        self._highest = 0
        # What changes with every write to the one file.
        self._seen: tuple[int, int] | None = None
        # Whether the next commit has to raise it.
        self.due = True

    def opened(self, connection: sqlite3.Connection, *, wal: bool) -> None:
        """Learn what the file has; again after it was closed, when it may not have gone back."""
        self._wal, self.due, self._seen = wal, True, None
        if connection.execute(_IS_THERE).fetchone()[0]:
            self._look_with(connection, known=not wal)
        elif self._id is not None:
            raise Replaced("another file was copied over it")
        if wal:
            self.look()

    def begun(self, connection: sqlite3.Connection) -> None:
        """Look at it with the file's lock; raises ``Replaced``."""
        if not self._wal and self.number is not None:
            self._look_with(connection, known=True)

    def write(self, connection: sqlite3.Connection) -> FoundMark | None:
        """Raise it if that is due, within a transaction that has the file's lock.

        Return what to tell ``committed`` if the transaction commits. Nothing is noted here: another
        thread may commit before this one does, and this one may roll back.
        """
        if not self.due:
            return None
        if self._id is None:
            for statement in _MAKE:
                connection.execute(statement)
        return _one(connection, _RAISE)

    def committed(self, raised: FoundMark | None) -> None:
        """Note that the transaction in which ``write`` raised it is on the disk."""
        if raised is not None:
            self._id, self._highest, self.due = raised.id, raised.number, not self._wal
            if not self._wal:
                self.number = raised.number

    def look(self) -> None:
        """Look at it where something wrote to the one file; raises ``Replaced``, ``OSError``."""
        found = os.stat(self._name)
        seen = found.st_size, found.st_mtime_ns
        if seen == self._seen or not self._wal:
            return
        with self._lock:
            alone = read_mark(self._path)
            if self.number is None and (alone is None or alone.id == self._id or not self._id):
                # It is in the WAL, if at all.
                if alone is not None:
                    self._id, self.number = alone
            else:
                self.number = self._waited_for(alone).number
            self._seen, self.due = seen, True

    def _look_with(self, connection: sqlite3.Connection, *, known: bool) -> None:
        """Look at it as at any other row. ``known``: that is what the one file says."""
        try:
            found = _one(connection, _READ)
        except sqlite3.OperationalError as error:
            if name_of(error) != "SQLITE_ERROR":
                raise
            found = None
        if found is None or self._id not in (None, found.id):
            raise Replaced("another file was copied over it")
        if found.number < max(self.number or 0, self._highest):
            raise Replaced("an older copy was copied over it, or its -wal is missing")
        self._id = found.id
        if known:
            self.number = found.number

    def _waited_for(self, found: FoundMark | None) -> FoundMark:
        """Return the mark of the one file, once it is there; raises ``Replaced``."""
        looks, written, since = 0, None, 0.0
        while True:
            if found is not None and found.id == self._id and found.number >= (self.number or 0):
                return found
            now, wrote = time.monotonic(), os.stat(self._name).st_mtime_ns
            if wrote != written:
                written, since = wrote, now
            looks += found is not None
            if looks >= _LOOKS or now - since >= _STILL_S:
                raise Replaced("something was copied over it")
            time.sleep(_BETWEEN_LOOKS_S)
            found = read_mark(self._path)


def _one(connection: sqlite3.Connection, statement: str) -> FoundMark | None:
    cursor = connection.cursor()
    # A user's connection can have another one.
    cursor.row_factory = None
    rows = cursor.execute(statement).fetchall()
    return _checked(rows[0]) if rows else None


def _checked(row: tuple[object, object]) -> FoundMark | None:
    # SQLite keeps values of any type, and a flipped bit makes one of another.
    found, number = row
    return FoundMark(found, number) if isinstance(found, str) and isinstance(number, int) else None
