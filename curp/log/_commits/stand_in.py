"""A stand-in, in the tables of format 1, for a log of format 2 of the same group.

Where the tables of both formats are beside each other, an earlier release would not find the log,
and its ``curp init`` would make another one. It finds this, which is not served from.
"""

from __future__ import annotations

from curp.log._engine import NewLog
from curp.log._states import MOVED_KEY, Place

_PLACE = Place("format 2", "format 2 in the same place, which this release does not know", 0)


def stand_in() -> NewLog:
    """Return what it is created with: it says that the log was moved."""
    return NewLog({MOVED_KEY: _PLACE.to_bytes()})


def stands_in(moved: bytes | None) -> bool:
    """Whether a log of format 1 with this under ``MOVED_KEY`` is one."""
    return moved == _PLACE.to_bytes()
