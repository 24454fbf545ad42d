"""Entries and chunks as stores keep them: packed, and checked for damage and gaps."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Sequence

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


def unpack_rows(
    rows: Iterable[tuple[int, bytes, str | bytes, int | bytes, bytes | None]],
    after: int,
    tag: str | None,
) -> list[Entry]:
    """Return the entries of what a store found behind ``after``, in its order.

    A row has an LSN, the append's id, tags, checksum and body, None for an entry that is
    not there. Raises ``CorruptLog`` for a gap (unless a tag was asked for), damage, and an
    entry that does not carry the tag.
    """
    found: list[Entry] = []
    for lsn, append_id, tags, checksum, body in rows:
        if body is None:
            raise CorruptLog.without(lsn)
        if tag is None and lsn != after + len(found) + 1:
            raise CorruptLog.without(after + len(found) + 1)
        found.append(unpack_entry(lsn, append_id, tags, checksum, body))
        require_tag(found[-1], tag)
    return found


def require_tag(entry: Entry, tag: str | None) -> None:
    """Raise ``CorruptLog`` for an entry that was found under a tag which it does not carry."""
    if tag is not None and tag not in entry.tags:
        raise CorruptLog(f"entry {entry.lsn} is listed under the tag {tag!r} of another")


def require_chunk(
    lsn: int, number: int, count: int, checksum: int | None, chunk: bytes | None
) -> bytes:
    """Return a chunk of the snapshot at ``lsn``; ``CorruptLog`` if it is missing or damaged."""
    if chunk is None:
        raise CorruptLog(f"the snapshot at {lsn} lacks its chunk {number} of {count}")
    if chunk_checksum(number, chunk) != checksum:
        raise CorruptLog(f"chunk {number} of the snapshot at {lsn} is damaged")
    return chunk


def chunk_checksum(number: int, chunk: bytes) -> int:
    """Return the CRC-32 of a snapshot's chunk at its place."""
    return zlib.crc32(chunk, zlib.crc32(b"%d %d " % (number, len(chunk))))
