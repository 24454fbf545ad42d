"""Engines that break one rule each, for the suite of all engines to reject (DESIGN-LOG §12)."""

from __future__ import annotations

import threading

from sharedlog._core.commit import Commit, NewEntry, Refused
from sharedlog._core.errors import TrimmedLog
from sharedlog._core.steps import Lsns, Rows
from sharedlog._engines.memory import MemoryEngine

# Longer than any reader takes to come by.
_PATIENCE_S = 30.0
_HOLE = b"nothing that anybody wrote"


class Gapped(MemoryEngine):
    """Between two commits an LSN is left out."""

    def commit(self, commit: Commit) -> Lsns:
        if not commit.entries or self._log.tail == 0:
            return super().commit(commit)
        hole = NewEntry(_HOLE)
        first, last = super().commit(commit._replace(entries=(hole, *commit.entries)))
        return Lsns(first + 1, last)

    def read(self, after: int, limit: int, tag: str | None = None) -> Rows:
        rows, through = super().read(after, limit, tag)
        return Rows([row for row in rows if row.body != _HOLE], through)


class SeenTooEarly(MemoryEngine):
    """The newest row is seen before the one below it."""

    def read(self, after: int, limit: int, tag: str | None = None) -> Rows:
        rows, through = super().read(after, limit, tag)
        return Rows([row for row in rows if row.lsn != self._log.tail - 1], through)


class HalfAnAppend(MemoryEngine):
    """Once, a commit of several entries is carried out by two steps, between which one reads."""

    def __init__(self) -> None:
        super().__init__()
        self._torn = False
        self._seen = threading.Event()

    def commit(self, commit: Commit) -> Lsns:
        if self._torn or len(commit.entries) < 2:
            return super().commit(commit)
        self._torn = True
        first, _ = super().commit(commit._replace(entries=commit.entries[:1]))
        self._seen.wait(_PATIENCE_S)
        return Lsns(first, super().commit(Commit(entries=commit.entries[1:])).last)

    def read(self, after: int, limit: int, tag: str | None = None) -> Rows:
        found = super().read(after, limit, tag)
        # By who reads all there is, and finds half of it: a writer looks at its own row alone.
        if limit > 1 and len(found.rows) % 2:
            self._seen.set()
        return found


class WrittenAlthoughRefused(MemoryEngine):
    """What a refused commit was to put stands."""

    def commit(self, commit: Commit) -> Lsns:
        try:
            return super().commit(commit)
        except Refused:
            super().commit(Commit(puts=commit.puts))
            raise


class Unindexed(MemoryEngine):
    """Of the entries with one tag, the third is not in the tag's index."""

    def commit(self, commit: Commit) -> Lsns:
        found = super().commit(commit)
        for lsns in self._log.tagged.values():
            del lsns[2:3]
        return found


class StaleTail(MemoryEngine):
    """The tail is told as it was before the newest commit."""

    def __init__(self) -> None:
        super().__init__()
        self._before = 0

    def commit(self, commit: Commit) -> Lsns:
        self._before = self._log.tail
        return super().commit(commit)

    def tail(self) -> int:
        return self._before


class StaleRead(MemoryEngine):
    """Rows are read as they were before the newest commit that appended."""

    def __init__(self) -> None:
        super().__init__()
        self._before = 0

    def commit(self, commit: Commit) -> Lsns:
        if commit.entries:
            self._before = self._log.tail
        return super().commit(commit)

    def read(self, after: int, limit: int, tag: str | None = None) -> Rows:
        rows, through = super().read(after, limit, tag)
        return Rows([row for row in rows if row.lsn <= self._before], min(through, self._before))


class Skipping(MemoryEngine):
    """Who asks for what was removed gets what is left, and is not told."""

    def read(self, after: int, limit: int, tag: str | None = None) -> Rows:
        try:
            return super().read(after, limit, tag)
        except TrimmedLog as error:
            return super().read(error.first - 1, limit, tag)
