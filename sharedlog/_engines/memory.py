"""A log in this process's memory, for tests: it ends with the process."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import defaultdict

from sharedlog._core.commit import Commit, Refused, stamped
from sharedlog._core.entry import Row
from sharedlog._core.errors import LogUnavailable, TrimmedLog
from sharedlog._core.steps import Lsns, Rows
from sharedlog._engines.checks import check_commit
from sharedlog._engines.engine import READ_BYTES, Limits

LIMITS = Limits(entries=10_000, append_bytes=64 << 20, operations=20_000)


class MemoryEngine:
    """An ``Engine``; any thread."""

    durability = "nothing outlives this process"
    limits = LIMITS

    def __init__(self) -> None:
        """An empty log."""
        self._changed = threading.Condition()
        self._keys: dict[str, bytes] = {}
        # Rows by LSN, from ``_removed`` + 1 on.
        self._rows: list[Row] = []
        self._removed = 0
        self._at_us = 0
        self._tagged: dict[str, list[int]] = defaultdict(list)
        self._closed = False

    def commit(self, commit: Commit) -> Lsns:
        """See ``Engine``."""
        check_commit(commit, self.limits)
        with self._changed:
            found = {each.key: self._keys.get(each.key) for each in commit.conditions}
            if any(found[each.key] != each.value for each in commit.conditions):
                raise Refused(found)
            tail = self._tail()
            first = tail + 1 if commit.entries else tail
            last = tail + len(commit.entries)
            for put in commit.puts:
                value = stamped(put, first, last)
                if value is None:
                    self._keys.pop(put.key, None)
                else:
                    self._keys[put.key] = value
            if commit.entries:
                self._at_us = max(self._at_us, commit.at_us)
            for lsn, entry in enumerate(commit.entries, first):
                self._rows.append(Row(lsn, entry.body, entry.tags, self._at_us))
                for tag in set(entry.tags):
                    self._tagged[tag].append(lsn)
            self._changed.notify_all()
            return Lsns(first, last)

    def get(self, keys: tuple[str, ...]) -> dict[str, bytes | None]:
        """See ``Engine``."""
        with self._changed:
            return {key: self._keys.get(key) for key in keys}

    def scan(self, prefix: str) -> dict[str, bytes]:
        """See ``Engine``."""
        with self._changed:
            return {key: value for key, value in self._keys.items() if key.startswith(prefix)}

    def read(self, after: int, limit: int, tag: str | None = None) -> Rows:
        """See ``Engine``."""
        with self._changed:
            tail = self._tail()
            if after < self._removed:
                raise TrimmedLog(f"what follows LSN {after} was trimmed", self._removed + 1)
            if tag is None:
                lsns: list[int] | range = range(after + 1, tail + 1)
            else:
                kept = self._tagged.get(tag, [])
                lsns = kept[bisect_right(kept, after) :]
            rows: list[Row] = []
            size = 0
            for lsn in lsns[:limit]:
                row = self._rows[lsn - self._removed - 1]
                size += len(row.body)
                if rows and size > READ_BYTES:
                    break
                rows.append(row)
            cut = len(rows) < len(lsns)
            return Rows(rows, rows[-1].lsn if rows and cut else max(after, tail))

    def tail(self) -> int:
        """See ``Engine``."""
        with self._changed:
            return self._tail()

    def first(self) -> int:
        """See ``Engine``."""
        with self._changed:
            return self._removed + 1

    def wait(self, after: int, timeout_s: float) -> int:
        """See ``Engine``."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._tail() > after, timeout_s)
            if self._closed:
                raise LogUnavailable("the log was closed")
            return self._tail()

    def remove(self, through: int) -> None:
        """See ``Engine``."""
        with self._changed:
            through = min(through, self._tail())
            if through <= self._removed:
                return
            for row in self._rows[: through - self._removed]:
                for tag in set(row.tags):
                    self._tagged[tag].remove(row.lsn)
            del self._rows[: through - self._removed]
            self._removed = through

    def close(self) -> None:
        """See ``Engine``."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _tail(self) -> int:
        return self._removed + len(self._rows)
