"""A follower: ``python -m examples.shared_log.follower URL NAME STREAM DATABASE``.

What it does with a message, and how far it is, it commits together, in a database of its own: so
each message has its effect once. The log keeps what it may ask for again (its hold).
"""

from __future__ import annotations

import signal
import sqlite3
import sys
import time
from pathlib import Path

import sharedlog
from examples.shared_log.work import PATIENCE

__all__ = ["main", "open_view"]

_SCHEMA = """
CREATE TABLE IF NOT EXISTS effect (
  number INTEGER PRIMARY KEY, substream INTEGER NOT NULL, text TEXT NOT NULL, at REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS place (substream INTEGER PRIMARY KEY, position TEXT NOT NULL);
"""


def open_view(path: Path) -> sqlite3.Connection:
    """Open a follower's database, which is made where there is none."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=30)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.executescript(_SCHEMA)
    return connection


def main() -> int:
    """Follow until SIGTERM."""
    url, name, stream, path = sys.argv[1:5]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    view = open_view(Path(path))
    with (
        sharedlog.open(url, timeout=PATIENCE) as log,
        log.follow(stream, name=name) as following,
    ):
        while True:
            if messages := following.poll(1.0):
                _take(view, messages)
                following.done(messages[-1])


def _take(view: sqlite3.Connection, messages: list[sharedlog.Message]) -> None:
    """Have the messages' effects, and where they end, in one commit."""
    view.execute("BEGIN IMMEDIATE")
    places = {
        substream: sharedlog.Position.parse(text)
        for substream, text in view.execute("SELECT substream, position FROM place")
    }
    for message in messages:
        place = places.get(message.substream)
        if place is not None and message.position <= place:
            # It was killed before the log knew that this one is done.
            continue
        places[message.substream] = message.position
        view.execute(
            "INSERT INTO effect (substream, text, at) VALUES (?, ?, ?)",
            (message.substream, message.text[:60], time.time()),
        )
    view.executemany(
        "INSERT INTO place VALUES (?, ?) "
        "ON CONFLICT (substream) DO UPDATE SET position = excluded.position",
        [(substream, str(place)) for substream, place in places.items()],
    )
    view.execute("COMMIT")


if __name__ == "__main__":
    sys.exit(main())
