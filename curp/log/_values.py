"""Entries, leaderships, conditions and snapshots: values that a group's log takes and returns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

# The most that one read returns, unless the reader says otherwise.
READ_ENTRIES = 1000
READ_BYTES = 8 << 20


class NewLogEntry(NamedTuple):
    """What is appended: opaque bytes, and the tags readers may select it by."""

    body: bytes
    tags: tuple[str, ...] = ()


class LogEntry(NamedTuple):
    """What was appended. LSNs start at 1 and have no gaps."""

    lsn: int
    body: bytes
    tags: tuple[str, ...] = ()


class EngineLimits(NamedTuple):
    """What one append may hold: so many entries, and bytes of their bodies and tags."""

    entries: int
    append_bytes: int


class Leadership(NamedTuple):
    """Who leads, by the engine's own clock.

    ``expires_in_s`` is what is left of the lease, seconds, 0.0 or less once it is
    over. ``configuration`` stays current after that until another is taken.
    """

    configuration: int
    replica: str
    address: str
    expires_in_s: float


class MetadataCondition(NamedTuple):
    """A write happens only if ``key`` holds exactly ``value`` (None: is absent)."""

    key: str
    value: bytes | None


class Snapshot(NamedTuple):
    """State with the effects of the entries up to ``lsn``, and of no others."""

    lsn: int
    chunks: Iterator[bytes]


class NewLog(NamedTuple):
    """What a log is created with, all in one atomic step, or ``LogExists``.

    ``metadata`` has at least the log's id (``curp.log._creation``). Only the copy of
    another log begins behind 0: ``trimmed`` entries that are not in it, and the
    ``configuration`` number it goes on from, whose lease is over.
    """

    metadata: Mapping[str, bytes]
    trimmed: int = 0
    configuration: int = 0
