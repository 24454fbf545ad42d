"""Committed reads: each message once, in the order of what committed it (DESIGN-LOG §13, C3, C4).

A reader needs no state: a marker says where its spans began, and they are read again. A bounded
ring of what was pending saves that second read where the span is short.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from sharedlog._core.entry import Decision, Entry, Kind, read_row
from sharedlog._core.errors import CorruptLog, LogForked
from sharedlog._core.position import Position
from sharedlog._core.steps import Read, Rows, Rule
from sharedlog._core.whole import read_trimmed

_MOST_ROWS = 1000


class Committed(NamedTuple):
    """A message that was committed, its envelope still in bytes."""

    position: Position
    lsn: int
    producer: int
    seq: int
    envelope: bytes


class Batch(NamedTuple):
    """What a read found: whole commits, and through which LSN there is nothing else."""

    messages: list[Committed]
    through: int


class PendingRing:
    """The newest pending entries of one substream, and the LSN above which it has them all."""

    def __init__(self, entries: int = 10_000) -> None:
        """``entries``: how many it keeps; 0: every span is read again."""
        self._most = entries
        self._kept: deque[Entry] = deque()
        self._above: int | None = None

    def begin(self, after: int) -> None:
        """Reading goes on above this LSN: what was before it is not known."""
        self._kept.clear()
        self._above = after

    def add(self, entry: Entry) -> None:
        """Keep a pending entry; the oldest makes room."""
        self._kept.append(entry)
        while len(self._kept) > self._most:
            self._above = self._kept.popleft().lsn

    def spans(self, decision: Decision, begin: int) -> list[Entry] | None:
        """Return what a decision is about, None if the ring does not have it all."""
        if self._above is None or begin <= self._above:
            return None
        return [each for each in self._kept if _belongs(each, decision, begin)]


def verify(after: Position) -> Rule[Entry]:
    """Return the entry that a position names; raises ``LogForked`` if this log has another there.

    ``TrimmedLog`` if it was trimmed.
    """
    rows: Rows = yield Read(after.lsn - 1, 1)
    entry = read_row(rows.rows[0]) if rows.rows else None
    if entry is None or (entry.lsn, entry.checksum) != (after.lsn, after.checksum):
        raise LogForked(
            f"{after} is not in this log: it was restored from an older copy, or the "
            "position is of another one"
        )
    return entry


def place_at(lsn: int, incarnation: str) -> Rule[Position | None]:
    """Return the position behind everything through ``lsn``.

    Of a substream that has no message in that commit. None: ``lsn`` does not end an append.
    """
    rows: Rows = yield Read(lsn - 1, 1)
    entry = _at(rows, lsn)
    if entry.last_lsn != lsn:
        return None
    return Position(lsn, 0, entry.checksum, incarnation)


class Reader:
    """Reads one substream; one at a time. It can begin anywhere, and forget itself.

    ``start``: the position of the last message that is not wanted again, or the LSN from which
    on commits are wanted, the first of an append; None: the beginning of what is whole.
    """

    def __init__(
        self, tag: str, incarnation: str, start: Position | int | None = None, *, ring: int = 10_000
    ) -> None:
        """Nothing is read yet."""
        self._tag = tag
        self._incarnation = incarnation
        self._start = start
        self._after = start if isinstance(start, Position) else None
        self._ring = PendingRing(ring)
        # Through which LSN everything was read, once it is known where to begin.
        self._through: int | None = None
        if isinstance(start, Position):
            start.check_incarnation(incarnation)

    @property
    def through(self) -> int:
        """Through which LSN it has read everything; 0 before the first read."""
        return self._through or 0

    def read(self, limit: int, rows: int = _MOST_ROWS) -> Rule[Batch]:
        """Read committed messages: about ``limit``, since a read never stops inside a commit.

        By ``rows`` rows at a time. An empty batch: there are none through ``Batch.through``.
        Raises ``LogForked`` if the position is not in this log, ``CorruptLog``, and
        ``TrimmedLog`` before it returns anything of a commit that is not whole.
        """
        if self._through is None:
            self._through = yield from self._begin()
            self._ring.begin(self._through)
        messages: list[Committed] = []
        most = rows
        while len(messages) < limit:
            found: Rows = yield Read(self._through, most, self._tag)
            through = found.through
            for commit in _commits(map(read_row, found.rows)):
                last_lsn = commit[-1].last_lsn
                if last_lsn > through:
                    # Its append's other entries are not seen yet.
                    through = commit[0].lsn - 1
                    break
                messages += yield from self._taken(commit)
                if len(messages) >= limit:
                    through = last_lsn
                    break
            # One append may have more entries than were read: then they are read together.
            most = rows if through > self._through else 2 * most
            self._through = through
            if not found.rows:
                break
        if messages:
            # Asked after it was read: rows are removed once they are declared trimmed.
            trimmed = yield from read_trimmed()
            trimmed.check(messages[0].position.lsn)
            self._after = messages[-1].position
        return Batch(messages, self._through)

    def _begin(self) -> Rule[int]:
        start = self._start
        if isinstance(start, Position):
            # The begin of its commit: the rest of that may be wanted.
            entry = yield from verify(start)
            return entry.lsn - entry.index - 1
        trimmed = yield from read_trimmed()
        if start is None:
            return trimmed.whole - 1
        trimmed.check(start)
        return start - 1

    def _taken(self, commit: Sequence[Entry]) -> Rule[list[Committed]]:
        first = commit[0]
        if first.kind is Kind.PENDING:
            for entry in commit:
                self._ring.add(entry)
            return []
        if first.kind is Kind.ROLLBACK:
            return []
        if first.kind is Kind.COMMITTED:
            # The last entry names the commit, and may be of another substream.
            checksum = commit[-1].checksum
            if commit[-1].lsn != first.last_lsn:
                rows: Rows = yield Read(first.last_lsn - 1, 1)
                checksum = _at(rows, first.last_lsn).checksum
            return self._placed(commit, first.last_lsn, checksum)
        found: list[Entry] = []
        for decision in first.decisions:
            begin = decision.begins.get(self._tag)
            if begin is not None:
                found += yield from self._span(decision, begin, first.lsn)
        return self._placed(sorted(found, key=lambda each: each.lsn), first.lsn, first.checksum)

    def _span(self, decision: Decision, begin: int, end: int) -> Rule[list[Entry]]:
        kept = self._ring.spans(decision, begin)
        if kept is not None:
            return kept
        found: list[Entry] = []
        after = begin - 1
        while after < end - 1:
            rows: Rows = yield Read(after, _MOST_ROWS, self._tag)
            entries = [read_row(row) for row in rows.rows]
            found += [
                each for each in entries if each.lsn < end and _belongs(each, decision, begin)
            ]
            if rows.through <= after:
                raise CorruptLog(f"the log ends at {after}, before a marker at {end}")
            after = rows.through
        return found

    def _placed(self, entries: Sequence[Entry], lsn: int, checksum: int) -> list[Committed]:
        placed = [
            Committed(
                Position(lsn, ordinal, checksum, self._incarnation),
                entry.lsn,
                entry.producer,
                entry.seq,
                entry.message,
            )
            for ordinal, entry in enumerate(entries)
        ]
        after = self._after
        if after is None:
            return placed
        return [
            each
            for each in placed
            if (each.position.lsn, each.position.ordinal) > (after.lsn, after.ordinal)
        ]


def _belongs(entry: Entry, decision: Decision, begin: int) -> bool:
    return entry.kind is Kind.PENDING and entry.producer == decision.producer and begin <= entry.lsn


def _at(rows: Rows, lsn: int) -> Entry:
    if not rows.rows or rows.rows[0].lsn != lsn:
        raise CorruptLog(f"LSN {lsn} is missing")
    return read_row(rows.rows[0])


def _commits(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    """Group what belongs to one append; a substream has some of its entries."""
    group: list[Entry] = []
    for entry in entries:
        if group and group[0].last_lsn != entry.last_lsn:
            yield group
            group = []
        group.append(entry)
    if group:
        yield group
