"""Filters of a batch query that say which substreams and LSNs have to be read at all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from pyspark.sql import datasource

from sharedlog._core.errors import InvalidRequest
from sharedlog._core.position import Position
from sharedlog._core.ranges import Range
from sharedlog._core.streams import substream_number, substream_of

# From PySpark 4.1 on.
_EQUAL = tuple(
    kind for name in ("EqualTo", "EqualNullSafe") if (kind := getattr(datasource, name, None))
)
_ABOVE: Any = getattr(datasource, "GreaterThan", ())
_FROM: Any = getattr(datasource, "GreaterThanOrEqual", ())
_BELOW: Any = getattr(datasource, "LessThan", ())
_UNTIL: Any = getattr(datasource, "LessThanOrEqual", ())
_IN: Any = getattr(datasource, "In", ())


@dataclass(frozen=True, slots=True)
class Selection:
    """What filters leave: LSNs of commits, substreams, keys, and what was appended after a time.

    ``substreams``, ``keys``: None for all.
    """

    first: int = 0
    last: int | None = None
    substreams: frozenset[int] | None = None
    keys: frozenset[bytes] | None = None
    since: datetime | None = None

    def has(self, tag: str, substreams: int) -> bool:
        """Whether a substream may have something of it."""
        at = substream_number(tag)
        if self.substreams is not None and at not in self.substreams:
            return False
        return self.keys is None or any(substream_of(key, substreams) == at for key in self.keys)

    def reaches(self, of: Range) -> bool:
        """Whether a range may have something of it."""
        return of.through >= self.first and (self.last is None or of.after < self.last)


def wanted_by(filters: Iterable[Any]) -> Selection:
    """Return what these filters, all of them, leave; what is not understood leaves all."""
    wanted = Selection()
    for each in filters:
        attribute: Any = getattr(each, "attribute", ())
        if len(attribute) != 1:
            continue
        value = getattr(each, "value", None)
        wanted = _narrowed(wanted, attribute[0], each, value)
    return wanted


def _narrowed(wanted: Selection, column: str, each: Any, value: Any) -> Selection:
    among: tuple[Any, ...] = (value,) if isinstance(each, _EQUAL) else ()
    if _IN and isinstance(each, _IN):
        among = tuple(each.value)
    if column == "substream" and among and all(isinstance(one, int) for one in among):
        mine = frozenset(among)
        return replace(
            wanted,
            substreams=mine if wanted.substreams is None else wanted.substreams & mine,
        )
    if column == "key" and among and all(isinstance(one, bytes | bytearray) for one in among):
        keys = frozenset(bytes(one) for one in among)
        return replace(wanted, keys=keys if wanted.keys is None else wanted.keys & keys)
    if column == "lsn" and isinstance(value, int):
        return _between(wanted, each, value)
    if column == "position" and isinstance(value, str) and isinstance(each, _EQUAL):
        try:
            return _between(wanted, each, Position.parse(value).lsn)
        except InvalidRequest:
            # No message has it, which Spark finds by itself.
            return wanted
    timed = isinstance(value, datetime) and value.tzinfo is not None
    if column == "append_time" and timed and isinstance(each, (*_EQUAL, _ABOVE, _FROM)):
        # A place by time is behind what was appended then.
        behind = value if isinstance(each, _ABOVE) else value - timedelta(microseconds=1)
        since = behind if wanted.since is None else max(wanted.since, behind)
        return replace(wanted, since=since)
    return wanted


def _between(wanted: Selection, each: Any, lsn: int) -> Selection:
    first, last = wanted.first, wanted.last
    if isinstance(each, (*_EQUAL, _ABOVE, _FROM)):
        first = max(first, lsn)
    if isinstance(each, (*_EQUAL, _BELOW, _UNTIL)):
        last = lsn if last is None else min(last, lsn)
    return replace(wanted, first=first, last=last)
