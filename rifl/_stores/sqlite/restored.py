"""Restored files: a backup that is taken for the store from now on (DESIGN §5)."""

from __future__ import annotations

import json
import secrets
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from lease_server._storage import GRANTS_PER_RESTORE, RANDOM_BITS
from rifl._stores.sqlite.file_guard import COMMITS, RAISE_COMMITS
from rifl._stores.sqlite.ownership import Ownership
from rifl._stores.sqlite.schema import accept_copy, connect, get_meta, set_meta


def restored(path: Path) -> str:
    """End all clients and sessions of the file, under a new id; see ``Inspection.restored``.

    The databases that atomic methods name follow, where they are: what is in them is of the
    same clients. Last of all the file is taken for what the store holds, so that a crash in
    between leaves it refused. Raises ``StoreLocked`` while a server has one of them open.
    """
    fresh = secrets.token_hex(16)
    with _opened(path) as connection:
        others = [Path(name) for name in json.loads(str(get_meta(connection, "databases") or "[]"))]
        for other in others:
            if other.exists():
                with _opened(other) as named:
                    _take(named, other, fresh)
        _take(connection, path, fresh)
    return fresh


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    ownership = Ownership(path, 0.0)
    try:
        with closing(connect(path)) as connection:
            yield connection
    finally:
        ownership.release()


def begin_anew(connection: sqlite3.Connection, store_id: str) -> None:
    """End all clients and sessions that the database knows, in one transaction."""
    connection.execute("BEGIN IMMEDIATE")
    # The rows that go may tell how much was committed.
    connection.execute(RAISE_COMMITS, connection.execute(COMMITS).fetchone())
    connection.execute("DELETE FROM rifl_keys WHERE client_id >= 0")
    connection.execute("DELETE FROM rifl_call WHERE client_id >= 0")
    connection.execute("DELETE FROM rifl_client WHERE client_id >= 0")
    connection.execute("DELETE FROM rifl_lease")
    connection.execute(
        "UPDATE rifl_session SET state='closed', changed_at_unix_s=? WHERE state='open'",
        (time.time(),),
    )
    next_id = int(get_meta(connection, "next_client_id") or 1)
    set_meta(connection, "next_client_id", next_id + (GRANTS_PER_RESTORE << RANDOM_BITS))
    set_meta(connection, "incarnation", int(get_meta(connection, "incarnation") or 0) + 1)
    set_meta(connection, "store_id", store_id)
    connection.execute("COMMIT")


def _take(connection: sqlite3.Connection, path: Path, store_id: str) -> None:
    begin_anew(connection, store_id)
    accept_copy(path, connection)
