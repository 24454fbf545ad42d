"""Statements that take many rows at once.

Each step of a statement gives up the interpreter's lock and has to get it back, in
competition with every call that runs: ``executemany`` does so for every row, and a
commit of sixteen rows waits sixteen times. One statement of sixteen rows waits once.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any

# A call whose outcome is not known, for people to look into, for so many seconds, and at most
# so many calls.
REMEMBER_UNKNOWN = "INSERT OR REPLACE INTO rifl_unknown VALUES (?, ?, ?, ?, ?)"
FORGET_UNKNOWN = (
    "DELETE FROM rifl_unknown WHERE since_unix_s < CAST(strftime('%s') AS INTEGER) - ? "
    "OR since_unix_s < (SELECT min(since_unix_s) FROM "
    "(SELECT since_unix_s FROM rifl_unknown ORDER BY since_unix_s DESC LIMIT ?))"
)

# Clients with a row, or with calls. Each id is found by the one before it, however many calls
# that has.
CLIENT_IDS = (
    "WITH RECURSIVE found(client_id) AS (SELECT min(client_id) FROM rifl_call UNION ALL "
    "SELECT (SELECT min(client_id) FROM rifl_call WHERE client_id > found.client_id) "
    "FROM found WHERE client_id IS NOT NULL) "
    "SELECT client_id FROM found WHERE client_id IS NOT NULL "
    "UNION SELECT client_id FROM rifl_client"
)

# In one statement. Every number up to the first has one of its own, so that a usual
# commit takes one step; all of them stay prepared. SQLite takes 32,766 parameters.
MOST_AT_ONCE = 32
_MANY = 64


# Each is itself only: they are looked up with every commit.
@dataclass(frozen=True, eq=False)
class RepeatedStatement:
    """SQL around a part that is repeated for each row: ``head row joint row ... tail``."""

    head: str
    row: str
    tail: str = ""
    joint: str = ", "

    def write(self, connection: sqlite3.Connection, rows: Sequence[tuple[Any, ...]]) -> None:
        """Execute it for all the rows, in their order, in as few steps as may be."""
        for some in _portions(rows):
            self.write_once(connection, some)

    def read(self, connection: sqlite3.Connection, rows: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Execute it for all the rows, in as few statements as may be; what they give."""
        found: list[Any] = []
        for some in _portions(rows):
            parameters = tuple(chain.from_iterable(some))
            found += connection.execute(_sql(self, len(some)), parameters).fetchall()
        return found

    def read_one(self, connection: sqlite3.Connection, row: tuple[Any, ...]) -> Any:
        """Execute it for one row; the first that it gives."""
        return connection.execute(_sql(self, 1), row).fetchone()

    def write_once(
        self,
        connection: sqlite3.Connection,
        rows: Sequence[tuple[Any, ...]],
        before: tuple[Any, ...] = (),
        after: tuple[Any, ...] = (),
    ) -> int:
        """Execute it in one step; how many rows changed.

        ``rows``: at most ``MOST_AT_ONCE``. ``before`` and ``after``: parameters of its head and
        its tail.
        """
        parameters = (*before, *chain.from_iterable(rows), *after)
        return connection.execute(_sql(self, len(rows)), parameters).rowcount


def _portions(rows: Sequence[tuple[Any, ...]]) -> Iterator[Sequence[tuple[Any, ...]]]:
    at, left = 0, len(rows)
    while left:
        size = _MANY if left >= _MANY else min(left, MOST_AT_ONCE)
        yield rows[at : at + size]
        at += size
        left -= size


@lru_cache(maxsize=256)
def _sql(statement: RepeatedStatement, size: int) -> str:
    rows = statement.joint.join([statement.row] * size)
    return f"{statement.head} {rows} {statement.tail}"
