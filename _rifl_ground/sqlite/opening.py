"""The one place where connections to SQLite's files are made, and what they are told."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

_Made = TypeVar("_Made", bound=sqlite3.Connection)
# See docs/sqlite.md, which judges every setting of SQLite's. EXTRA: in a rollback journal's modes
# FULL does not sync the directory, and a commit can be taken back by a loss of power; with a WAL
# they are the same.
_SETTINGS = (
    "PRAGMA synchronous=EXTRA",
    "PRAGMA fullfsync=ON",
    "PRAGMA checkpoint_fullfsync=ON",
    "PRAGMA mmap_size=0",
)


def connect(
    path: Path,
    factory: type[_Made],
    *,
    busy_s: float,
    create: bool = False,
    any_thread: bool = True,
    statements: int = 128,
) -> _Made:
    """Return a connection whose commits are on the disk when they return.

    It is in autocommit mode: transactions are begun and ended by our SQL. ``create``: the file is
    made where there is none. ``busy_s``: how long a statement waits for other connections.
    ``statements``: how many of them are kept prepared.
    """
    connection: _Made = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={'rwc' if create else 'rw'}&cache=private",
        uri=True,
        timeout=busy_s,
        isolation_level=None,
        check_same_thread=not any_thread,
        factory=factory,
        cached_statements=statements,
    )
    try:
        for setting in _SETTINGS:
            connection.execute(setting)
    except BaseException:
        sqlite3.Connection.close(connection)
        raise
    return connection


def reading(path: Path, *, busy_s: float = 5.0, alone: bool = False) -> sqlite3.Connection:
    """Return a connection that only reads.

    ``alone``: it reads the one file, without its ``-wal``, and takes no lock.
    """
    return sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=ro&cache=private{'&immutable=1' if alone else ''}",
        uri=True,
        timeout=busy_s,
        isolation_level=None,
    )


def read_alone(path: Path, query: str, settings: Iterable[str] = ()) -> list[Any]:
    """Return what the one file says without its ``-wal``, whose pages hide what is beneath."""
    with closing(reading(path, alone=True)) as connection:
        for setting in settings:
            connection.execute(setting)
        return connection.execute(query).fetchall()
