"""Bodies of a group's entries: with which append they are of, and tags as they were given."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Sequence
from typing import NamedTuple

from curp.log._errors import CorruptLog
from curp.log._values import LogEntry, NewLogEntry
from sharedlog._core import commit
from sharedlog._core.entry import Row
from sharedlog._engines.checks import MAX_TAG_BYTES

# The append's id; how many entries of it follow; how many bytes of tags do.
_HEADER = struct.Struct(">16sHI")
HEADER_BYTES = _HEADER.size
# Begins those that stand for tags which no engine takes as they are.
_STANDS_IN = "#"


class Header(NamedTuple):
    """Which append an entry is of, and how many entries of it follow."""

    append_id: bytes
    follow: int


def packed(append_id: bytes, entries: Sequence[NewLogEntry]) -> tuple[commit.NewEntry, ...]:
    """Return the rows of an append."""
    rows = []
    for follow, entry in zip(reversed(range(len(entries))), entries, strict=True):
        tags = entry.tags and tuple(map(engine_tag, entry.tags))
        told = b"" if tags == entry.tags else json.dumps(entry.tags).encode()
        header = _HEADER.pack(append_id, follow, len(told))
        rows.append(commit.NewEntry(b"".join((header, told, entry.body)), tags))
    return tuple(rows)


def header_of(row: Row) -> Header:
    """Return a row's header; raises ``CorruptLog``."""
    append_id, follow, _ = _unpack(row)
    return Header(append_id, follow)


def entry_of(row: Row) -> LogEntry:
    """Return the entry of a row; raises ``CorruptLog``."""
    _, _, size = _unpack(row)
    if not size:
        return LogEntry(row.lsn, row.body[HEADER_BYTES:], row.tags)
    end = HEADER_BYTES + size
    try:
        tags = tuple(map(str, json.loads(row.body[HEADER_BYTES:end])))
    except (ValueError, TypeError) as error:
        raise CorruptLog(f"entry {row.lsn} is damaged: {error}") from error
    return LogEntry(row.lsn, row.body[end:], tags)


def engine_tag(tag: str) -> str:
    """Return the tag itself, or what stands for it: too long, of several lines, or like those."""
    size = len(tag.encode())
    if size <= MAX_TAG_BYTES and "\n" not in tag and not tag.startswith(_STANDS_IN):
        return tag
    return _STANDS_IN + hashlib.sha256(tag.encode()).hexdigest()


def _unpack(row: Row) -> tuple[bytes, int, int]:
    if len(row.body) < HEADER_BYTES:
        raise CorruptLog(f"entry {row.lsn} is damaged: it has no header")
    found: tuple[bytes, int, int] = _HEADER.unpack_from(row.body)
    return found
