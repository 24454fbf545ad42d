"""A log in this process's memory, for tests: it ends with the process."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import defaultdict

from sharedlog._core.commit import Commit, Refused, stamped
from sharedlog._core.entry import Row
from sharedlog._core.steps import Lsns, Rows


class MemoryEngine:
    """An ``Engine``; any thread."""

    def __init__(self) -> None:
        """An empty log."""
        self._lock = threading.Lock()
        self._keys: dict[str, bytes] = {}
        self._rows: list[Row] = []
        self._tagged: dict[str, list[int]] = defaultdict(list)

    def commit(self, commit: Commit) -> Lsns:
        """See ``Engine``."""
        with self._lock:
            found = {each.key: self._keys.get(each.key) for each in commit.conditions}
            if any(found[each.key] != each.value for each in commit.conditions):
                raise Refused(found)
            tail = len(self._rows)
            first = tail + 1 if commit.entries else tail
            last = tail + len(commit.entries)
            for put in commit.puts:
                value = stamped(put, first, last)
                if value is None:
                    self._keys.pop(put.key, None)
                else:
                    self._keys[put.key] = value
            for lsn, entry in enumerate(commit.entries, first):
                self._rows.append(Row(lsn, entry.body, entry.tags))
                for tag in set(entry.tags):
                    self._tagged[tag].append(lsn)
            return Lsns(first, last)

    def get(self, keys: tuple[str, ...]) -> dict[str, bytes | None]:
        """See ``Engine``."""
        with self._lock:
            return {key: self._keys.get(key) for key in keys}

    def scan(self, prefix: str) -> dict[str, bytes]:
        """See ``Engine``."""
        with self._lock:
            return {key: value for key, value in self._keys.items() if key.startswith(prefix)}

    def read(self, after: int, limit: int, tag: str | None = None) -> Rows:
        """See ``Engine``."""
        with self._lock:
            tail = len(self._rows)
            if tag is None:
                found = self._rows[after : after + limit]
                return Rows(found, found[-1].lsn if found else max(after, tail))
            lsns = self._tagged.get(tag, [])
            place = bisect_right(lsns, after)
            rows = [self._rows[lsn - 1] for lsn in lsns[place : place + limit]]
            cut = place + limit < len(lsns)
            return Rows(rows, rows[-1].lsn if cut else max(after, tail))

    def tail(self) -> int:
        """See ``Engine``."""
        with self._lock:
            return len(self._rows)

    def close(self) -> None:
        """See ``Engine``."""
