"""The ``-wal`` beside a SQLite file, and whether a process cut it off while it is open.

SQLite writes behind what it knows to be there: into a file that was cut off it writes beyond a
hole, and what it says is durable is not found after a restart.
"""

from __future__ import annotations

import os
from pathlib import Path

from _rifl_ground.files import open_beside

_HEADER_BYTES = 32
# SQLite cuts a longer one to this with the first commit after it began anew: our connections tell
# it to (``journal_size_limit``). What is beyond is not held against it.
KEPT_BYTES = 8 << 20
# With what a header begins, of either byte order.
_MAGIC = (b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83")


class WalFile:
    """What is known of it. Any thread.

    It begins anew with another header, as SQLite does once all of it is in the one file; only then
    may it be shorter than before.
    """

    def __init__(self, path: Path) -> None:
        self._file = open_beside(path, os.O_RDONLY)
        self._seen = (b"", 0)

    @property
    def size(self) -> int:
        """How long it was when it was last looked at."""
        return self._seen[1]

    def cut_off(self) -> bool:
        """Whether it was, since it was last looked at; to be asked before a commit."""
        # As long as it only grows its header need not be read.
        return os.fstat(self._file).st_size < self._seen[1] and self.written_beyond()

    def written_beyond(self) -> bool:
        """The same after a commit, which may lie beyond a hole."""
        # In this order: another thread may look meanwhile, at more.
        known_header, known_size = self._seen
        header, size = seen = self._look()
        if header == known_header:
            beyond = size < known_size and size < KEPT_BYTES and header != b""
        else:
            # It began anew between the two looks, maybe: the size can be the old one's.
            again, size = self._look()
            size = size if again == header else 0
            seen = header, size
            beyond = (header != b"" and not header.startswith(_MAGIC)) or 0 < size < _HEADER_BYTES
        if not beyond:
            self._seen = seen
        return beyond

    def close(self) -> None:
        """Close the descriptor; idempotent. (SQLite's locks are in other files.)"""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def _look(self) -> tuple[bytes, int]:
        # In this order: what still has the known header had it when the size was read.
        size = os.fstat(self._file).st_size
        return os.pread(self._file, _HEADER_BYTES, 0), size
