"""Entries and chunks as stores keep them: packed, and checked for damage and gaps."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence

from curp.log._engine import Entry
from curp.log._errors import CorruptLog


def pack_tags(tags: Sequence[str]) -> str:
    """Return tags as a JSON list."""
    return json.dumps(tags, ensure_ascii=False) if tags else "[]"


def unpack_tags(packed: str | bytes) -> tuple[str, ...]:
    """Return the tags of a JSON list; raises ``CorruptLog``."""
    try:
        tags = json.loads(packed)
    except (ValueError, TypeError) as error:
        raise CorruptLog(f"an entry's tags are damaged: {error}") from error
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        raise CorruptLog("an entry's tags are damaged: they are no list of texts")
    return tuple(tags)


def entry_checksum(lsn: int, append_id: bytes, tags: Sequence[str], body: bytes) -> int:
    """Return the CRC-32 of an entry at its place, so that it is right at no other."""
    head = b"%d %s %d %d " % (lsn, append_id, len(tags), len(body))
    for tag in tags:
        encoded = tag.encode()
        head += b"%d %s" % (len(encoded), encoded)
    return zlib.crc32(body, zlib.crc32(head))


def unpack_entry(
    lsn: int, append_id: bytes, packed_tags: str | bytes, checksum: int | bytes, body: bytes
) -> Entry:
    """Return an entry as it was appended; raises ``CorruptLog`` for a damaged one."""
    try:
        tags = unpack_tags(packed_tags)
        expected, found = int(checksum), entry_checksum(lsn, append_id, tags, body)
    except (ValueError, TypeError) as error:
        raise CorruptLog(f"entry {lsn} is damaged: {error}") from error
    if found != expected:
        raise CorruptLog(f"entry {lsn} is damaged: its checksum is {found:08x}, not {expected:08x}")
    return Entry(lsn, body, tags)


def chunk_checksum(number: int, chunk: bytes) -> int:
    """Return the CRC-32 of a snapshot's chunk at its place."""
    return zlib.crc32(chunk, zlib.crc32(b"%d %d " % (number, len(chunk))))
