"""The holding of what targets have not taken: holds in the log, behind what is acknowledged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from sharedlog._core.catalog import Stream, find_stream, hold_retention_us
from sharedlog._core.errors import HoldMoved
from sharedlog._core.following import Moment, find_starts
from sharedlog._core.holds import Hold, all_holds, check_held, move, take
from sharedlog._core.names import NameKind, own_name
from sharedlog._core.player.deadletters import first_of
from sharedlog._core.position import Position
from sharedlog._core.steps import Rule
from sharedlog._core.streams import tag_of
from sharedlog._core.whole import read_trimmed


class Follows(NamedTuple):
    """What a target follows: streams, by name, and where it begins if it was never there."""

    streams: tuple[str, ...]
    start: Position | Moment | str


def hold_name(player: str, target: str, number: int) -> str:
    """Return the name of the holds of a target's index."""
    return own_name(NameKind.PLAYER, player, target, number)


def streams_of(names: Iterable[str]) -> Rule[list[Stream]]:
    """Return streams by their names; raises ``NoSuchStream``."""
    found = []
    for each in sorted(names):
        found.append((yield from find_stream(each)))
    return found


def tags_of(names: Iterable[str]) -> Rule[list[str]]:
    """Return the tags of streams' substreams."""
    found = yield from streams_of(names)
    return [tag for each in found for tag in _tags(each)]


def take_holds(
    name: str, follows: Follows, incarnation: str, now_us: int, first: int = 0
) -> Rule[dict[str, Hold]]:
    """Return a target's hold of each substream; new ones where it was declared to begin.

    ``first``: at this LSN, if it is not 0. Raises ``TrimmedLog`` if one was dropped.
    """
    found: dict[str, Hold] = {}
    for stream in (yield from streams_of(follows.streams)):
        starts = yield from _starts(stream, follows.start, incarnation, first)
        found |= yield from take(name, starts, incarnation, now_us, hold_retention_us(stream))
    return found


def move_holds(
    name: str, held: Mapping[str, Hold], acknowledged: Mapping[str, Position], now_us: int
) -> Rule[dict[str, Hold]]:
    """Move a target's holds to what it has acknowledged, or renew them; return the holds.

    Raises ``TrimmedLog`` if an operator dropped one, or it was removed.
    """
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
        return (yield from move(held, places, now_us))
    except HoldMoved:
        # Another player of this name was further on.
        found = {each.tag: each for each in (yield from all_holds(name))}
        trimmed = yield from read_trimmed()
        for tag, hold in held.items():
            check_held(found.get(tag), hold, trimmed)
        return found


def _tags(stream: Stream) -> list[str]:
    return [tag_of(stream.name, number) for number in range(stream.substreams)]


def _starts(
    stream: Stream, start: Position | Moment | str, incarnation: str, first: int
) -> Rule[Mapping[str, int | str]]:
    tags = _tags(stream)
    if first:
        return dict.fromkeys(tags, first)
    if isinstance(start, Position):
        # Its commit is taken, too: nothing of a transaction is taken without the rest.
        start.check(incarnation, stream.substreams)
        return dict.fromkeys(tags, (yield from first_of(start)))
    if isinstance(start, Moment):
        found = yield from find_starts(tags, incarnation, start)
        return {tag: at if isinstance(at, int) else at.lsn for tag, at in found.items()}
    return dict.fromkeys(tags, start)
