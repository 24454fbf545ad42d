"""Rows of a log in etcd, read a page at a time."""

from __future__ import annotations

from collections.abc import Iterator

from sharedlog._core.entry import Row
from sharedlog._core.errors import CorruptLog, TrimmedLog
from sharedlog._core.steps import Rows
from sharedlog._engines.engine import READ_BYTES
from sharedlog._engines.etcd.calls import get, scan
from sharedlog._engines.etcd.connection import EtcdConnection, Facts
from sharedlog._engines.etcd.keys import AppendPlace, after_all
from sharedlog._engines.etcd.records import unpack

# Appends a page: few at first, since a large one is as much as a request may be.
_FIRST_PAGE = 16
_LARGEST_PAGE = 100
_SMALL_BYTES = 1 << 20


class _Found:
    """Rows, up to a limit and a bound of bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self.rows: list[Row] = []

    @property
    def full(self) -> bool:
        """Whether there is room for no more: what follows is not looked at."""
        return len(self.rows) == self._limit

    def add(self, row: Row) -> bool:
        """Add a row; whether there was room."""
        self._size += len(row.body)
        if self.full or (self.rows and self._size > READ_BYTES):
            return False
        self.rows.append(row)
        return True

    def cut(self) -> Rows:
        """Return what was found, where there may be more."""
        return Rows(self.rows, self.rows[-1].lsn)


class Reading:
    """Reads one log's rows. Any thread."""

    def __init__(self, log: EtcdConnection) -> None:
        self._log = log

    def read(self, after: int, limit: int, tag: str | None) -> Rows:
        """Return rows with LSN above ``after``, with the tag if one is given."""
        found = _Found(limit)
        return self._all(after, found) if tag is None else self._tagged(after, found, tag)

    def _all(self, after: int, found: _Found) -> Rows:
        keys, at, page = self._log.keys, after, _FIRST_PAGE
        while True:
            facts, (there,) = self._log.read(scan(keys.from_lsn(at + 1), keys.log_end, page))
            tail = facts.head.tail
            if not _reaches(facts, at, found):
                return found.cut()
            began = at
            for kv in there.kvs:
                if found.full:
                    return found.cut()
                place = AppendPlace.read(kv.key)
                # One that a reader or a trim stands amid of begins before.
                if place.first > at + 1 or place.last > tail or (at > began and place.first <= at):
                    raise CorruptLog(f"entries behind LSN {at} are missing")
                for row in unpack(place, kv.value):
                    if row.lsn > at and not found.add(row):
                        return found.cut()
                at = place.last
            if at >= tail:
                return Rows(found.rows, max(at, tail))
            if at == began:
                raise CorruptLog(f"entries behind LSN {at} are missing")
            page = _next_page(page, sum(len(kv.value) for kv in there.kvs))

    def _tagged(self, after: int, found: _Found, tag: str) -> Rows:
        keys, at, page = self._log.keys, after, _FIRST_PAGE
        first = keys.tag(tag)
        while True:
            asked = scan(first + b"%016x" % (at + 1), after_all(first), page, keys_only=True)
            facts, (listed,) = self._log.read(asked)
            if not _reaches(facts, at, found):
                return found.cut()
            places = [AppendPlace.read(kv.key) for kv in listed.kvs]
            size = 0
            for place, value in self._values(places):
                if found.full:
                    return found.cut()
                if value is None:
                    facts, _ = self._log.read()
                    if not _reaches(facts, at, found):
                        return found.cut()
                    raise CorruptLog(f"the append that ends at LSN {place.last} is missing")
                size += len(value)
                rows = [row for row in unpack(place, value) if tag in row.tags]
                if not rows:
                    raise CorruptLog(f"an entry is listed under the tag {tag!r} of another")
                for row in rows:
                    if row.lsn > at and not found.add(row):
                        return found.cut()
                at = place.last
            if len(places) < page:
                return Rows(found.rows, max(after, facts.head.tail))
            page = _next_page(page, size)

    def _values(self, places: list[AppendPlace]) -> Iterator[tuple[AppendPlace, bytes | None]]:
        if not places:
            return
        _, found = self._log.read(*(get(self._log.keys.append(place)) for place in places))
        for place, one in zip(places, found, strict=True):
            yield place, one.kvs[0].value if one.kvs else None


def _reaches(facts: Facts, at: int, found: _Found) -> bool:
    """Whether what follows is still there; raises ``TrimmedLog`` if nothing was found before."""
    if at + 1 >= facts.first:
        return True
    if found.rows:
        return False
    raise TrimmedLog(f"what follows LSN {at} was trimmed", facts.first)


def _next_page(page: int, size: int) -> int:
    return min(2 * page, _LARGEST_PAGE) if size < _SMALL_BYTES else page
