"""An entry: one row of the log, and what it says of the append that it belongs to."""

from __future__ import annotations

import enum
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from google.protobuf.message import DecodeError

from sharedlog._core.errors import CorruptLog, NewerFormat
from sharedlog.v1 import sharedlog_pb2 as pb

VERSION = 1


class EntryKind(enum.Enum):
    """The kind of an entry for its readers."""

    COMMITTED = pb.COMMITTED
    PENDING = pb.PENDING
    MARKER = pb.MARKER
    ROLLBACK = pb.ROLLBACK


# An enumeration's ``value`` is looked up by a descriptor, each time.
_KINDS: dict[int, EntryKind] = {each.value: each for each in EntryKind}
_NUMBERS: dict[EntryKind, pb.Kind] = {each: each.value for each in EntryKind}


class ProducerDecision(NamedTuple):
    """Of one producer: everything pending through this seq; where that begins, by tag."""

    producer: int
    through: int
    begins: Mapping[str, int]


class Row(NamedTuple):
    """What an engine keeps under an LSN. ``at_us``: microseconds since 1970, never falling."""

    lsn: int
    body: bytes
    tags: tuple[str, ...]
    at_us: int = 0


# Not frozen, which would cost more than reading it: no code changes one.
@dataclass(slots=True)
class Entry:
    """A row, read. ``index`` of ``count`` in its append; ``message`` is an envelope's bytes.

    ``at_us``: when it was appended, by the log's time.
    """

    lsn: int
    kind: EntryKind
    index: int
    count: int
    producer: int
    seq: int
    message: bytes
    decisions: tuple[ProducerDecision, ...]
    body: bytes
    at_us: int = 0
    # Of a named producer, whose seq this is.
    name: str = ""
    # Of the last entry of its append, which committed itself; of that one 0.
    last_checksum: int = 0

    @property
    def checksum(self) -> int:
        """The CRC-32 of its row's body; positions have that of the entry that commits."""
        return zlib.crc32(self.body)

    @property
    def last_lsn(self) -> int:
        """The LSN of the last entry of its append: by it a commit is named."""
        return self.lsn - self.index + self.count - 1


def checksum_of(body: bytes) -> int:
    """Return the CRC-32 of an entry's body."""
    return zlib.crc32(body)


def body_of(
    kind: EntryKind,
    producer: int,
    seq: int,
    *,
    index: int = 0,
    count: int = 1,
    message: bytes = b"",
    decisions: Sequence[ProducerDecision] = (),
    name: str = "",
) -> bytes:
    """Return the bytes of an entry; the same for the same arguments."""
    return pb.Entry(
        version=VERSION,
        kind=_NUMBERS[kind],
        index=index,
        count=count,
        producer=producer,
        seq=seq,
        message=message,
        decisions=[
            pb.Decision(
                producer=each.producer,
                through=each.through,
                spans=[pb.Span(tag=tag, begin=each.begins[tag]) for tag in sorted(each.begins)],
            )
            for each in decisions
        ],
        name=name,
    ).SerializeToString()


def committed_bodies(
    envelopes: Sequence[bytes], producer: int, seq: int, name: str = ""
) -> list[bytes]:
    """Return the bodies of an append's entries that it commits by itself.

    Each says the checksum of the last one, by which the commit is named: who reads one substream
    need not read that one, too.
    """
    # One object for all of them: making it costs twice what the rest of an entry does.
    entry = pb.Entry(
        version=VERSION,
        kind=pb.COMMITTED,
        count=len(envelopes),
        producer=producer,
        seq=seq,
        name=name,
    )
    found: list[bytes] = []
    for index in range(len(envelopes) - 1, -1, -1):
        entry.index = index
        entry.message = envelopes[index]
        body = entry.SerializeToString()
        if not found:
            entry.last_checksum = zlib.crc32(body)
        found.append(body)
    found.reverse()
    return found


def parsed(body: bytes) -> pb.Entry | None:
    """Return a body that is one of a committed message; None: ``read_row`` says what it is."""
    try:
        found = pb.Entry.FromString(body)
    except DecodeError:
        return None
    if found.kind != pb.COMMITTED or found.version != VERSION or found.index >= found.count:
        return None
    return found


def read_row(row: Row) -> Entry:
    """Read a row; raises ``CorruptLog`` for what is no entry, ``NewerFormat`` for a newer one."""
    lsn, body, _, at_us = row
    try:
        found = pb.Entry.FromString(body)
    except DecodeError as error:
        raise CorruptLog(f"LSN {lsn} is no entry") from error
    version = found.version
    kind = _KINDS.get(found.kind)
    index, count = found.index, found.count
    if version > VERSION:
        raise NewerFormat(f"LSN {lsn} is of format {version}: a newer release wrote it")
    if not version or kind is None or index >= count:
        raise CorruptLog(f"LSN {lsn} is no entry")
    decisions: tuple[ProducerDecision, ...] = ()
    if kind is not EntryKind.COMMITTED and kind is not EntryKind.PENDING:
        decisions = tuple(
            ProducerDecision(
                each.producer, each.through, {span.tag: span.begin for span in each.spans}
            )
            for each in found.decisions
        )
    return Entry(
        lsn,
        kind,
        index,
        count,
        found.producer,
        found.seq,
        found.message,
        decisions,
        body,
        at_us,
        found.name,
        found.last_checksum,
    )
