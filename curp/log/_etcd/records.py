"""Values in etcd: appends, and pieces of snapshots, packed and unpacked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from google.protobuf.message import DecodeError

from curp.log._checks import APPEND_ID_BYTES
from curp.log._engine import Entry, NewEntry
from curp.log._entries import chunk_checksum, entry_checksum
from curp.log._errors import CorruptLog
from curp.log._etcd.v1 import records_pb2 as pb


def pack_append(after: int, append_id: bytes, entries: Sequence[NewEntry]) -> bytes:
    """Return an append's value: its id, then the entries with a checksum each."""
    record = pb.AppendRecord()
    for lsn, entry in enumerate(entries, after + 1):
        record.entries.add(
            body=bytes(entry.body),
            tags=entry.tags,
            checksum=entry_checksum(lsn, append_id, entry.tags, entry.body),
        )
    return append_id + record.SerializeToString()


def unpack_append(last: int, value: bytes) -> list[Entry]:
    """Return the entries of the append that ends at ``last``; raises ``CorruptLog``."""
    append_id, packed = value[:APPEND_ID_BYTES], value[APPEND_ID_BYTES:]
    record = pb.AppendRecord()
    try:
        record.ParseFromString(packed)
    except DecodeError as error:
        raise CorruptLog(f"the append that ends with entry {last} is damaged: {error}") from error
    if not record.entries:
        raise CorruptLog(f"the append that ends with entry {last} is empty")
    found = []
    for lsn, entry in enumerate(record.entries, last - len(record.entries) + 1):
        tags = tuple(entry.tags)
        if entry_checksum(lsn, append_id, tags, entry.body) != entry.checksum:
            raise CorruptLog(f"entry {lsn} is damaged: its checksum is wrong")
        found.append(Entry(lsn, entry.body, tags))
    return found


def cut(chunk: bytes, size: int, first: int) -> Iterator[bytes]:
    """Cut a snapshot's chunk into pieces, at least one; ``first``: the number of that."""
    starts = range(0, max(1, len(chunk)), size)
    for number, start in enumerate(starts, first):
        data = bytes(chunk[start : start + size])
        last = start + size >= len(chunk)
        yield pb.SnapshotPiece(
            checksum=_piece_checksum(number, data, last), data=data, last=last
        ).SerializeToString()


def join(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Put the chunks of a snapshot together again; raises ``CorruptLog``."""
    parts: list[bytes] = []
    for number, value in enumerate(pieces):
        piece = pb.SnapshotPiece()
        try:
            piece.ParseFromString(value)
        except DecodeError as error:
            raise CorruptLog(f"piece {number} of the snapshot is damaged: {error}") from error
        if _piece_checksum(number, piece.data, piece.last) != piece.checksum:
            raise CorruptLog(f"piece {number} of the snapshot is damaged")
        parts.append(piece.data)
        if piece.last:
            yield b"".join(parts)
            parts = []
    if parts:
        raise CorruptLog("the snapshot's last chunk has no end")


def _piece_checksum(number: int, data: bytes, last: bool) -> int:
    return chunk_checksum(2 * number + last, data)
