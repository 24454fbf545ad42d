"""Statements that take many rows at once.

Each step of a statement gives up the interpreter's lock and has to get it back, in
competition with every call that runs: ``executemany`` does so for every row, and a
commit of sixteen rows waits sixteen times. One statement of sixteen rows waits once.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple

__all__ = ["Statement"]

# Few, so that all of them stay prepared; SQLite takes 32,766 parameters.
_SIZES = (64, 16, 4, 1)


class Statement(NamedTuple):
    """SQL around a part that is repeated for each row: ``head row joint row ... tail``."""

    head: str
    row: str
    tail: str = ""
    joint: str = ", "

    def write(self, connection: sqlite3.Connection, rows: Sequence[tuple[Any, ...]]) -> None:
        """Execute it for all the rows, in their order, in as few steps as may be."""
        at, left = 0, len(rows)
        if left == 1:
            # A caller on its own.
            connection.execute(_sql(self, 1), rows[0])
            return
        for size in _SIZES:
            while left >= size:
                some = rows[at : at + size]
                connection.execute(_sql(self, size), tuple(chain.from_iterable(some)))
                at += size
                left -= size


@lru_cache(maxsize=64)
def _sql(statement: Statement, size: int) -> str:
    rows = statement.joint.join([statement.row] * size)
    return f"{statement.head} {rows} {statement.tail}"
