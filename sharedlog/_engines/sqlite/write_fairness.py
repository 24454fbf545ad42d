"""The fairness of processes that write one file: who waits comes before who has just written.

SQLite has no order of who waits for its lock: who writes one transaction after the other takes it
again before anybody else has looked. Who waits therefore locks a byte of a file beside it, and who
is about to begin looks whether somebody does.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path

# Far behind what is in the file.
_BYTE = 1 << 40
# How long one that waits is given way to, and for how long it is passed over if it did not come:
# it may have been stopped.
_GIVE_S, _PASS_OVER_S = 0.5, 10.0
_LOOK_S = 0.0002
_LOCK = struct.Struct("hhqqi0q")


def _of(kind: int) -> bytes:
    return _LOCK.pack(kind, os.SEEK_SET, _BYTE, 1, 0)


_WRITE, _NONE = _of(fcntl.F_WRLCK), _of(fcntl.F_UNLCK)


class WriteFairness:
    """That of one handle on the file; one thread at a time. Without its file everybody is free.

    The lock is the handle's (of the open file), and goes with its process.
    """

    def __init__(self, path: Path) -> None:
        """``path``: a file that all who write have; it is not made."""
        self._file: int | None = None
        self._waits = False
        self._passed_over_until = 0.0
        with contextlib.suppress(OSError):
            self._file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)

    def give_way(self, wait: Callable[[float], object]) -> None:
        """Let one that waits go first. ``wait`` pauses; True ends it."""
        if not self._awaited():
            return
        began = time.monotonic()
        if began < self._passed_over_until:
            return
        while self._awaited():
            if time.monotonic() - began >= _GIVE_S:
                self._passed_over_until = time.monotonic() + _PASS_OVER_S
                return
            if wait(_LOOK_S):
                return

    def waits(self) -> None:
        """Have others give way to this one, unless they do to another one already."""
        if not self._waits and self._file is not None:
            with contextlib.suppress(OSError):
                fcntl.fcntl(self._file, fcntl.F_OFD_SETLK, _WRITE)
                self._waits = True

    def came(self) -> None:
        """It waits no more."""
        if self._waits and self._file is not None:
            self._waits = False
            with contextlib.suppress(OSError):
                fcntl.fcntl(self._file, fcntl.F_OFD_SETLK, _NONE)

    def close(self) -> None:
        """Let go of the file; idempotent."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def _awaited(self) -> bool:
        if self._file is None:
            return False
        try:
            found = fcntl.fcntl(self._file, fcntl.F_OFD_GETLK, _WRITE)
        except OSError:
            return False
        return bool(_LOCK.unpack(found)[0] != fcntl.F_UNLCK)
