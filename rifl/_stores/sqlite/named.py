"""Which other databases the records of a store's atomic methods are in (DESIGN §6)."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection
from pathlib import Path

from rifl._stores.errors import WrongDatabase
from rifl._stores.sqlite.schema import get_meta, set_meta

_NAME = "databases"


def note_named(connection: sqlite3.Connection, path: Path, named: Collection[str]) -> None:
    """Note the databases named now, in the store's own, which knows all clients.

    Raises ``WrongDatabase`` if one that was named before is not any more, while a client
    of that time is known: records in it would not be found, and a retry would run again.
    """
    before = set(json.loads(str(get_meta(connection, _NAME) or "[]")))
    missing = sorted(before - set(named))
    if missing and connection.execute("SELECT 1 FROM rifl_client LIMIT 1").fetchone():
        raise WrongDatabase(
            f"records of calls that {path} knows are in {', '.join(missing)}, which no atomic "
            "method names any more: their retries would run again. Name it until the clients of "
            "that time are over (rifl inspect shows none)"
        )
    if before != set(named):
        set_meta(connection, _NAME, json.dumps(sorted(named)))
