"""Ranges of a log: what was committed between two LSNs, for readers that share it (DESIGN-LOG §16).

A range ends where an append does. Reading it again gives the same messages, on any machine, until
they are trimmed.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from sharedlog._core.entry import Entry, EntryKind, read_row
from sharedlog._core.following import append_at
from sharedlog._core.position import Position
from sharedlog._core.reading import Committed, Reader
from sharedlog._core.steps import Ends, Lsns, Read, Rows, Rule
from sharedlog._core.streams import commits_tag, stream_of

_COMMITS_AT_ONCE = 1000
# A range is read whole: of an append that a step cut the next one reads all again.
_PAGE = 5000


class Range(NamedTuple):
    """What one reader reads of a substream: commits above ``after``, through ``through``.

    ``behind``: of a commit that was delivered in part, the last message that was.
    """

    tag: str
    after: int
    through: int
    behind: Position | None = None


def last_offset(
    stream: str, after: int, most: int | None = None, most_bytes: int | None = None
) -> Rule[int]:
    """Return an LSN through which to read next; ``after`` if nothing was committed since.

    ``most``: about how many messages a range may have, counted by entries; one commit is never
    cut. ``most_bytes``: of their bodies, as far as they are the stream's.
    """
    tag = commits_tag(stream)
    if most is None and most_bytes is None:
        found: Rows = yield Read(after, 1, tag)
        if not found.rows:
            return after
        ends: Lsns = yield Ends()
        return ends.last
    end = at = after
    taken = size = 0
    while True:
        found = yield Read(at, _COMMITS_AT_ONCE, tag)
        for row in found.rows:
            entry = read_row(row)
            if entry.last_lsn <= end:
                continue
            taken += _messages(entry)
            if most_bytes is not None:
                size += yield from _bytes(stream, entry)
            over = (most is not None and taken > most) or (
                most_bytes is not None and size > most_bytes
            )
            if over and end > after:
                return end
            end = entry.last_lsn
            if over:
                return end
        if not found.rows or (most is not None and taken >= most):
            return end
        at = found.through


def split(tags: Sequence[str], after: int, through: int, entries: int) -> Rule[list[Range]]:
    """Return ranges that have it all: one a substream, or more where there are many entries."""
    pieces = max(1, -(-(through - after) // max(entries, 1)))
    bounds = [after]
    for piece in range(1, pieces):
        begin = yield from append_at(after + (through - after) * piece // pieces)
        if begin - 1 > bounds[-1]:
            bounds.append(begin - 1)
    bounds.append(through)
    return [Range(tag, low, high) for tag in tags for low, high in itertools.pairwise(bounds)]


class RangeReader:
    """Reads one range, a step at a time."""

    def __init__(self, of: Range, incarnation: str) -> None:
        """Nothing is asked of the log yet."""
        self._range = of
        self._reader = Reader(of.tag, incarnation, of.behind or of.after + 1, page=_PAGE)

    def read(self, limit: int) -> Rule[list[Committed]]:
        """Return about so many of its messages; none: that was all of them.

        Raises ``TrimmedLog``, ``LogForked``, ``CorruptLog``.
        """
        while self._reader.through < self._range.through:
            found = yield from self._reader.read(limit)
            messages = self._within(found.messages)
            if messages or len(messages) < len(found.messages):
                return messages
            if not found.messages:
                break
        return []

    def _within(self, messages: list[Committed]) -> list[Committed]:
        """Return those of the range; they come in the order of their commits."""
        after, through = self._range.after, self._range.through
        if not messages:
            return messages
        if after < messages[0].position.lsn and messages[-1].position.lsn <= through:
            return messages
        return [each for each in messages if after < each.position.lsn <= through]


def _bytes(stream: str, entry: Entry) -> Rule[int]:
    """Return about how many bytes of the stream a commit has."""
    begins = [begin for each in entry.decisions for begin in each.begins.values()]
    at = min(begins) - 1 if begins else entry.lsn - entry.index - 1
    size = 0
    while at < entry.last_lsn:
        rows: Rows = yield Read(at, _COMMITS_AT_ONCE)
        if not rows.rows:
            break
        size += sum(
            len(row.body)
            for row in rows.rows
            if row.lsn <= entry.last_lsn and any(stream_of(tag) == stream for tag in row.tags)
        )
        at = rows.rows[-1].lsn
    return size


def _messages(entry: Entry) -> int:
    if entry.kind is EntryKind.COMMITTED:
        return entry.count
    # Of a marker: what lies between it and where its spans began, at most.
    begins = [begin for each in entry.decisions for begin in each.begins.values()]
    return entry.lsn - min(begins) if begins else 1
