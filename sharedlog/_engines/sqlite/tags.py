"""The index of a log's tags in a SQLite file, which is written for many entries at once.

An entry has its tags in its own row. A row of the index has what a tag got in some hundreds of
entries; the newest entries, fewer than ``UNINDEXED``, are in none yet, and a read by tag looks at
them one by one. So most appends write no index, and reads are as fast.
"""

from __future__ import annotations

import itertools
import sqlite3
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

from sharedlog._core.errors import CorruptLog

# How many entries the next append finds at most that are not in the index.
UNINDEXED = 256
# What a tag got in fewer entries than these goes on in the row before it, of up to so many. Where
# there are more such tags at once it does not: that would cost each append more than it saves.
_FEW, _MANY, _FEW_TAGS = 8, 64, 16
# How far apart a row's LSNs may be.
_FURTHEST = (1 << 32) - 1
# Between tags, none of which has it.
BETWEEN = "\n"
# Of a text of tags that is remembered.
_SHORT = 256
_INSERT = "INSERT INTO sharedlog_tag VALUES (?, ?, ?)"
_INDEXED = "UPDATE sharedlog_head SET indexed = ?"
_TAGGED = "SELECT last, below FROM sharedlog_tag WHERE tag = ? AND last > ? ORDER BY last LIMIT ?"
_NEWEST = (
    "SELECT lsn, at_us, tags, mark FROM sharedlog_entry WHERE lsn > ? AND lsn <= ? ORDER BY lsn"
)
_LAST = "SELECT last, below FROM sharedlog_tag WHERE tag = ? ORDER BY last DESC LIMIT 1"
_TAKE = "DELETE FROM sharedlog_tag WHERE tag = ? AND last = ?"
_REMOVE = "DELETE FROM sharedlog_tag WHERE tag = ? AND last <= ?"


def index(
    connection: sqlite3.Connection, indexed: int, tail: int, known: Sequence[tuple[int, str]]
) -> None:
    """Put the entries above ``indexed``, through the tail, into the index.

    ``known``: LSN and tags of the last ones of them, through the tail, which are not read.
    """
    found: dict[str, list[int]] = {}
    # Most entries have the tags of others.
    by_text: dict[str, list[list[int]]] = {}
    unknown = _newest(connection, indexed, known[0][0] - 1 if known else tail)
    for lsn, text in itertools.chain(unknown, known):
        mine = by_text.get(text)
        if mine is None:
            mine = [found.setdefault(tag, []) for tag in dict.fromkeys(tags_of(text))]
            by_text[text] = mine
        for lsns in mine:
            lsns.append(lsn)
    seldom = [(tag, lsns) for tag, lsns in found.items() if len(lsns) < _FEW]
    if len(seldom) <= _FEW_TAGS:
        for tag, lsns in seldom:
            _join(connection, tag, lsns)
    connection.executemany(_INSERT, [(tag, lsns[-1], _below(lsns)) for tag, lsns in found.items()])
    connection.execute(_INDEXED, (tail,))


def _join(connection: sqlite3.Connection, tag: str, lsns: list[int]) -> None:
    """Merge a rare tag's new entries with its last row, and remove that row.

    Else a read by such a tag reads nearly a row of the index for each entry.
    """
    row = connection.execute(_LAST, (tag,)).fetchone()
    if row is None:
        return
    try:
        before = _lsns(tag, *row)
    except CorruptLog:
        # For who reads by it to find.
        return
    if len(before) < _MANY and before[-1] < lsns[0] and lsns[-1] - before[0] <= _FURTHEST:
        connection.execute(_TAKE, (tag, row[0]))
        lsns[:0] = before


def tagged(
    connection: sqlite3.Connection, tag: str, after: int, limit: int, indexed: int, tail: int
) -> list[int]:
    """Return the first LSNs above ``after`` that have the tag."""
    wanted: list[int] = []
    for last, below in connection.execute(_TAGGED, (tag, after, limit)):
        lsns = _lsns(tag, last, below)
        if wanted and lsns[0] <= wanted[-1]:
            raise CorruptLog(f"the index of {tag!r} goes back behind LSN {wanted[-1]}")
        wanted += [lsn for lsn in lsns if lsn > after]
        if last > indexed:
            raise CorruptLog(f"the index of {tag!r} goes on behind LSN {indexed}, where it ends")
        if len(wanted) >= limit:
            return wanted[:limit]
    if max(after, indexed) < tail:
        newest = _newest(connection, max(after, indexed), tail)
        wanted += [lsn for lsn, text in newest if tag in text and tag in tags_of(text)]
    return wanted[:limit]


def remove(connection: sqlite3.Connection, texts: Iterable[str], last: int) -> None:
    """Remove what the index has through this LSN of entries with these tags."""
    tags = {tag for text in texts for tag in tags_of(text)}
    # A row that reaches beyond goes with what it ends with.
    connection.executemany(_REMOVE, [(tag, last) for tag in tags])


def tags_of(text: str) -> tuple[str, ...]:
    """Return the tags of an entry, of its row's text."""
    return _few(text) if len(text) <= _SHORT else tuple(text.split(BETWEEN))


# Most entries have one of few texts, and a tuple that they share is one that nothing collects.
@lru_cache(maxsize=256)
def _few(text: str) -> tuple[str, ...]:
    return tuple(text.split(BETWEEN)) if text else ()


def mark_of(lsn: int, at_us: int, text: str) -> int:
    """Return what a row has to tell that its tags are what was written."""
    return zlib.crc32(f"{lsn} {at_us} {text}".encode())


def _newest(connection: sqlite3.Connection, after: int, tail: int) -> Iterator[tuple[int, str]]:
    """Yield LSN and tags of all entries above ``after``; raises ``CorruptLog``."""
    for lsn, at_us, text, mark in connection.execute(_NEWEST, (after, tail)):
        after += 1
        if lsn != after:
            raise CorruptLog(f"LSN {after} is missing")
        if mark_of(lsn, at_us, text) != mark:
            raise CorruptLog(f"LSN {lsn} is damaged")
        yield lsn, text
    if after < tail:
        raise CorruptLog(f"LSN {after + 1} is missing")


def _below(lsns: Sequence[int]) -> bytes | None:
    if len(lsns) == 1:
        return None
    last = lsns[-1]
    return struct.pack(f"<{len(lsns) - 1}I", *[last - lsn for lsn in reversed(lsns[:-1])])


def _lsns(tag: str, last: int, below: bytes | None) -> list[int]:
    """Return the LSNs of a row of the index, growing; raises ``CorruptLog``."""
    if not isinstance(last, int):
        raise CorruptLog(f"the index of {tag!r} is damaged: {last!r} is no LSN")
    if below is None:
        return [last]
    if not isinstance(below, bytes) or not below or len(below) % 4:
        raise CorruptLog(f"the index of {tag!r} through LSN {last} is damaged")
    steps = struct.unpack(f"<{len(below) // 4}I", below)
    # Growing, and none is the last one itself: so no LSN is there twice.
    if not steps[0] or list(steps) != sorted(set(steps)):
        raise CorruptLog(f"the index of {tag!r} through LSN {last} is damaged")
    return [last - each for each in reversed(steps)] + [last]
