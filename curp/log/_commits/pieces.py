"""Pieces of snapshots: chunks cut to what a key takes, and put together again."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator

from curp.log._errors import CorruptLog

PIECE_BYTES = 512 << 10
# A checksum, and whether the chunk ends with this piece.
_HEADER = struct.Struct(">I?")


def cut(chunk: bytes, first: int) -> Iterator[bytes]:
    """Cut a chunk into pieces, at least one; ``first``: the number of that."""
    for number, start in enumerate(range(0, max(1, len(chunk)), PIECE_BYTES), first):
        data = bytes(chunk[start : start + PIECE_BYTES])
        last = start + PIECE_BYTES >= len(chunk)
        yield _HEADER.pack(_checksum(number, data, last), last) + data


def join(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Put the chunks of a snapshot together again; raises ``CorruptLog``."""
    parts: list[bytes] = []
    for number, piece in enumerate(pieces):
        if len(piece) < _HEADER.size:
            raise CorruptLog(f"piece {number} of the snapshot is damaged")
        checksum, last = _HEADER.unpack_from(piece)
        data = piece[_HEADER.size :]
        if _checksum(number, data, last) != checksum:
            raise CorruptLog(f"piece {number} of the snapshot is damaged")
        parts.append(data)
        if last:
            yield b"".join(parts)
            parts = []
    if parts:
        raise CorruptLog("the snapshot's last chunk has no end")


def _checksum(number: int, data: bytes, last: bool) -> int:
    return zlib.crc32(data, zlib.crc32(b"%d %d " % (2 * number + last, len(data))))
