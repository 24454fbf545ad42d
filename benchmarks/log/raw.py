"""Rows in a SQLite file by hand: one commit for all that wait, nothing else."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

__all__ = ["RawRows"]


class RawRows:
    """A table, and the group commit that one writes for it. Any thread."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        for statement in (
            "PRAGMA journal_mode = WAL",
            "PRAGMA synchronous = FULL",
            "CREATE TABLE row (id INTEGER PRIMARY KEY, body BLOB NOT NULL)",
        ):
            self._connection.execute(statement)
        self._changed = threading.Condition()
        self._waiting: list[tuple[bytes]] = []
        self._writing = False
        self._asked = self._done = 0

    def insert(self, body: bytes) -> None:
        """Insert a row; it is on the disk when this returns."""
        with self._changed:
            self._asked += 1
            mine = self._asked
            self._waiting.append((body,))
            while self._writing and self._done < mine:
                self._changed.wait()
            if self._done >= mine:
                return
            self._writing = True
            together, self._waiting = self._waiting, []
            through = self._asked
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany("INSERT INTO row (body) VALUES (?)", together)
        self._connection.execute("COMMIT")
        with self._changed:
            self._writing, self._done = False, through
            self._changed.notify_all()

    def close(self) -> None:
        """Close the file."""
        self._connection.close()
