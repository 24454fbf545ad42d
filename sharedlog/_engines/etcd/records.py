"""Records of appends in etcd, packed and unpacked."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from google.protobuf.message import DecodeError

from sharedlog._core.commit import NewEntry
from sharedlog._core.entry import Row
from sharedlog._core.errors import CorruptLog
from sharedlog._engines.etcd.keys import MARK_BYTES, AppendPlace
from sharedlog._engines.etcd.v1 import etcd_pb2 as pb


def pack(mark: bytes, first: int, at_us: int, entries: Sequence[NewEntry]) -> bytes:
    """Return an append's value: its transaction's mark, then its time and its entries."""
    record = pb.LogRecord(at_us=at_us)
    for lsn, entry in enumerate(entries, first):
        record.entries.add(
            body=bytes(entry.body), tags=entry.tags, checksum=_checksum(lsn, entry.tags, entry.body)
        )
    return mark + record.SerializeToString()


def unpack(place: AppendPlace, value: bytes) -> list[Row]:
    """Return an append's rows; raises ``CorruptLog`` for what is not as it was written."""
    record = pb.LogRecord()
    try:
        record.ParseFromString(value[MARK_BYTES:])
    except DecodeError as error:
        raise CorruptLog(f"the append that ends at LSN {place.last} is damaged") from error
    if len(record.entries) != place.entries or not place.entries:
        raise CorruptLog(f"the append that ends at LSN {place.last} is damaged")
    rows = []
    for lsn, entry in enumerate(record.entries, place.first):
        tags = tuple(entry.tags)
        if _checksum(lsn, tags, entry.body) != entry.checksum:
            raise CorruptLog(f"LSN {lsn} is damaged: its checksum is wrong")
        rows.append(Row(lsn, entry.body, tags, record.at_us))
    return rows


def _checksum(lsn: int, tags: Sequence[str], body: bytes) -> int:
    # At its place: it is right at no other.
    head = "\n".join((str(lsn), *tags)).encode()
    return zlib.crc32(body, zlib.crc32(b"%d %s" % (len(head), head)))
