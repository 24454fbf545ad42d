"""The length of a file's WAL: emptied when it is long, and bounded while somebody reads."""

from __future__ import annotations

import contextlib
import sqlite3

from _rifl_ground.log import get_logger
from rifl._stores.sqlite.file_guard import Guard

_log = get_logger("rifl.store")
# A WAL of this length is kept from being emptied by somebody who reads; it is looked at again
# whenever it has grown by so much more.
LONG_WAL_BYTES = 64 << 20
_WAL_STEP_BYTES = 16 << 20


class LongWal:
    """Empties a WAL that has grown long, and says when it is too long for new calls.

    ``tend_at``: the length from which it is to be looked at. ``pinned``: why new calls are
    refused although commits work, None if they are not.
    """

    def __init__(self, connection: sqlite3.Connection, guard: Guard) -> None:
        self.tend_at = LONG_WAL_BYTES
        self.pinned: Exception | None = None
        self._connection = connection
        self._guard = guard

    def tend(self) -> bool:
        """Empty it, unless a reader is in the way; whether ``pinned`` is another now.

        Raises ``Replaced`` if the file is another one.
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
            _log.info("wal_emptied")
            return True
        if self.tend_at == LONG_WAL_BYTES:
            _log.warning("wal_not_emptied", bytes=guard.wal_bytes)
        self.tend_at = guard.wal_bytes + _WAL_STEP_BYTES
        if self.pinned is not None or guard.wal_bytes <= guard.wal_limit():
            return False
        self.pinned = sqlite3.OperationalError(
            f"its -wal has {guard.wal_bytes} bytes, and a connection that reads keeps it from "
            "being emptied: end that transaction"
        )
        _log.error("wal_too_long", bytes=guard.wal_bytes)
        return True
