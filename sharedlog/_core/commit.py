"""The one step of an engine: conditions judged, keys put and entries appended together.

The rules of a log are built on this alone, so that an engine has one thing to get right, and
several writers need no lock between them (DESIGN-LOG §18).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import NamedTuple

LSN_BYTES = 8


class Condition(NamedTuple):
    """``key`` holds exactly ``value``; None: it is absent."""

    key: str
    value: bytes | None


class Stamp(enum.Enum):
    """Which of the commit's LSNs the engine appends to a value: a writer cannot know them."""

    NONE = "none"
    FIRST = "first"
    LAST = "last"


class Put(NamedTuple):
    """``key`` gets ``value``, and behind it the stamp's LSN, 8 bytes; None deletes it.

    ``term_s``: so many seconds later, by the engine's clock, it is absent, as if it had been
    deleted; None: it stays. Each put begins a term anew, or ends it.
    """

    key: str
    value: bytes | None
    stamp: Stamp = Stamp.NONE
    term_s: float | None = None


class NewEntry(NamedTuple):
    """What is appended: opaque bytes, and the tags readers select it by."""

    body: bytes
    tags: tuple[str, ...] = ()


class Commit(NamedTuple):
    """All of it happens, or nothing: each condition holds, each key is put, entries adjacent.

    A key is named once in ``puts``. Stamps need at least one entry. ``at_us``: when, by the
    writer's clock, microseconds since 1970 (the driver of a rule fills it in); the rows
    get that, or the time of the row before them if that is later.
    """

    conditions: tuple[Condition, ...] = ()
    puts: tuple[Put, ...] = ()
    entries: tuple[NewEntry, ...] = ()
    at_us: int = 0


class Refused(Exception):
    """A condition did not hold, and nothing was written.

    ``found``: what the keys of *all* the commit's conditions held in that moment.
    """

    def __init__(self, found: Mapping[str, bytes | None]) -> None:
        """``found``: each condition's key and its value."""
        super().__init__(dict(found))
        self.found = dict(found)


def only_renews(put: Put, conditions: Sequence[Condition]) -> bool:
    """Whether a put changes nothing but its key's term, wherever these conditions hold."""
    return (
        put.term_s is not None
        and put.stamp is Stamp.NONE
        and Condition(put.key, put.value) in conditions
    )


_NONE, _FIRST = Stamp.NONE, Stamp.FIRST


def stamped(put: Put, first: int, last: int) -> bytes | None:
    """Return what an engine keeps for a put, where the commit's entries got these LSNs."""
    if put.value is None or put.stamp is _NONE:
        return put.value
    lsn = first if put.stamp is _FIRST else last
    return put.value + lsn.to_bytes(LSN_BYTES, "big")
