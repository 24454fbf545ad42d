"""A log in this process's memory, for tests: it ends with the process."""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Mapping

from _rifl_ground.owned_lock import OwnedLock
from sharedlog._core.commit import Commit, Refused, stamped
from sharedlog._core.entry import Row
from sharedlog._core.errors import LogStopped, ReentrantCall, TrimmedLog
from sharedlog._core.steps import Lsns, Rows
from sharedlog._engines.checks import check_commit
from sharedlog._engines.engine import READ_BYTES, Limits

LIMITS = Limits(entries=10_000, append_bytes=64 << 20, operations=20_000)


class MemoryLog:
    """What a log in memory holds; any number of ``MemoryEngine``s share one."""

    def __init__(
        self,
        keys: Mapping[str, bytes] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """An empty log, with these keys. ``clock``: what terms end by, in seconds."""
        self.clock = clock
        # When terms of keys are over.
        self.ends: dict[str, float] = {}
        self.changed = threading.Condition(OwnedLock(ReentrantCall))
        self.keys: dict[str, bytes] = dict(keys or {})
        # Rows by LSN, from ``removed`` + 1 on.
        self.rows: list[Row] = []
        self.removed = 0
        self.at_us = 0
        self.tagged: dict[str, list[int]] = defaultdict(list)

    def value(self, key: str) -> bytes | None:
        """What a key holds, if its term is not over."""
        return None if self.ends and self.remaining(key) <= 0 else self.keys.get(key)

    def remaining(self, key: str) -> float:
        """The seconds left of a key's term."""
        if key in self.ends:
            return self.ends[key] - self.clock()
        return float("inf") if key in self.keys else 0.0

    @property
    def tail(self) -> int:
        """The newest row's LSN."""
        return self.removed + len(self.rows)


class MemoryEngine:
    """An ``Engine``; any thread."""

    durability = "nothing outlives this process"
    limits = LIMITS

    def __init__(self, log: MemoryLog | None = None) -> None:
        """Open a log, an empty one of its own if none is given."""
        self._log = MemoryLog() if log is None else log
        self._closed = False

    def commit(self, commit: Commit) -> Lsns:
        """See ``Engine``."""
        log = self._opened()
        check_commit(commit, self.limits)
        with log.changed:
            found = {each.key: log.value(each.key) for each in commit.conditions}
            if any(found[each.key] != each.value for each in commit.conditions):
                raise Refused(found)
            tail = log.tail
            first = tail + 1 if commit.entries else tail
            last = tail + len(commit.entries)
            for put in commit.puts:
                value = stamped(put, first, last)
                log.ends.pop(put.key, None)
                if put.term_s is not None:
                    log.ends[put.key] = log.clock() + put.term_s
                if value is None:
                    log.keys.pop(put.key, None)
                else:
                    log.keys[put.key] = value
            if commit.entries:
                log.at_us = max(log.at_us, commit.at_us)
            for lsn, entry in enumerate(commit.entries, first):
                log.rows.append(Row(lsn, entry.body, entry.tags, log.at_us))
                for tag in set(entry.tags):
                    log.tagged[tag].append(lsn)
            log.changed.notify_all()
            return Lsns(first, last)

    def get(self, keys: tuple[str, ...]) -> dict[str, bytes | None]:
        """See ``Engine``."""
        log = self._opened()
        with log.changed:
            return {key: log.value(key) for key in keys}

    def scan(self, prefix: str) -> dict[str, bytes]:
        """See ``Engine``."""
        log = self._opened()
        with log.changed:
            found = {key: log.value(key) for key in log.keys if key.startswith(prefix)}
            return {key: value for key, value in found.items() if value is not None}

    def remaining(self, key: str) -> float:
        """See ``Engine``."""
        log = self._opened()
        with log.changed:
            return log.remaining(key)

    def read(self, after: int, limit: int, tag: str | None = None) -> Rows:
        """See ``Engine``."""
        log = self._opened()
        with log.changed:
            tail = log.tail
            if after < log.removed:
                raise TrimmedLog(f"what follows LSN {after} was trimmed", log.removed + 1)
            if tag is None:
                lsns: list[int] | range = range(after + 1, tail + 1)
            else:
                kept = log.tagged.get(tag, [])
                lsns = kept[bisect_right(kept, after) :]
            rows: list[Row] = []
            size = 0
            for lsn in lsns[:limit]:
                row = log.rows[lsn - log.removed - 1]
                size += len(row.body)
                if rows and size > READ_BYTES:
                    break
                rows.append(row)
            cut = len(rows) < len(lsns)
            return Rows(rows, rows[-1].lsn if rows and cut else max(after, tail))

    def tail(self) -> int:
        """See ``Engine``."""
        log = self._opened()
        with log.changed:
            return log.tail

    def first(self) -> int:
        """See ``Engine``."""
        log = self._opened()
        with log.changed:
            return log.removed + 1

    def wait(self, after: int, timeout_s: float) -> int:
        """See ``Engine``."""
        log = self._opened()
        with log.changed:
            log.changed.wait_for(lambda: self._closed or log.tail > after, timeout_s)
            if self._closed:
                raise LogStopped("the log was closed")
            return log.tail

    def remove(self, through: int) -> None:
        """See ``Engine``."""
        log = self._opened()
        with log.changed:
            through = min(through, log.tail)
            if through <= log.removed:
                return
            for row in log.rows[: through - log.removed]:
                for tag in set(row.tags):
                    log.tagged[tag].remove(row.lsn)
            del log.rows[: through - log.removed]
            log.removed = through

    def close(self) -> None:
        """See ``Engine``."""
        log = self._log
        with log.changed:
            self._closed = True
            log.changed.notify_all()

    def _opened(self) -> MemoryLog:
        if self._closed:
            stopped = LogStopped("the log was closed")
            stopped.appended = False
            raise stopped
        return self._log
