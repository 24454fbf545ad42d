"""The verifying of a log: every entry read, and held against what the rules promise (§12, §13)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeVar

from sharedlog._core.entry import Entry, EntryKind, ProducerDecision, Row, read_row
from sharedlog._core.envelope import unpack
from sharedlog._core.errors import CorruptLog, LogError, TrimmedLog
from sharedlog._core.holds import Hold, each_hold
from sharedlog._core.kept_keys import judge_keys
from sharedlog._core.position import Position
from sharedlog._core.producers import FIRST_TASK
from sharedlog._core.reading import check_at
from sharedlog._core.sealing import Seals, check_opens, is_sealed
from sharedlog._core.spans import MARKERS, OPEN_SPANS, begin_of
from sharedlog._core.steps import Damaged, Ends, Lsns, Read, Rows, Rule, Scan, Try, tried
from sharedlog._core.streams import commits_tag, stream_of
from sharedlog._core.tag_index import TagIndex
from sharedlog._core.whole import read_trimmed

_T = TypeVar("_T")
_ROWS = 1000
_MOST_PROBLEMS = 100
_LOOKS = 10


class VerifyReport(NamedTuple):
    """What was read: rows from ``first`` to ``through``; ``problems``: in words, 100 at most.

    ``sealed``: messages that the user encrypted, which were opened if there was a key.
    """

    first: int
    through: int
    messages: int
    markers: int
    rollbacks: int
    pending: int
    holds: int
    sealed: int
    problems: list[str]


class Verifier:
    """Reads a log once, from its first row on; nothing is written.

    What was trimmed is not known: spans that began before the first row are not judged.
    """

    def __init__(self, seals: Seals | None = None) -> None:
        """Nothing is read yet. ``seals``: sealed messages are opened by them."""
        self._seals = seals
        self._sealed = 0
        self.through = 0
        self._first = 0
        self._problems: list[str] = []
        self._counts = dict.fromkeys(EntryKind, 0)
        self._at_us = 0
        self._append: Entry | None = None
        self._seqs: dict[int, int] = {}
        # Of all that were read, also before a row that could not be.
        self._highest: dict[int, int] = {}
        self._open: dict[int, dict[str, int]] = {}
        self._begun = False
        self._limit = _ROWS
        self._unreadable = 0
        # Spans that began before it are not judged.
        self._known = 0
        self._index = TagIndex(self._problem)

    def read(self) -> Rule[bool]:
        """Read on; False: there is nothing more. What cannot be read is a problem."""
        if not self._begun:
            ends: Lsns = yield Ends()
            self._first = self._known = ends.first
            self.through = ends.first - 1
            self._index.begin(self.through)
            self._begun = True
        rows: Rows | CorruptLog | TrimmedLog = yield Try(Read(self.through, self._limit))
        if isinstance(rows, CorruptLog | TrimmedLog):
            return (yield from self._unread(rows))
        self._limit = min(_ROWS, 2 * self._limit)
        for row in rows.rows:
            self._row(row)
        if self._index.full:
            yield from self._index.compare(self.through)
        return bool(rows.rows)

    def _unread(self, error: CorruptLog | TrimmedLog) -> Rule[bool]:
        """Find what cannot be read, tell it, and go on behind it; False: that is the end."""
        ends: Lsns = yield Ends()
        if isinstance(error, TrimmedLog) and ends.first > self.through + 1:
            # Trimmed meanwhile.
            self._pass(ends.first - 1)
            return True
        if self._limit > 1:
            self._limit //= 2
            return True
        self._problem(str(error))
        self._unreadable += 1
        if self.through >= ends.last or self._unreadable == _MOST_PROBLEMS:
            return False
        self._index.unread(self.through + 1)
        self._pass(self.through + 1)
        return True

    def _pass(self, lsn: int) -> None:
        """Go on behind this LSN, as if what is before it had been trimmed."""
        self.through = lsn
        self._known = lsn + 1
        self._append = None
        self._seqs.clear()
        self._open.clear()

    def report(self) -> Rule[VerifyReport]:
        """Hold what was read against what the log keeps of spans and holds, and tell."""
        for problem in (yield Damaged()):
            self._problem(problem)
        yield from self._part(self._read_spans())
        yield from self._index.compare(self.through)
        holds = (yield from self._part(self._read_holds())) or []
        yield from self._part(self._read_trimmed())
        for problem in (yield from judge_keys(self._index.tags, self._highest, len(holds))):
            self._problem(problem)
        return self._told(len(holds))

    def _part(self, rule: Rule[_T]) -> Rule[_T | None]:
        """Carry out a part of the report; damage that ends it is a problem."""
        try:
            return (yield from tried(rule))
        except CorruptLog as error:
            self._problem(str(error))
            return None

    def _read_spans(self) -> Rule[None]:
        for _ in range(_LOOKS):
            spans = yield Scan(OPEN_SPANS)
            if not (yield from self.read()):
                self._spans(spans)
                break

    def _read_trimmed(self) -> Rule[None]:
        trimmed = yield from read_trimmed()
        if trimmed.removed < self._first - 1:
            self._problem(
                f"what is before LSN {self._first} is gone, and was declared trimmed through "
                f"{trimmed.removed} only"
            )

    def _read_holds(self) -> Rule[list[Hold | LogError]]:
        holds = yield from each_hold()
        for hold in holds:
            if isinstance(hold, LogError):
                self._problem(str(hold))
            elif hold.lsn > self.through + 1:
                # One that was made behind entries that came since is not judged.
                ends: Lsns = yield Ends()
                if hold.lsn > ends.last + 1:
                    self._problem(
                        f"the hold of {hold.name!r} on {hold.tag} is at LSN {hold.lsn}, and the "
                        f"log ends at {ends.last}"
                    )
            elif hold.position is not None and not hold.dropped:
                yield from self._held(hold, hold.position)
        return holds

    def broken_off(self, error: CorruptLog) -> VerifyReport:
        """Tell what was found until this ended it all."""
        self._problems.append(str(error))
        return self._told(0)

    def _told(self, holds: int) -> VerifyReport:
        return VerifyReport(
            self._first,
            self.through,
            self._counts[EntryKind.COMMITTED] + self._counts[EntryKind.PENDING],
            self._counts[EntryKind.MARKER],
            self._counts[EntryKind.ROLLBACK],
            sum(map(len, self._open.values())),
            holds,
            self._sealed,
            self._problems,
        )

    def _held(self, hold: Hold, position: Position) -> Rule[None]:
        found: Rows | CorruptLog | TrimmedLog = yield Try(Read(position.lsn - 1, 1))
        try:
            if isinstance(found, LogError):
                raise found
            check_at(position, found)
        except LogError as error:
            # It may have moved, and what was before it been trimmed.
            if hold in (yield from each_hold()):
                self._problem(f"the hold of {hold.name!r} on {hold.tag}: {error}")

    def _row(self, row: Row) -> None:
        if row.lsn != self.through + 1:
            self._problem(f"LSN {row.lsn} follows {self.through}")
        self.through = row.lsn
        self._index.add(row.lsn, row.tags)
        if row.at_us < self._at_us:
            self._problem(f"LSN {row.lsn} is older than the one before it")
        self._at_us = row.at_us
        try:
            entry = read_row(row)
            self._counts[entry.kind] += 1
        except LogError as error:
            self._problem(f"LSN {row.lsn}: {error}")
            return
        if entry.kind in (EntryKind.COMMITTED, EntryKind.PENDING):
            try:
                unpack(entry.message)
                self._check_sealed(entry.message, row.tags)
            except LogError as error:
                self._problem(f"LSN {row.lsn}: {error}")
        self._in_append(entry)
        if entry.kind is EntryKind.PENDING:
            begins = self._open.setdefault(entry.producer, {})
            first = entry.lsn - entry.index
            for tag in row.tags:
                begins.setdefault(tag, first)
        self._seq(entry)
        if entry.decisions:
            self._decided(entry, row)

    def _check_sealed(self, envelope: bytes, tags: Iterable[str]) -> None:
        if is_sealed(envelope):
            self._sealed += 1
            if self._seals is not None:
                place = next((tag for tag in tags if tag != commits_tag(stream_of(tag))), "")
                check_opens(envelope, self._seals, place)

    def _in_append(self, entry: Entry) -> None:
        before = self._append
        if entry.index == 0:
            if before is not None and before.lsn != before.last_lsn:
                self._problem(f"the append that ends at LSN {before.last_lsn} is cut")
        elif before is not None:
            same = (before.producer, before.seq, before.kind, before.count, before.index + 1)
            if same != (entry.producer, entry.seq, entry.kind, entry.count, entry.index):
                self._problem(f"LSN {entry.lsn} does not go on with the append of the one before")
            elif entry.kind is EntryKind.COMMITTED and before.last_checksum != (
                entry.last_checksum if entry.lsn < entry.last_lsn else entry.checksum
            ):
                self._problem(f"LSN {before.lsn} names another end of its append")
        self._append = entry

    def _seq(self, entry: Entry) -> None:
        # Those of a name may leave some out, and begin anew once it was forgotten.
        if entry.index or entry.name:
            return
        known = self._seqs.get(entry.producer)
        # Who is retired has its rollback under its highest seq.
        last = {entry.seq - 1, entry.seq} if entry.kind is EntryKind.ROLLBACK else {entry.seq - 1}
        if known is not None and known not in last:
            self._problem(
                f"LSN {entry.lsn} is seq {entry.seq} of producer {entry.producer}, behind {known}"
            )
        self._seqs[entry.producer] = entry.seq
        if entry.producer:
            self._highest[entry.producer] = max(entry.seq, self._highest.get(entry.producer, 0))

    def _decided(self, entry: Entry, row: Row) -> None:
        tags = {tag for each in entry.decisions for tag in each.begins}
        wanted = set(tags)
        if entry.kind is EntryKind.MARKER:
            wanted |= {commits_tag(stream_of(tag)) for tag in tags} | {MARKERS}
        if set(row.tags) != wanted:
            self._problem(f"LSN {entry.lsn} decides other tags than it has")
        for each in entry.decisions:
            self._closed(entry, each)

    def _closed(self, entry: Entry, decision: ProducerDecision) -> None:
        known = self._open.pop(decision.producer, {})
        for tag, begin in decision.begins.items():
            if begin >= self._known and known.get(tag) != begin:
                self._problem(
                    f"LSN {entry.lsn} says that producer {decision.producer} began in {tag} at "
                    f"{begin}; it did at {known.get(tag)}"
                )
        for tag in known.keys() - decision.begins.keys():
            self._problem(
                f"LSN {entry.lsn} leaves out what producer {decision.producer} has in {tag}"
            )

    def _spans(self, spans: dict[str, bytes]) -> None:
        kept = {
            key.removeprefix(OPEN_SPANS): begin_of(value)
            for key, value in spans.items()
            if begin_of(value) >= self._known
        }
        found = {
            f"{producer}/{tag}": begin
            for producer, begins in self._open.items()
            for tag, begin in begins.items()
            if begin >= self._known
        }
        for name in sorted(kept.keys() | found.keys()):
            # One that began before the first row may have more behind it.
            old = begin_of(spans[OPEN_SPANS + name]) if OPEN_SPANS + name in spans else self._known
            if name not in found and int(name.partition("/")[0]) >= FIRST_TASK:
                # Of a batch that was decided a moment ago: the next process cleans it.
                continue
            if kept.get(name) != found.get(name) and old >= self._known:
                self._problem(
                    f"the log keeps that {name} is pending from {kept.get(name)}; read was "
                    f"{found.get(name)}"
                )

    def _problem(self, text: str) -> None:
        if len(self._problems) < _MOST_PROBLEMS and text not in self._problems:
            self._problems.append(text)
