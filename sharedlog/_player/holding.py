"""The holding of what targets have not taken: holds in the log, behind what is acknowledged."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime
from functools import partial

from sharedlog._core.catalog import Stream, find_stream
from sharedlog._core.errors import HoldMoved
from sharedlog._core.following import find_starts
from sharedlog._core.holds import Hold, all_holds, forget, move, take
from sharedlog._core.player.deadletters import first_of
from sharedlog._core.position import Position
from sharedlog._core.streams import tag_of
from sharedlog._log.following import hold_retention_us, start_of
from sharedlog._log.place import Place
from sharedlog._log.resending import until_answered
from sharedlog._player.declared import Target


def streams_of(place: Place, target: Target) -> list[Stream]:
    """Return the streams that a target follows; raises ``NoSuchStream``."""
    return [place.run(find_stream(name)) for name in sorted(target.methods)]


def tags_of(place: Place, target: Target) -> list[str]:
    """Return its substreams' tags."""
    return [
        tag_of(each.name, number)
        for each in streams_of(place, target)
        for number in range(each.substreams)
    ]


def take_holds(place: Place, target: Target, name: str, first: int) -> dict[str, Hold]:
    """Return a target's hold of each substream; new ones where it was declared to begin.

    ``first``: at this LSN, if it is not 0. Raises ``TrimmedLog`` where one was dropped.
    """
    found: dict[str, Hold] = {}
    now_us = time.time_ns() // 1000
    for stream in streams_of(place, target):
        tags = [tag_of(stream.name, number) for number in range(stream.substreams)]
        starts = _starts(place, target, stream, tags, first)
        taking = partial(take, name, starts, place.incarnation, now_us, hold_retention_us(stream))
        found |= until_answered(place, taking)
    return found


def _starts(
    place: Place, target: Target, stream: Stream, tags: list[str], first: int
) -> Mapping[str, int | str]:
    start = target.start
    if first:
        return dict.fromkeys(tags, first)
    if isinstance(start, Position):
        # Its commit is taken, too: nothing of a transaction is taken without the rest.
        start_of(place, stream, start)
        return dict.fromkeys(tags, place.run(first_of(start)))
    if isinstance(start, datetime):
        found = place.run(find_starts(tags, place.incarnation, start_of(place, stream, start)))
        return {tag: at if isinstance(at, int) else at.lsn for tag, at in found.items()}
    return dict.fromkeys(tags, start)


def move_holds(
    place: Place, name: str, held: Mapping[str, Hold], acknowledged: Mapping[str, Position]
) -> dict[str, Hold]:
    """Move a target's holds to what it has acknowledged, or renew them; return them as they are.

    Raises ``TrimmedLog`` where an operator dropped one.
    """
    now_us = time.time_ns() // 1000
    places: dict[str, Position | None] = {}
    for tag, hold in held.items():
        at = acknowledged.get(tag)
        if at is not None and at[:2] > hold.place:
            places[tag] = at
        elif 4 * (now_us - hold.renewed_us) > hold.retention_us:
            places[tag] = None
    if not places:
        return dict(held)
    try:
        return until_answered(place, lambda: move(held, places, now_us))
    except HoldMoved:
        # Another player of this name was further on.
        return {each.tag: each for each in place.run(all_holds(name))}


def let_go(place: Place, name: str) -> None:
    """Remove the holds of an index that is no longer fed."""
    place.run(forget(name))
