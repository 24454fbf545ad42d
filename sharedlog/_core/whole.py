"""The whole part of a log: trimming takes a prefix away, and says what of the rest to read.

``trimmed`` has from which LSN on commits are whole, through which LSN rows are removed (below
that: rows of transactions that are not whole, or may become so), and the time of the newest row
that is not whole (DESIGN-LOG §12, L6).
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from sharedlog._core.errors import CorruptLog, TrimmedLog
from sharedlog._core.steps import Get, Rule

TRIMMED = "trimmed"
_VALUE = struct.Struct(">QQQ")


class Trimmed(NamedTuple):
    """Commits from ``whole`` on are whole, rows through ``removed`` are not there.

    ``at_us``: the time of the row below ``whole``.
    """

    whole: int = 1
    removed: int = 0
    at_us: int = 0

    def check(self, lsn: int) -> None:
        """Raise ``TrimmedLog`` if commits from this LSN on are not all whole."""
        if lsn < self.whole:
            raise TrimmedLog(
                f"what begins at LSN {lsn} was trimmed: commits are whole from LSN {self.whole} on",
                self.whole,
                (lsn, self.whole - 1),
            )

    def value(self) -> bytes:
        """Return what the key gets."""
        return _VALUE.pack(*self)


def trimmed_of(value: bytes | None) -> Trimmed:
    """Return what the key says; where it is absent, nothing was ever trimmed."""
    if value is None:
        return Trimmed()
    if len(value) != _VALUE.size:
        raise CorruptLog("what was declared trimmed is not what was written")
    return Trimmed(*_VALUE.unpack(value))


def read_trimmed() -> Rule[Trimmed]:
    """Return what was declared trimmed."""
    return trimmed_of((yield Get((TRIMMED,)))[TRIMMED])
