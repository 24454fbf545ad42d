"""The ``-wal`` beside a log file, and whether somebody cut it off while it is open.

SQLite writes behind what it knows to be there: into a file that was cut off it writes beyond a
hole, and what it says is durable is not found after a restart.
"""

from __future__ import annotations

import os
from pathlib import Path

_HEADER_BYTES = 32
# With what a header begins, of either byte order.
_MAGIC = (b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83")


class WalFile:
    """What is known of it. For whoever writes, one at a time.

    It begins anew with another header, as SQLite does once all of it is in the log file; only then
    may it be shorter than before.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._header = b""
        self._size = 0

    def cut_off(self) -> bool:
        """Whether it was, before this transaction; to be asked while it has the file's lock."""
        header, size = self._look()
        cut = (
            _no_header(header)
            or 0 < size < _HEADER_BYTES
            or (header == self._header != b"" and size < self._size)
        )
        self._header, self._size = header, size
        return cut

    def written_beyond(self) -> bool:
        """Whether what was just committed lies behind a hole."""
        header, size = self._look()
        # Another process may have begun it anew by now: its size is not known then.
        self._size = size if header == self._header else 0
        self._header = header
        return _no_header(header)

    def close(self) -> None:
        """Let go of it; idempotent. (SQLite's locks are in other files.)"""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def _look(self) -> tuple[bytes, int]:
        # In this order: one that begins anew meanwhile has another header at the next look.
        size = os.fstat(self._file).st_size
        return os.pread(self._file, _HEADER_BYTES, 0), size


def _no_header(header: bytes) -> bool:
    return header != b"" and not header.startswith(_MAGIC)
