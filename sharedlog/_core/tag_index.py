"""The index of a log's tags, held against the tags that its rows have (DESIGN-LOG §12, L5).

Reads of a substream go by the index: one that lacks a row, or has another instead, would have
messages lost or doubled without a word. So each tag that was seen is read by it, too.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable

from sharedlog._core.errors import CorruptLog, LogError, TrimmedLog
from sharedlog._core.spans import MARKERS
from sharedlog._core.steps import Ends, Lsns, Read, Rows, Rule, Try

_ROWS = 1000
# LSNs that are kept until they are compared: 8 bytes each.
_KEPT = 100_000


class TagIndex:
    """What rows have of each tag, compared with what the index says, some thousands at a time."""

    def __init__(self, problem: Callable[[str], None]) -> None:
        """Nothing was seen yet. ``problem``: is told what is wrong, in words."""
        self._problem = problem
        self._seen: dict[str, array[int]] = {MARKERS: array("Q")}
        self._unread: set[int] = set()
        self._kept = 0
        self._after = 0

    def begin(self, after: int) -> None:
        """Rows through this LSN are not known, nor compared."""
        self._after = after

    def add(self, lsn: int, tags: tuple[str, ...]) -> None:
        """Take what a row has."""
        for tag in set(tags):
            self._seen.setdefault(tag, array("Q")).append(lsn)
            self._kept += 1

    def unread(self, lsn: int) -> None:
        """A row's tags are not known: it may be under any."""
        self._unread.add(lsn)

    @property
    def tags(self) -> list[str]:
        """Those that rows had."""
        return [tag for tag in self._seen if tag != MARKERS]

    @property
    def full(self) -> bool:
        """Whether it keeps so much that it should be compared."""
        return self._kept >= _KEPT

    def compare(self, through: int) -> Rule[None]:
        """Read every tag by the index, through this LSN, and forget what was compared.

        Rows that are trimmed meanwhile are not looked for, nor those that are behind.
        """
        for tag, lsns in self._seen.items():
            yield from self._tag(tag, lsns, through)
            del lsns[:]
        self._unread.clear()
        self._kept = 0
        self._after = through

    def _tag(self, tag: str, lsns: array[int], through: int) -> Rule[None]:
        after = self._after
        lacking: list[int] = []
        # The next one of ``lsns`` to find.
        at = 0
        while after < through:
            rows: Rows | CorruptLog | TrimmedLog = yield Try(
                Read(after, min(_ROWS, len(lsns) - at + 1), tag)
            )
            if isinstance(rows, TrimmedLog):
                ends: Lsns = yield Ends()
                if ends.first > after + 1:
                    after = ends.first - 1
                    while at < len(lsns) and lsns[at] <= after:
                        at += 1
                    continue
            if isinstance(rows, LogError):
                self._problem(f"what has the tag {tag!r} behind LSN {after}: {rows}")
                return
            for row in rows.rows:
                if row.lsn > through:
                    break
                if row.lsn <= after:
                    self._problem(f"the index of {tag!r} has LSN {row.lsn} behind {after}")
                    return
                after = row.lsn
                while at < len(lsns) and lsns[at] < row.lsn:
                    lacking.append(lsns[at])
                    at += 1
                if at < len(lsns) and lsns[at] == row.lsn:
                    at += 1
                elif row.lsn not in self._unread:
                    self._problem(f"the index of {tag!r} has LSN {row.lsn}, which lacks the tag")
            if not rows.rows and rows.through <= after:
                break
            after = max(after, rows.through)
        lacking += lsns[at:]
        if lacking:
            self._problem(
                f"the index of {tag!r} lacks {len(lacking)} entries, the first is LSN {lacking[0]}"
            )
