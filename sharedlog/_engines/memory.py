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
from sharedlog._core.errors import LogStopped, ReentrantUse, TrimmedLog
from sharedlog._core.steps import Lsns, Rows
from sharedlog._engines.checks import check_commit
from sharedlog._engines.engine import READ_BYTES, Limits

LIMITS = Limits(entries=10_000, append_bytes=64 << 20, operations=20_000)


# A commit, its first and its last LSN, and when it was judged.
_Step = tuple[Commit, int, int, float]


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
        self.lock = OwnedLock(ReentrantUse)
        self.changed = threading.Condition(self.lock)
        # How many wait for a change; an interrupt leaves it too high.
        self.waiting = 0
        self.keys: dict[str, bytes] = dict(keys or {})
        # Rows by LSN, from ``removed`` + 1 on.
        self.rows: list[Row] = []
        self.removed = 0
        # The commit that is being written; an interrupted one is finished before anything else.
        self.under_way: _Step | None = None
        self.at_us = 0
        self.tagged: dict[str, list[int]] = defaultdict(list)

    def finish(self) -> None:
        """Write the commit in flight; each step may be taken again. Under the lock."""
        if self.under_way is None:
            return
        (_, puts, entries, at_us), first, last, now_s = self.under_way
        keys, ends = self.keys, self.ends
        for put in puts:
            key, _, _, term_s = put
            value = stamped(put, first, last)
            if term_s is not None:
                ends[key] = now_s + term_s
            elif ends:
                ends.pop(key, None)
            if value is None:
                keys.pop(key, None)
            else:
                keys[key] = value
        if entries:
            self.at_us = at_us = max(self.at_us, at_us)
            if last > self.tail:
                # In one step, so that they are there or not. What ``Row`` does by itself, a third
                # less of it.
                new = tuple.__new__
                self.rows += [
                    new(Row, (lsn, body, tags, at_us))
                    for lsn, (body, tags) in enumerate(entries, first)
                ]
            tagged = self.tagged
            for lsn, (_, tags) in enumerate(entries, first):
                for tag in tags:
                    lsns = tagged[tag]
                    if not lsns or lsns[-1] < lsn:
                        lsns.append(lsn)
            if self.waiting:
                self.changed.notify_all()
        self.under_way = None

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
        """Commit, or raise ``Refused`` with the values of the conditions' keys."""
        check_commit(commit, self.limits)
        log = self._opened()
        conditions, _, entries, _ = commit
        with log.lock:
            if log.under_way is not None:
                log.finish()
            value_of = log.value if log.ends else log.keys.get
            for key, value in conditions:
                if value_of(key) != value:
                    raise Refused({key: log.value(key) for key, _ in conditions})
            tail = log.tail
            first, last = (tail + 1, tail + len(entries)) if entries else (tail, tail)
            # From here on it happens, whole, whatever interrupts this thread.
            log.under_way = (commit, first, last, log.clock())
            log.finish()
            return Lsns(first, last)

    def get(self, keys: tuple[str, ...]) -> dict[str, bytes | None]:
        """Return the values of these keys as of one moment."""
        log = self._opened()
        with log.lock:
            log.finish()
            return {key: log.value(key) for key in keys}

    def scan(self, prefix: str) -> dict[str, bytes]:
        """Return the keys with this prefix, and their values, as of one moment."""
        log = self._opened()
        with log.lock:
            log.finish()
            found = {key: log.value(key) for key in log.keys if key.startswith(prefix)}
            return {key: value for key, value in found.items() if value is not None}

    def damaged(self) -> list[str]:
        """Return nothing: keys in memory are not damaged."""
        return []

    def remaining(self, key: str) -> float:
        """Return the seconds left of a key's term: infinite without one, 0.0 if it is absent."""
        log = self._opened()
        with log.lock:
            log.finish()
            return log.remaining(key)

    def read(self, after: int, limit: int, tag: str | None = None) -> Rows:
        """Return rows with LSN above ``after``, with the tag if one is given."""
        log = self._opened()
        with log.lock:
            log.finish()
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
        """Return the LSN of the last entry, 0 if there was never one."""
        log = self._opened()
        with log.lock:
            log.finish()
            return log.tail

    def first(self) -> int:
        """Return the LSN of the oldest row that is there; tail + 1 if there is none."""
        log = self._opened()
        with log.lock:
            log.finish()
            return log.removed + 1

    def wait(self, after: int, timeout_s: float) -> int:
        """Wait until the tail is above ``after``, or the timeout passes; return the tail."""
        log = self._opened()
        with log.lock:
            log.finish()
            log.waiting += 1
            try:
                log.changed.wait_for(lambda: self._closed or log.tail > after, timeout_s)
            finally:
                log.waiting -= 1
            if self._closed:
                raise LogStopped("the log was closed")
            return log.tail

    def remove(self, through: int) -> None:
        """Remove the rows through this LSN, and their tags; idempotent."""
        log = self._opened()
        with log.lock:
            log.finish()
            through = min(through, log.tail)
            if through <= log.removed:
                return
            # In one step: an interrupt comes before or after it.
            log.rows, log.removed = log.rows[through - log.removed :], through
            for tag, lsns in list(log.tagged.items()):
                log.tagged[tag] = lsns[bisect_right(lsns, through) :]

    def close(self) -> None:
        """Close files and connections; idempotent."""
        log = self._log
        with log.lock:
            self._closed = True
            log.changed.notify_all()

    def _opened(self) -> MemoryLog:
        if self._closed:
            stopped = LogStopped("the log was closed")
            stopped.appended = False
            raise stopped
        return self._log
