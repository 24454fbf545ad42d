"""The streams of a log: their names, substreams and retention (DESIGN-LOG §12).

``stream/NAME`` has a ``Stream`` of the protocol.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from google.protobuf.message import DecodeError

from sharedlog._core.arguments import check_time, check_whole, shown
from sharedlog._core.calling import portable
from sharedlog._core.commit import Commit, Condition, Put, Refused
from sharedlog._core.errors import CorruptLog, InvalidRequest, NewerFormat, NoSuchStream
from sharedlog._core.steps import Get, Rule, Scan
from sharedlog._core.streams import check_name
from sharedlog.v1 import sharedlog_pb2 as pb

VERSION = 1
SUBSTREAMS = 8
# A marker has one entry with a tag for each substream that it commits.
MAX_SUBSTREAMS = 512
RETENTION = timedelta(days=1)
MAX_RETENTION = timedelta(days=36_500)
STREAMS = "stream/"
# Without a sign of its follower a hold is overdue after the stream's retention, or this.
_OVERDUE = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream as the log keeps it. ``retention``: its messages are kept at least that long."""

    name: str
    substreams: int
    retention: timedelta


def hold_retention_us(stream: Stream) -> int:
    """Return after how long without a sign of life a follower of a stream is overdue."""
    return max(stream.retention, _OVERDUE) // timedelta(microseconds=1)


def name_of(stream: str | Stream) -> str:
    """Return the name of a stream that is given by it, or by itself; raises ``InvalidRequest``."""
    if isinstance(stream, str):
        return stream
    if not isinstance(stream, Stream) or not isinstance(stream.name, str):
        raise InvalidRequest(f"{shown(stream)} is no stream, and no stream's name")
    return stream.name


def check_stream(name: str, substreams: int | None, retention: timedelta | None) -> None:
    """Raise ``InvalidRequest`` unless a stream can be so."""
    check_name(name)
    if substreams is not None:
        check_whole(substreams, "substreams", 1, MAX_SUBSTREAMS)
    if retention is not None:
        check_time(retention, "retention")
        if retention > MAX_RETENTION:
            raise InvalidRequest(
                f"a retention of {retention}; it is 0 to {MAX_RETENTION.days} days"
            )


@portable
def make_stream(
    name: str, substreams: int | None = None, retention: timedelta | None = None
) -> Rule[Stream]:
    """Create a stream, or find the one that has the name; run again it finds it.

    None: that of the existing stream, by default ``SUBSTREAMS`` and ``RETENTION``. Raises
    ``InvalidRequest`` for what cannot be, and if the existing stream differs.
    """
    check_stream(name, substreams, retention)
    key = STREAMS + name
    while True:
        value = (yield Get((key,)))[key]
        if value is not None:
            found = _read(name, value)
            _check_same(found, substreams, retention)
            return found
        made = Stream(
            name,
            SUBSTREAMS if substreams is None else substreams,
            RETENTION if retention is None else retention,
        )
        try:
            yield Commit((Condition(key, None),), (Put(key, _written(made)),))
        except Refused:
            continue
        return made


@portable
def find_stream(name: str) -> Rule[Stream]:
    """Return the stream of this name; raises ``NoSuchStream``."""
    check_name(name)
    key = STREAMS + name
    value = (yield Get((key,)))[key]
    if value is None:
        raise NoSuchStream(f"there is no stream {name!r}: log.stream({name!r}) makes it")
    return _read(name, value)


@portable
def all_streams() -> Rule[list[Stream]]:
    """Return the streams of the log, by name."""
    found = yield Scan(STREAMS)
    return [_read(key.removeprefix(STREAMS), found[key]) for key in sorted(found)]


def _check_same(found: Stream, substreams: int | None, retention: timedelta | None) -> None:
    if substreams not in (None, found.substreams):
        raise InvalidRequest(
            f"stream {found.name!r} has {found.substreams} substreams, not {substreams}: the "
            "number is fixed, since keys would change their substream and lose their order"
        )
    if retention not in (None, found.retention):
        raise InvalidRequest(
            f"stream {found.name!r} keeps its messages for {found.retention}, not {retention}"
        )


def _written(stream: Stream) -> bytes:
    return pb.Stream(
        version=VERSION,
        substreams=stream.substreams,
        retention_us=stream.retention // timedelta(microseconds=1),
    ).SerializeToString()


def _read(name: str, value: bytes) -> Stream:
    try:
        found = pb.Stream.FromString(value)
    except DecodeError as error:
        raise CorruptLog(f"what is kept of stream {name!r} is not what was written") from error
    if found.version > VERSION:
        raise NewerFormat(f"stream {name!r} is of version {found.version}; a newer release made it")
    if not found.version or not found.substreams:
        raise CorruptLog(f"what is kept of stream {name!r} is not what was written")
    return Stream(name, found.substreams, timedelta(microseconds=found.retention_us))
