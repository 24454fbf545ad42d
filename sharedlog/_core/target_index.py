"""The index of a target: through which message it has taken a substream (DESIGN-LOG §15, P1)."""

from __future__ import annotations

import re
from typing import NamedTuple

from google.protobuf.message import DecodeError

from sharedlog._core.errors import CorruptLog, InvalidRequest, NewerFormat
from sharedlog._core.position import Position
from sharedlog.v1 import target_pb2 as pb
from sharedlog.v1.log_pb2 import Place

VERSION = 1
# What may be skipped and not confirmed.
MAX_SKIPPED = 100
MAX_REASON_CHARS, MAX_BY_CHARS = 1000, 200
_MAX_LOG_CHARS = 200
_NONE = "a target's index in its store is none"
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,179}/(?:0|[1-9][0-9]{0,2})")


class Feed(NamedTuple):
    """Whose index it is: a log by its name, and the number of the index."""

    log: str
    number: int

    def check(self) -> None:
        """Raise ``InvalidRequest`` for what can be none."""
        if not 0 < len(self.log) <= _MAX_LOG_CHARS or not self.log.isprintable():
            raise InvalidRequest(f"a log's name has 1 to {_MAX_LOG_CHARS} printable characters")

    def index_key(self, tag: str) -> str:
        """Return the key of the row that has the index of a substream."""
        return f"index/{self.number}/{tag}@{self.log}"

    def connects_key(self, tag: str) -> str:
        """Return the key of the row that counts how often players connected."""
        return f"connects/{self.number}/{tag}@{self.log}"


class SkippedMessage(NamedTuple):
    """A message that was passed over: where it is, its number, why, who decided it, and when."""

    place: Position
    number: int
    reason: str
    by: str
    at_us: int


class Index(NamedTuple):
    """How far a target is in a substream.

    ``at``: the last message taken, None for none; ``taken``: how many were. ``begun``: a ``plain``
    handler was begun with the next one. ``skips``: the highest number of a skip; ``skipped``:
    those that are not among the dead letters yet, as far as is known.
    """

    at: Position | None = None
    taken: int = 0
    begun: Position | None = None
    skips: int = 0
    skipped: tuple[SkippedMessage, ...] = ()

    @property
    def incarnation(self) -> str:
        """Of the log that it was fed from; empty if it never was."""
        known = self.at or self.begun
        return "" if known is None else known.incarnation

    def taking(self, place: Position) -> Index:
        """Return it behind a message that was taken."""
        return self._replace(at=place, taken=self.taken + 1, begun=None)

    def moving(self, place: Position) -> Index:
        """Return it at a place before which there is nothing to take."""
        return self._replace(at=place)

    def skipping(self, skip: SkippedMessage) -> Index:
        """Return it behind a message that is passed over."""
        kept = skip._replace(
            number=self.skips + 1,
            reason=skip.reason[:MAX_REASON_CHARS],
            by=skip.by[:MAX_BY_CHARS],
        )
        return self.taking(skip.place)._replace(skips=self.skips + 1, skipped=(*self.skipped, kept))

    def confirming(self, number: int) -> Index:
        """Return it without the skips up to this number."""
        return self._replace(skipped=tuple([s for s in self.skipped if s.number > number]))


class Connects(NamedTuple):
    """How often players connected while the index was at a place (None: before all)."""

    at: Position | None = None
    times: int = 0

    def of(self, index: Index) -> int:
        """Return how often, since the index is where it is."""
        return self.times if self.at == index.at else 0

    def once_more(self, index: Index) -> Connects:
        """Return it with one more."""
        return Connects(index.at, min(self.of(index) + 1, (1 << 32) - 1))


def check_tag(tag: str) -> None:
    """Raise ``InvalidRequest`` unless this is the tag of a substream."""
    if not _TAG.fullmatch(tag):
        raise InvalidRequest(f"{tag[:200]!r} is no tag: a stream's name, /, a substream's number")


def pack_index(index: Index) -> bytes:
    """Return what the store keeps of an index."""
    kept = pb.KeptIndex(
        version=VERSION, incarnation=index.incarnation, taken=index.taken, skips=index.skips
    )
    _put(kept.at, index.at)
    _put(kept.begun, index.begun)
    for skip in index.skipped:
        added = kept.skipped.add(
            number=skip.number, reason=skip.reason, by=skip.by, at_us=skip.at_us
        )
        _put(added.place, skip.place)
    return kept.SerializeToString()


def unpack_index(data: bytes | None) -> Index:
    """Read what ``pack_index`` gave; raises ``NewerFormat`` and ``CorruptLog``."""
    if data is None:
        return Index()
    try:
        kept = pb.KeptIndex.FromString(data)
    except DecodeError as error:
        raise CorruptLog(_NONE) from error
    _check_version(kept)
    incarnation = kept.incarnation
    return Index(
        _place(kept, "at", incarnation),
        kept.taken,
        _place(kept, "begun", incarnation),
        kept.skips,
        tuple(
            [
                SkippedMessage(_position(s.place, incarnation), s.number, s.reason, s.by, s.at_us)
                for s in kept.skipped
            ]
        ),
    )


def pack_connects(connects: Connects) -> bytes:
    """Return what the store keeps of the number of connects."""
    kept = pb.KeptConnects(version=VERSION, count=connects.times)
    if connects.at is not None:
        kept.incarnation = connects.at.incarnation
        _put(kept.at, connects.at)
    return kept.SerializeToString()


def unpack_connects(data: bytes | None) -> Connects:
    """Read what ``pack_connects`` gave; raises ``NewerFormat`` and ``CorruptLog``."""
    if data is None:
        return Connects()
    try:
        kept = pb.KeptConnects.FromString(data)
    except DecodeError as error:
        raise CorruptLog(_NONE) from error
    _check_version(kept)
    return Connects(_place(kept, "at", kept.incarnation), kept.count)


def _check_version(kept: pb.KeptIndex | pb.KeptConnects) -> None:
    if kept.version > VERSION:
        raise NewerFormat(
            f"a target's index of version {kept.version}: a newer release wrote it, this one "
            f"knows {VERSION}"
        )
    if kept.version != VERSION:
        raise CorruptLog(_NONE)


def _put(place: Place, position: Position | None) -> None:
    if position is not None:
        place.lsn, place.ordinal, place.checksum = position[:3]
        place.substream = position.substream
        # One at nothing but zeros is there, too.
        place.SetInParent()


def _place(kept: pb.KeptIndex | pb.KeptConnects, name: str, incarnation: str) -> Position | None:
    return _position(getattr(kept, name), incarnation) if kept.HasField(name) else None


def _position(place: Place, incarnation: str) -> Position:
    return Position(place.lsn, place.ordinal, place.checksum, incarnation, place.substream)
