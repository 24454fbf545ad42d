"""Table of a target, with what it took: its own, which shares nothing with ``sharedlog``."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from chaos.run.streams import STREAMS, SUBSTREAMS

__all__ = ["INSERT", "TAKE", "create", "told"]

# The method that players call.
TAKE = "/chaos.Target/Take"
INSERT = (
    "INSERT INTO taken (stream, substream, lsn, ordinal, message, key) VALUES (?, ?, ?, ?, ?, ?)"
)


def create(database: Path) -> None:
    """Make the table, empty."""
    with contextlib.closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute(
            "CREATE TABLE taken (entry INTEGER PRIMARY KEY AUTOINCREMENT, stream TEXT, "
            "substream INTEGER, lsn INTEGER, ordinal INTEGER, message TEXT, key TEXT)"
        )


def told(name: str, database: Path) -> Iterator[dict[str, Any]]:
    """Yield what a target took, as events of ``chaos.check.log_history``.

    To its rules each of its substreams is a follower, which began before the first message.
    """
    with contextlib.closing(sqlite3.connect(database, timeout=30)) as connection:
        rows = connection.execute(
            "SELECT stream, substream, lsn, ordinal, message, key FROM taken ORDER BY entry"
        ).fetchall()
    for stream in STREAMS:
        for number in range(SUBSTREAMS):
            who = f"{name} of {stream}/{number}"
            behind = {number: [0, 0]}
            begun = {"stream": stream, "substreams": [number], "hold": False, "behind": behind}
            yield {"event": "follow", "follower": who, **begun}
            for at, substream, lsn, ordinal, message, key in rows:
                if (at, substream) == (stream, number):
                    found = {"lsn": lsn, "ordinal": ordinal, "message": message, "key": key}
                    yield {"event": "read", "follower": who, "substream": number, **found}
