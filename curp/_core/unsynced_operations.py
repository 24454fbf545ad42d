"""Unsynced operations: what is not in the log yet, by conflict key (CURP §3.2.3)."""

from __future__ import annotations


class UnsyncedOperations:
    """Tells whether an operation commutes with all that are not in the log.

    Operations are noted by their LSN, in order, and let go of in order. Not
    thread-safe. A step costs time in proportion to the operation's keys.
    """

    def __init__(self) -> None:
        # The newest operation with each key.
        self._newest: dict[int, int] = {}
        self._newest_of_all = 0
        # The newest that conflicts with everything.
        self._newest_keyless = 0
        self._synced = 0

    def conflict(self, keys: frozenset[int]) -> int:
        """Return the LSN of the newest unsynced operation in conflict, 0 if there is none."""
        newest = self._newest_keyless
        if not keys:
            newest = max(newest, self._newest_of_all)
        else:
            for key in keys:
                lsn = self._newest.get(key, 0)
                if lsn > newest:
                    newest = lsn
        return newest if newest > self._synced else 0

    def note(self, lsn: int, keys: frozenset[int]) -> None:
        """Take an operation that got its place in the log, and is not in it yet."""
        self._newest_of_all = lsn
        if not keys:
            self._newest_keyless = lsn
        for key in keys:
            self._newest[key] = lsn

    def synced(self, lsn: int, keys: frozenset[int]) -> None:
        """Let go of an operation that is in the log, like all before it."""
        self._synced = max(self._synced, lsn)
        for key in keys:
            if self._newest.get(key) == lsn:
                del self._newest[key]
