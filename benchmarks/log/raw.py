"""Rows in a SQLite file by hand: one commit for all that wait, nothing else."""

from __future__ import annotations

import itertools
import sqlite3
import threading
from pathlib import Path

__all__ = ["RawRows"]

_SUBSTREAMS = 8


class RawRows:
    """A table, and the group commit that one writes for it. Any thread.

    ``indexed``: each row is of one of eight substreams, which an index finds, as a follower of
    one of them needs.
    """

    def __init__(self, path: Path, *, indexed: bool) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        for statement in (
            "PRAGMA journal_mode = WAL",
            "PRAGMA synchronous = FULL",
            "CREATE TABLE row (id INTEGER PRIMARY KEY, substream INTEGER, body BLOB NOT NULL)",
            *(["CREATE INDEX row_of ON row (substream, id)"] if indexed else []),
        ):
            self._connection.execute(statement)
        self._turns = itertools.count()
        self._changed = threading.Condition()
        self._waiting: list[tuple[int, bytes]] = []
        self._writing = False
        self._asked = self._done = 0

    def insert(self, body: bytes) -> None:
        """Insert a row; it is on the disk when this returns."""
        with self._changed:
            self._asked += 1
            mine = self._asked
            self._waiting.append((next(self._turns) % _SUBSTREAMS, body))
            while self._writing and self._done < mine:
                self._changed.wait()
            if self._done >= mine:
                return
            self._writing = True
            together, self._waiting = self._waiting, []
            through = self._asked
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany("INSERT INTO row (substream, body) VALUES (?, ?)", together)
        self._connection.execute("COMMIT")
        with self._changed:
            self._writing, self._done = False, through
            self._changed.notify_all()

    def close(self) -> None:
        """Close the file."""
        self._connection.close()
