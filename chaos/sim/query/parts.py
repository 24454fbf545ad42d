"""Model of the world: what each task of a batch has, whichever attempt reads it."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Protocol

from sharedlog._core.producers import NewMessage
from sharedlog._core.publishing import Placed, pending, size_of
from sharedlog._core.ranges import Range, RangeReader
from sharedlog._core.steps import Rule
from sharedlog._core.streams import tag_of

__all__ = [
    "IN",
    "OUT",
    "SUBSTREAMS",
    "Part",
    "Reading",
    "given",
    "of_range",
    "placed",
    "tags_of",
    "written",
]

# The stream that queries read, and the one that they write.
IN, OUT = "in", "out"
SUBSTREAMS = 3
_AT_ONCE = 8


def tags_of(stream: str) -> list[str]:
    """Return the tags of a stream's substreams."""
    return [tag_of(stream, each) for each in range(SUBSTREAMS)]


class Reading(Protocol):
    """An attempt's way through its part."""

    def read(self) -> Rule[list[bytes]]:
        """Return what comes next; nothing: that was all."""


# Begins to read.
Part = Callable[[], Reading]


class _OfRange:
    def __init__(self, of: Range, incarnation: str, change: Callable[[bytes], bytes]) -> None:
        self._reader = RangeReader(of, incarnation)
        self._change = change

    def read(self) -> Rule[list[bytes]]:
        found = yield from self._reader.read(_AT_ONCE)
        return [self._change(each.envelope) for each in found]


class _Given:
    def __init__(self, rows: Sequence[bytes]) -> None:
        self._left = list(rows)

    def read(self) -> Rule[list[bytes]]:
        yield from ()
        found, self._left = self._left[:_AT_ONCE], self._left[_AT_ONCE:]
        return found


def of_range(of: Range, incarnation: str, change: Callable[[bytes], bytes]) -> Part:
    """Return a part that has the messages of a range, each changed."""
    return lambda: _OfRange(of, incarnation, change)


def given(rows: Sequence[bytes]) -> Part:
    """Return a part that has these rows."""
    return lambda: _Given(rows)


def written(rows: Sequence[bytes]) -> list[NewMessage]:
    """Return rows as messages that are appended pending."""
    return pending(placed(OUT, rows))


def placed(stream: str, rows: Sequence[bytes]) -> list[Placed]:
    """Return rows as messages of a stream, by their content."""
    tags = [tag_of(stream, zlib.crc32(each) % SUBSTREAMS) for each in rows]
    return [Placed(row, tag, size_of(row, tag)) for row, tag in zip(rows, tags, strict=True)]
