"""How damage to what an engine keeps is noticed."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

__all__ = ["chunk_checksum", "entry_checksum"]


def entry_checksum(lsn: int, append_id: bytes, tags: Sequence[str], body: bytes) -> int:
    """Return the CRC-32 of an entry at its place, so that it is right at no other."""
    head = b"%d %s %d %d " % (lsn, append_id, len(tags), len(body))
    for tag in tags:
        encoded = tag.encode()
        head += b"%d %s" % (len(encoded), encoded)
    return zlib.crc32(body, zlib.crc32(head))


def chunk_checksum(number: int, chunk: bytes) -> int:
    """Return the CRC-32 of a snapshot's chunk at its place."""
    return zlib.crc32(chunk, zlib.crc32(b"%d %d " % (number, len(chunk))))
