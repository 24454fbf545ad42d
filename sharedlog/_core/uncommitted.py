"""Everything that was appended, decided or not, in the log's order: for inspection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sharedlog._core.entry import Entry, EntryKind, Row, read_row
from sharedlog._core.position import Position
from sharedlog._core.reading import Committed, State
from sharedlog._core.spans import begin_of, span_key
from sharedlog._core.steps import Get, Read, Rows, Rule
from sharedlog._core.streams import substream_number
from sharedlog._core.whole import read_trimmed

_ROWS = 1000


class AllReader:
    """Reads substreams; one at a time. ``starts``: of each tag, the first LSN that is wanted.

    A message is returned once, at its own LSN, with what is known of it by then: what is pending
    when it is read may be committed later, and is not returned again.
    """

    def __init__(self, starts: Mapping[str, int], incarnation: str) -> None:
        """Nothing is read yet."""
        self._starts = dict(starts)
        self._incarnation = incarnation
        self._through = min(starts.values()) - 1

    @property
    def through(self) -> int:
        """Through which LSN everything was read."""
        return self._through

    def begin(self) -> Rule[None]:
        """Raise ``TrimmedLog`` if that is not there."""
        trimmed = yield from read_trimmed()
        trimmed.check(self._through + 1)

    def read(self) -> Rule[list[Committed]]:
        """Return the next messages; none: there are none through the tail."""
        while True:
            rows: Rows = yield Read(self._through, _ROWS)
            states = yield from self._states(rows)
            self._through = rows.through
            found = [self._seen(*each, states) for each in self._mine(rows.rows)]
            if found or not rows.rows:
                return found

    def _mine(self, rows: Sequence[Row]) -> list[tuple[str, Entry]]:
        found = []
        for row in rows:
            for tag in row.tags:
                if row.lsn >= self._starts.get(tag, row.lsn + 1):
                    entry = read_row(row)
                    if entry.kind in (EntryKind.COMMITTED, EntryKind.PENDING):
                        found.append((tag, entry))
                    break
        return found

    def _seen(self, tag: str, entry: Entry, states: Mapping[int, State]) -> Committed:
        at = substream_number(tag)
        return Committed(
            Position(entry.lsn, 0, entry.checksum, self._incarnation, at),
            tag,
            entry.lsn,
            entry.producer,
            entry.seq,
            entry.message,
            entry.at_us,
            states.get(entry.lsn, State.COMMITTED),
        )

    def _states(self, rows: Rows) -> Rule[dict[int, State]]:
        """Return what became of each pending message of these rows."""
        states: dict[int, State] = {}
        open_: dict[tuple[int, str], list[int]] = {}
        for row in rows.rows:
            entry = read_row(row)
            if entry.kind is EntryKind.PENDING:
                states[entry.lsn] = State.PENDING
                for tag in row.tags:
                    open_.setdefault((entry.producer, tag), []).append(entry.lsn)
            else:
                _decide(entry, open_, states)
        if open_:
            # What is pending still has a span; what has none was decided behind these rows.
            keys = {each: span_key(*each) for each in open_}
            found = yield Get(tuple(keys.values()))
            for each, key in keys.items():
                value = found[key]
                if value is not None and begin_of(value) <= open_[each][0]:
                    del open_[each]
        for producer, tag in list(open_):
            after = rows.through
            while (producer, tag) in open_:
                later: Rows = yield Read(after, _ROWS, tag)
                for row in later.rows:
                    _decide(read_row(row), open_, states)
                if not later.rows:
                    break
                after = later.through
        return states


def _decide(
    entry: Entry, open_: dict[tuple[int, str], list[int]], states: dict[int, State]
) -> None:
    state = State.COMMITTED if entry.kind is EntryKind.MARKER else State.ROLLED_BACK
    for decision in entry.decisions:
        for tag in decision.begins:
            for lsn in open_.pop((decision.producer, tag), ()):
                states[lsn] = state
