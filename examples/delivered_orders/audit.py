"""The audit: what the services did, read from their tables, compared with what was ordered."""

from __future__ import annotations

import contextlib
import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

__all__ = ["Audit", "audit", "done_by"]

_EFFECTS = "SELECT name, substream, lsn, ordinal, at_ns FROM effect ORDER BY number"
_COUNTS = "SELECT (SELECT count(*) FROM effect), (SELECT count(DISTINCT name) FROM naive_effect)"


@dataclass(frozen=True, kw_only=True)
class Audit:
    """What was counted, over all services. ``longest_pause_s``: of one, between two effects."""

    orders: int
    ordered_twice: int
    deliveries: int
    duplicates: int
    missing: int
    never_ordered: int
    out_of_order: int
    naive_duplicates: int
    naive_missing: int
    longest_pause_s: float

    @property
    def wrong(self) -> int:
        """What must be nothing."""
        return (
            self.ordered_twice
            + self.duplicates
            + self.missing
            + self.never_ordered
            + self.out_of_order
        )


def audit(wanted: Sequence[str], ordered: Sequence[str], views: Mapping[str, Path]) -> Audit:
    """Compare what callers were told with the orders, and these with each service's effects."""
    duplicates = missing = never = disorder = deliveries = naive_duplicates = naive_missing = 0
    longest_ns = 0
    asked = set(ordered)
    for path in views.values():
        rows = _rows(path, _EFFECTS)
        names = Counter(row[0] for row in rows)
        deliveries += len(rows)
        duplicates += sum(names.values()) - len(names)
        missing += len(asked - set(names))
        never += len(set(names) - asked)
        newest: dict[int, tuple[int, int]] = {}
        for _, substream, lsn, ordinal, _ in rows:
            disorder += (lsn, ordinal) <= newest.get(substream, (0, -1))
            newest[substream] = (lsn, ordinal)
        times = sorted(row[4] for row in rows)
        longest_ns = max([longest_ns, *(later - earlier for earlier, later in pairwise(times))])
        naive = Counter(name for (name,) in _rows(path, "SELECT name FROM naive_effect"))
        naive_duplicates += sum(naive.values()) - len(naive)
        naive_missing += len(asked - set(naive))
    return Audit(
        orders=len(ordered),
        ordered_twice=len(ordered) - len(asked) + len(asked ^ set(wanted)),
        deliveries=deliveries,
        duplicates=duplicates,
        missing=missing,
        never_ordered=never,
        out_of_order=disorder,
        naive_duplicates=naive_duplicates,
        naive_missing=naive_missing,
        longest_pause_s=longest_ns / 1e9,
    )


def done_by(path: Path) -> tuple[int, int]:
    """Return how many effects a service has so far: of the player's calls, of the naive ones."""
    (found,) = _rows(path, _COUNTS)
    return found[0], found[1]


def _rows(path: Path, query: str) -> list[Any]:
    with contextlib.closing(sqlite3.connect(path, timeout=30)) as connection:
        return connection.execute(query).fetchall()
