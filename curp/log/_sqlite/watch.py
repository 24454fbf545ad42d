"""A watch of a log file, which tells that some process wrote to it."""

from __future__ import annotations

import time

from curp.log import _checks as checks
from curp.log._errors import EngineStopped
from curp.log._sqlite.rows import group_row
from sharedlog._engines.sqlite.file import LogFile

# Polling reads a counter in memory that the processes share: some 10 us a look. Right
# after a change, more are likely.
_SHORTEST_S = 0.001
_LONGEST_S = 0.010
_GROWTH = 1.1


class TailWatch:
    """Waits for a group's tail to move. Any thread, any number of them.

    A follower learns of an append at most 10 ms after it is durable, when the
    machine is not overloaded.
    """

    def __init__(self, file: LogFile, group_id: int) -> None:
        self._file = file
        self._group_id = group_id
        self._version = -1
        self._tail = 0

    def wait(self, after: int, timeout_s: float) -> int:
        """Return the tail once it is above ``after``, or when the time is over."""
        end = time.monotonic() + timeout_s
        pause_s = _SHORTEST_S
        while True:
            tail = self._look()
            checks.check_position(after, 0, tail)
            left_s = end - time.monotonic()
            if tail > after or left_s <= 0:
                return tail
            if self._file.closing.wait(min(pause_s, left_s)):
                raise EngineStopped("the log engine was closed")
            pause_s = min(pause_s * _GROWTH, _LONGEST_S)

    def _look(self) -> int:
        with self._file.watching() as connection:
            version = connection.execute("PRAGMA data_version").fetchone()[0]
            # Asked for before the tail: a commit in between shows the next time.
            if version != self._version:
                self._tail = group_row(connection, self._group_id).tail
                self._version = version
            return self._tail
