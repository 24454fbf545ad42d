"""Committed reads: each message once, in the order of what committed it (DESIGN-LOG §13, C3, C4).

A reader needs no state: a marker says where its spans began, and they are read again. A bounded
ring of what was pending saves that second read where the span is short.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sharedlog._core.entry import Entry, EntryKind, Row, checksum_of, parsed, read_row
from sharedlog._core.errors import CorruptLog, LogForked
from sharedlog._core.position import Position
from sharedlog._core.steps import Read, Rows, Rule
from sharedlog._core.streams import substream_number
from sharedlog._core.whole import read_trimmed

_MOST_ROWS = 1000
RING_ENTRIES, RING_BYTES = 10_000, 4 << 20


class State(enum.Enum):
    """What became of a message; by default followers see only committed ones."""

    COMMITTED = "committed"
    PENDING = "pending"
    ROLLED_BACK = "rolled back"


class Committed(NamedTuple):
    """A message that was committed, its envelope still in bytes."""

    position: Position
    tag: str
    lsn: int
    producer: int
    seq: int
    envelope: bytes
    at_us: int
    state: State = State.COMMITTED


class ReadBatch(NamedTuple):
    """What a read found: whole commits, and through which LSN there is nothing else."""

    messages: list[Committed]
    through: int


# What a named tuple's own function does, without that: a third less, of what following makes
# twice for each message.
_new = tuple.__new__
# An enumeration's member is looked up each time.
_DONE = State.COMMITTED


class PendingRing:
    """The newest pending entries of one substream, and the LSN above which it has them all."""

    def __init__(self, entries: int = RING_ENTRIES, most_bytes: int = RING_BYTES) -> None:
        """``entries``: how many it keeps; 0: every span is read again."""
        self._most = entries
        self._most_bytes = most_bytes
        self._bytes = 0
        self._kept: deque[Entry] = deque()
        self._above: int | None = None

    def begin(self, after: int) -> None:
        """Reading goes on above this LSN: what was before it is not known."""
        self._kept.clear()
        self._bytes = 0
        self._above = after

    def add(self, entry: Entry) -> None:
        """Keep a pending entry; the oldest make room."""
        kept = self._kept
        kept.append(entry)
        self._bytes += len(entry.message)
        while len(kept) > self._most or (self._bytes > self._most_bytes and kept):
            oldest = kept.popleft()
            self._bytes -= len(oldest.message)
            self._above = oldest.lsn

    def spans(self, begins: Mapping[int, int]) -> list[Entry] | None:
        """Return what producers have pending from where theirs begins; None: it lacks some."""
        first = min(begins.values())
        if self._above is None or first <= self._above:
            return None
        found: list[Entry] = []
        for entry in reversed(self._kept):
            if entry.lsn < first:
                break
            if begins.get(entry.producer, entry.lsn + 1) <= entry.lsn:
                found.append(entry)
        found.reverse()
        return found


def verify(after: Position) -> Rule[Entry]:
    """Return the entry that a position names; raises ``LogForked`` if this log has another there.

    ``TrimmedLog`` if it was trimmed.
    """
    return check_at(after, (yield Read(after.lsn - 1, 1)))


def check_at(after: Position, rows: Rows) -> Entry:
    """Return the entry that a position names, which was read; raises ``LogForked``."""
    entry = read_row(rows.rows[0]) if rows.rows else None
    if entry is None or (entry.lsn, entry.checksum) != (after.lsn, after.checksum):
        raise LogForked(
            f"{after} is not in this log: it was restored from an older copy, or the "
            "position is of another one"
        )
    return entry


def place_at(lsn: int, incarnation: str) -> Rule[Position | None]:
    """Return the position behind everything through ``lsn``.

    Its substream is 0: the caller says of which one, which has no message in that commit. None:
    ``lsn`` does not end an append.
    """
    rows: Rows = yield Read(lsn - 1, 1)
    entry = read_row(_at(rows, lsn))
    if entry.last_lsn != lsn:
        return None
    return Position(lsn, 0, entry.checksum, incarnation, 0)


class Reader:
    """Reads one substream; one at a time. It can begin anywhere, and forget itself.

    ``start``: the position of the last message that is not wanted again, or the LSN from which
    on commits are wanted, the first of an append; None: the beginning of what is whole.
    """

    def __init__(
        self,
        tag: str,
        incarnation: str,
        start: Position | int | None = None,
        *,
        ring: int = RING_ENTRIES,
        ring_bytes: int = RING_BYTES,
        page: int = _MOST_ROWS,
    ) -> None:
        """Nothing is read yet. ``page``: how many rows a step reads at most, or one append."""
        self._tag = tag
        self._substream = substream_number(tag)
        self._incarnation = incarnation
        self._start = start
        # What is at or before it is not wanted; None once reading is past it.
        self._after = start if isinstance(start, Position) else None
        self._ring = PendingRing(ring, ring_bytes)
        self._page = page
        # Through which LSN everything was read, once it is known where to begin.
        self._through: int | None = None
        # Where a read began that has not ended, and what it did not want.
        self._broken: tuple[int, Position | None] | None = None
        if isinstance(start, Position):
            start.check_incarnation(incarnation)

    @property
    def tag(self) -> str:
        """The substream's."""
        return self._tag

    @property
    def through(self) -> int:
        """Through which LSN it has returned everything; 0 before it began."""
        # What a read took that broke off was not returned.
        return self._at if self._broken is None else self._broken[0]

    @property
    def _at(self) -> int:
        return self._through or 0

    def begin(self) -> Rule[None]:
        """Go to where it begins; raises ``LogForked``, ``TrimmedLog``. Once is enough."""
        if self._through is not None:
            return
        start = self._start
        if isinstance(start, Position):
            # The begin of its commit: the rest of that may be wanted.
            entry = yield from verify(start)
            self._through = entry.lsn - entry.index - 1
        else:
            trimmed = yield from read_trimmed()
            if start is not None:
                trimmed.check(start)
            self._through = (trimmed.whole if start is None else start) - 1
        self._ring.begin(self._through)

    def read(self, limit: int) -> Rule[ReadBatch]:
        """Read committed messages: about ``limit``, since a read never stops inside a commit.

        An empty batch: there are none through ``ReadBatch.through``. Raises ``LogForked`` if the
        position is not in this log, ``CorruptLog``, and ``TrimmedLog`` before it returns
        anything of a commit that is not whole. After any error the next read begins where this
        one did.
        """
        yield from self.begin()
        if self._broken is not None:
            # What was taken and not returned is read again; the ring may have half of it.
            self._through, self._after = self._broken
            self._ring.begin(self._at)
        self._broken = self._at, self._after
        found = yield from self._read(limit)
        self._broken = None
        return found

    def _read(self, limit: int) -> Rule[ReadBatch]:
        messages: list[Committed] = []
        doubled = 1
        while len(messages) < limit:
            before = self._at
            most = min(limit - len(messages), self._page) * doubled
            found: Rows = yield Read(before, most, self._tag)
            messages += yield from self.feed(found.rows, found.through)
            if not found.rows:
                break
            # One append may have more entries than were read: then they are read together.
            doubled = 1 if self._at > before else 2 * doubled
        yield from check_whole(messages)
        return ReadBatch(messages, self._at)

    def feed(self, rows: Sequence[Row], through: int) -> Rule[list[Committed]]:
        """Take the rows above ``self.through`` with the tag, all of them through an LSN.

        Returns what they commit. An append whose entries are not all there yet is left for the
        next time. Its driver calls ``check_whole`` before anything of it is delivered.
        """
        found: list[Committed] = []
        commit = ordinal = producer = seq = checksum = 0
        tag, incarnation, substream = self._tag, self._incarnation, self._substream
        for row in rows:
            lsn, body, _, at_us = row
            data = parsed(body)
            if data is None:
                entry = read_row(row)
                if entry.last_lsn > through:
                    through = max(self._at, lsn - entry.index - 1)
                    break
                found += yield from self._taken(entry)
                continue
            # The last entry names the commit, and may be of another substream.
            first = lsn - data.index
            last = first + data.count - 1
            if last != commit:
                if last > through:
                    through = max(self._at, first - 1)
                    break
                commit, ordinal = last, 0
                # All entries of an append say the same.
                producer, seq = data.producer, data.seq
                checksum = data.last_checksum if last > lsn else checksum_of(body)
            place = _new(Position, (last, ordinal, checksum, incarnation, substream))
            message = data.message
            found.append(_new(Committed, (place, tag, lsn, producer, seq, message, at_us, _DONE)))
            ordinal += 1
        self._through = through
        after = self._after
        if after is not None:
            begun = (after.lsn, after.ordinal)
            found = [each for each in found if each.position[:2] > begun]
            if through > after.lsn:
                self._after = None
        return found

    def _taken(self, entry: Entry) -> Rule[list[Committed]]:
        """Take an entry that is not committed by its own append."""
        if entry.kind is EntryKind.PENDING:
            self._ring.add(entry)
            return []
        if entry.kind is EntryKind.ROLLBACK:
            return []
        tag = self._tag
        begins = {each.producer: each.begins[tag] for each in entry.decisions if tag in each.begins}
        if not begins:
            return []
        return self._placed((yield from self._spans(begins, entry.lsn)), entry.lsn, entry.checksum)

    def _spans(self, begins: Mapping[int, int], end: int) -> Rule[list[Entry]]:
        """Return what these producers have pending below an LSN: of many tasks read once."""
        kept = self._ring.spans(begins)
        if kept is not None:
            return kept
        found: list[Entry] = []
        after = min(begins.values()) - 1
        while after < end - 1:
            rows: Rows = yield Read(after, _MOST_ROWS, self._tag)
            for row in rows.rows:
                if row.lsn >= end:
                    break
                entry = read_row(row)
                begin = begins.get(entry.producer)
                if entry.kind is EntryKind.PENDING and begin is not None and entry.lsn >= begin:
                    found.append(entry)
            if rows.through <= after:
                raise CorruptLog(f"the log ends at {after}, before a marker at {end}")
            after = rows.through
        return found

    def _placed(self, entries: Sequence[Entry], lsn: int, checksum: int) -> list[Committed]:
        tag, incarnation, substream = self._tag, self._incarnation, self._substream
        found: list[Committed] = []
        for ordinal, entry in enumerate(entries):
            place = _new(Position, (lsn, ordinal, checksum, incarnation, substream))
            told = (entry.lsn, entry.producer, entry.seq, entry.message, entry.at_us, _DONE)
            found.append(_new(Committed, (place, tag, *told)))
        return found


def check_whole(messages: Sequence[Committed]) -> Rule[None]:
    """Raise ``TrimmedLog`` unless these messages' commits are whole, the first one's lowest.

    Asked after they were read: rows are removed once they are declared trimmed.
    """
    if messages:
        trimmed = yield from read_trimmed()
        trimmed.check(messages[0].position.lsn)


def _at(rows: Rows, lsn: int) -> Row:
    if not rows.rows or rows.rows[0].lsn != lsn:
        raise CorruptLog(f"LSN {lsn} is missing")
    return rows.rows[0]
