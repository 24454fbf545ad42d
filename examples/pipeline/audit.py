"""The audit: the services' tables and the streams, compared with what was asked for.

It sums up for itself, and reads the services' databases with nothing but sqlite3.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Audit", "audit", "billed"]

_HOUR_S = 3600
Row = tuple[str | int, ...]


@dataclass(frozen=True, kw_only=True)
class Audit:
    """What was counted; what is wrong, at any of the four places, is no row of what was wanted."""

    calls: int
    events: int
    rows: int
    deliveries: int
    duplicates: int
    missing: int
    wrong: int


def audit(
    asked: Sequence[Row],
    last: Row,
    rides: Path,
    events: Iterable[Row],
    rows: Iterable[Row],
    billing: Path,
) -> Audit:
    """Compare each place with what should be there.

    ``asked``, ``events``: id, rider, end and cents of rides; ``last``: one whose bill is not due;
    ``rows``: rider, hour, rides and cents of bills. ``rides``, ``billing``: services' databases.
    """
    wanted = Counter([*asked, last])
    bills = Counter(billed(asked))
    places: Mapping[str, tuple[Counter[Row], Counter[Row]]] = {
        "calls": (wanted, _table(rides, "SELECT id, rider, ended, cents FROM ride")),
        "events": (wanted, Counter(events)),
        "rows": (bills, Counter(rows)),
        "deliveries": (bills, _table(billing, "SELECT rider, hour, rides, cents FROM charge")),
    }
    duplicates = missing = wrong = 0
    for should, found in places.values():
        missing += (should - found).total()
        for row, more in (found - should).items():
            if row in should:
                duplicates += more
            else:
                wrong += more
    counts = {name: found.total() for name, (_, found) in places.items()}
    return Audit(**counts, duplicates=duplicates, missing=missing, wrong=wrong)


def billed(rides: Iterable[Row]) -> list[Row]:
    """Return what riders pay for their rides, by the hour."""
    sums: dict[tuple[str, int], tuple[int, int]] = {}
    for _, rider, ended, cents in rides:
        at = str(rider), int(ended) // _HOUR_S * _HOUR_S
        count, total = sums.get(at, (0, 0))
        sums[at] = count + 1, total + int(cents)
    return [(*at, *both) for at, both in sums.items()]


def _table(path: Path, query: str) -> Counter[Row]:
    with contextlib.closing(sqlite3.connect(path, timeout=30)) as connection:
        return Counter(connection.execute(query).fetchall())
