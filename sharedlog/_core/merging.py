"""Several substreams read as one: in the order of the commits, so that none starves (C3).

Where most of the log's rows are theirs, rows are read once, whatever their tags, and handed to
the substreams' readers; else each substream is read by its tag, the furthest behind first.
What is read ahead is bounded by bytes: but a commit is never cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

from sharedlog._core.entry import Row, read_row
from sharedlog._core.position import Position
from sharedlog._core.reading import RING_BYTES, Committed, Reader, check_whole
from sharedlog._core.steps import Read, Rows, Rule

AHEAD_BYTES = 4 << 20
_FEWEST_ROWS, _MOST_ROWS = 16, 1000
# After so many rows it is judged anew how they are read.
_JUDGED_ROWS = 256


class Merger:
    """Reads substreams of one log; one at a time.

    ``starts``: of each tag, in the order of the substreams, where to begin, as ``Reader`` has it.
    """

    def __init__(
        self,
        starts: Mapping[str, Position | int | None],
        incarnation: str,
        *,
        ahead_bytes: int = AHEAD_BYTES,
    ) -> None:
        """Nothing is read yet."""
        ring_bytes = max(RING_BYTES // len(starts), 1 << 16)
        self._readers = [
            Reader(tag, incarnation, start, ring_bytes=ring_bytes) for tag, start in starts.items()
        ]
        self._ahead_bytes = ahead_bytes
        self._row_bytes = 1024.0
        # Committed, and above an LSN through which not all substreams were read.
        self._waiting: list[Committed] = []
        self._dense = True
        self._judged = _Judged()

    @property
    def through(self) -> int:
        """Through which LSN all of them were read."""
        return min(each.through for each in self._readers)

    @property
    def places(self) -> dict[str, int]:
        """Through which LSN each was read, if nothing of it waits to be returned."""
        waiting = {each.tag for each in self._waiting}
        return {each.tag: each.through for each in self._readers if each.tag not in waiting}

    def begin(self) -> Rule[None]:
        """Go to where each begins; raises ``LogForked``, ``TrimmedLog``."""
        for reader in self._readers:
            yield from reader.begin()

    def read(self) -> Rule[list[Committed]]:
        """Return the next messages, of whole commits; none: there are none through the tail.

        By commit, then substream, then their order there. Raises as ``Reader.read`` does.
        """
        yield from self.begin()
        doubled = 1
        while True:
            before = self.through
            ordered = self._dense and not self._waiting
            if self._dense:
                ended = yield from self._read_all(before, doubled)
            else:
                ended = yield from self._read_tags(before, doubled)
            through = self.through
            found = self._waiting
            if any(each.through > through for each in self._readers):
                found = [each for each in self._waiting if each.position.lsn <= through]
            if found:
                later = len(self._waiting) > len(found)
                self._waiting = (
                    [each for each in self._waiting if each.position.lsn > through] if later else []
                )
                if len(self._readers) > 1:
                    # What was read together stands in the order of the readers already.
                    found.sort(key=_commit_lsn if ordered else _place)
                yield from check_whole(found)
                return found
            if ended:
                return []
            # One append may have more entries than were read: then they are read together.
            doubled = 1 if through > before else 2 * doubled

    def _read_all(self, before: int, doubled: int) -> Rule[bool]:
        """Read what follows whatever its tags are; return whether nothing does."""
        rows: Rows = yield Read(before, self._rows(1) * doubled)
        batch, through = rows.rows, rows.through
        self._measure(batch)
        if batch:
            # Of whole appends.
            last = read_row(batch[-1])
            if last.lsn != last.last_lsn:
                through = last.lsn - last.index - 1
                batch = batch[: max(0, through - before)]
        mine: dict[str, list[Row]] = {each.tag: [] for each in self._readers}
        # Most rows have the tags of others.
        takers: dict[tuple[str, ...], list[list[Row]]] = {}
        for row in batch:
            wanted = takers.get(row.tags)
            if wanted is None:
                tags = row.tags
                wanted = takers[tags] = [mine[tag] for tag in dict.fromkeys(tags) if tag in mine]
            for rows_of_one in wanted:
                rows_of_one.append(row)
        self._judge(sum(map(len, mine.values())), len(batch))
        for reader in self._readers:
            if reader.through >= through:
                continue
            fresh = mine[reader.tag]
            if reader.through > before:
                fresh = [row for row in fresh if row.lsn > reader.through]
            self._waiting += yield from reader.feed(fresh, through)
        return not rows.rows

    def _read_tags(self, before: int, doubled: int) -> Rule[bool]:
        """Read those that are furthest behind; return whether nothing follows."""
        ended = True
        count = 0
        most = self._rows(len(self._readers)) * doubled
        for reader in self._readers:
            if reader.through > before:
                ended = False
                continue
            rows: Rows = yield Read(before, most, reader.tag)
            self._measure(rows.rows)
            count += len(rows.rows)
            ended = ended and not rows.rows
            self._waiting += yield from reader.feed(rows.rows, rows.through)
        self._judge(count, self.through - before)
        return ended

    def _rows(self, reads: int) -> int:
        wanted = int(self._ahead_bytes / reads / self._row_bytes)
        return max(_FEWEST_ROWS, min(wanted, _MOST_ROWS))

    def _measure(self, rows: Sequence[Row]) -> None:
        if rows:
            some = rows[:: 1 + len(rows) // 100]
            size = sum(len(row.body) for row in some) / len(some)
            # Quick to grow, slow to shrink: what is next may be as large as what was.
            self._row_bytes = max(size, (3 * self._row_bytes + size) / 4, 64.0)

    def _judge(self, mine: int, all_rows: int) -> None:
        self._judged = _Judged(self._judged.mine + mine, self._judged.all_rows + all_rows)
        if self._judged.all_rows >= _JUDGED_ROWS:
            share = self._judged.mine / self._judged.all_rows
            self._dense = share > (0.25 if self._dense else 0.5)
            self._judged = _Judged()


class _Judged(NamedTuple):
    mine: int = 0
    all_rows: int = 0


_commit_lsn = attrgetter("position.lsn")


def _place(message: Committed) -> tuple[int, int]:
    return message.position.lsn, message.position.substream
