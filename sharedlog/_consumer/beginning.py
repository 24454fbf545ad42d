"""The beginning of a consumer of a new name: an end of its stream, a time or a position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from sharedlog._core.consumer.holding import Begins, Since
from sharedlog._core.errors import InvalidRequest
from sharedlog._core.holds import BEGINNING, END
from sharedlog._core.position import Position
from sharedlog._core.streams import stream_of, substream_number


def begins_of(start: str | datetime | Position, tags: Sequence[str]) -> Mapping[str, Begins]:
    """Return where it begins in each substream; raises ``InvalidRequest``."""
    if isinstance(start, datetime):
        if start.tzinfo is None:
            raise InvalidRequest(f"start={start!r} has no time zone")
        return dict.fromkeys(tags, Since(int(start.timestamp() * 1_000_000)))
    if not isinstance(start, Position):
        if start not in (BEGINNING, END):
            raise InvalidRequest(
                f"start={start!r:.100}; it is {BEGINNING!r}, {END!r}, a datetime or a position"
            )
        return dict.fromkeys(tags, start)
    streams = sorted({stream_of(each) for each in tags})
    if len(streams) > 1:
        raise InvalidRequest(
            f"start={str(start)!r}: a position says no stream, and there are "
            f"{', '.join(streams)}: give a time"
        )
    if not any(substream_number(each) == start.substream for each in tags):
        raise InvalidRequest(f"start={str(start)!r} is of no substream of {streams[0]}")
    return {
        each: start if substream_number(each) == start.substream else start.lsn + 1 for each in tags
    }
