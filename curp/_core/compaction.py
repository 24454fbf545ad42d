"""The compaction of a log: a snapshot, and what is trimmed behind it (DESIGN §7, invariant 8).

A generator that its shell drives, as ``curp._core.recovery`` is. Whatever the shell raises
ends it, and costs nothing but the snapshot: the next one covers what this one would have.
A shell that was told to ``Halt`` lets calls run again however the rule ends.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple

from curp._core.steps import Sync


class Halt(NamedTuple):
    """Let what runs end, and nothing begin; send back whether that came about in time."""


class Copy(NamedTuple):
    """Copy the services' state and the group's into memory; send back the LSN applied.

    None if the leadership is over.
    """


class GoOn(NamedTuple):
    """Let calls run again."""


class Save(NamedTuple):
    """Save what was copied as the snapshot at ``lsn``."""

    lsn: int


class Trim(NamedTuple):
    """Trim the log through ``through``."""

    through: int


def compact(kept_behind: int) -> Generator[Any, Any, int | None]:
    """Take a snapshot at the log's tail, and trim behind it; returns its LSN.

    ``kept_behind``: entries that stay, for standbys that are not far behind. None if it
    could not be taken now.
    """
    if not (yield Halt()):
        return None
    # Nothing runs: once all is synced, the services' state is the log's.
    yield Sync()
    lsn: int | None = yield Copy()
    yield GoOn()
    if lsn is None:
        return None
    yield Save(lsn)
    if lsn > kept_behind:
        yield Trim(lsn - kept_behind)
    return lsn
