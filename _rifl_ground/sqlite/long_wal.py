"""The length of a file's WAL: emptied when it is long, and bounded while a connection reads."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from pathlib import Path
from typing import Protocol

from _rifl_ground.log import get_logger

_log = get_logger("rifl.sqlite")
# At this length a connection that reads keeps the WAL from being emptied; it is looked at again
# whenever it has grown by so much more.
LONG_WAL_BYTES = 64 << 20
_WAL_STEP_BYTES = 16 << 20
# A WAL never takes more than this, nor more than what is left free on the disk.
WAL_BYTES = 4 << 30


class _Guard(Protocol):
    path: Path

    @property
    def wal_bytes(self) -> int: ...

    def check(self) -> None: ...


class LongWal:
    """Empties a WAL that has grown long, and says when it is too long for more.

    ``tend_at``: the length from which it must be looked at. ``pinned``: why nothing new may be
    written although commits work, None if it may.
    """

    def __init__(self, connection: sqlite3.Connection, guard: _Guard) -> None:
        self.tend_at = LONG_WAL_BYTES
        self.pinned: Exception | None = None
        self._connection = connection
        self._guard = guard

    def tend(self) -> bool:
        """Empty it, unless a reader is in the way; whether ``pinned`` is another now.

        Raises ``Stopped`` if the file is another one.
        """
        guard = self._guard
        emptied = False
        with contextlib.suppress(sqlite3.OperationalError):
            emptied = not self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
        guard.check()
        if emptied:
            self.tend_at = LONG_WAL_BYTES
            if self.pinned is None:
                return False
            self.pinned = None
            _log.info("wal_emptied", file=str(guard.path))
            return True
        if self.tend_at == LONG_WAL_BYTES:
            _log.warning("wal_not_emptied", file=str(guard.path), bytes=guard.wal_bytes)
        self.tend_at = guard.wal_bytes + _WAL_STEP_BYTES
        if self.pinned is not None or guard.wal_bytes <= self._limit():
            return False
        self.pinned = sqlite3.OperationalError(
            f"its -wal has {guard.wal_bytes} bytes, and a connection that reads keeps it from "
            "being emptied: end that transaction"
        )
        _log.error("wal_too_long", file=str(guard.path), bytes=guard.wal_bytes)
        return True

    def _limit(self) -> int:
        return min(WAL_BYTES, shutil.disk_usage(self._guard.path.parent).free)
