"""Holds: what a follower has not done yet is not trimmed (DESIGN-LOG §12, L6).

``hold/NAME/TAG`` has the place of one follower in one substream, and the log's incarnation: once
that is another one, what its follower has done is not known, and its name is refused until it is
forgotten. ``holds`` counts those that were made: a trim that did not see the newest one is refused.
One that an operator dropped stays as dropped, so that its owner learns of it, until it is
forgotten.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, NoReturn

from sharedlog._core.calling import portable
from sharedlog._core.commit import Commit, Condition, Put, Refused
from sharedlog._core.errors import (
    CorruptLog,
    HoldMoved,
    InvalidRequest,
    LogError,
    LogForked,
    NewerFormat,
    TrimmedLog,
)
from sharedlog._core.names import check_hold_name
from sharedlog._core.position import Position
from sharedlog._core.reading import place_at, verify
from sharedlog._core.steps import Ends, Get, Lsns, Rule, Scan
from sharedlog._core.streams import substream_number
from sharedlog._core.whole import TRIMMED, Trimmed, read_trimmed, trimmed_of

HOLDS = "holds"
BEGINNING, END = "beginning", "end"
_PREFIX = "hold/"
# Version, dropped or not, LSN, time of renewal, retention; the position's text follows, or, where
# nothing is done yet, "@" and the incarnation. After a space comes the note, if there is one.
_VALUE = struct.Struct(">B?QQQ")
_VERSION = 1
# Holds that one commit is about: etcd takes few keys.
_PIECE = 32

Start = Position | int | str


class Hold(NamedTuple):
    """The hold of one follower (``name``) on a substream (``tag``): its committed position.

    ``lsn``: commits from there on are kept whole for it. ``position``: it has done everything
    through this; None: nothing yet. ``renewed_us``: when it was moved or renewed last; after
    ``retention_us`` without that it is overdue. ``dropped``: an operator dropped it, and it keeps
    nothing. ``incarnation``: of the log that it was made in. ``note``: what its follower says of
    itself; it does not travel over gRPC.
    """

    name: str
    tag: str
    lsn: int
    position: Position | None
    renewed_us: int
    retention_us: int
    dropped: bool = False
    incarnation: str = ""
    note: str = ""

    @property
    def place(self) -> tuple[int, int]:
        """What holds of one substream are compared by."""
        if self.position is None:
            return (self.lsn - 1, -1)
        return (self.position.lsn, self.position.ordinal)

    def check_incarnation(self, incarnation: str) -> None:
        """Raise ``LogForked`` if it was made, or moved, in a log of another incarnation."""
        if self.incarnation != incarnation:
            raise LogForked(
                f"the hold of {self.name!r} on {self.tag} is of incarnation {self.incarnation}, "
                f"the log is {incarnation}: it was restored and declared so. What its follower has "
                "done is not known to the log. Forget the name to begin anew"
            )

    def overdue(self, now_us: int) -> bool:
        """Say whether its follower has not been heard of for longer than it said."""
        return not self.dropped and now_us - self.renewed_us > self.retention_us

    def start(self) -> Position | int:
        """Return where its follower goes on."""
        return self.lsn if self.position is None else self.position


def hold_key(name: str, tag: str) -> str:
    """Return the key of a hold."""
    return f"{_PREFIX}{name}/{tag}"


@portable
def all_holds(name: str | None = None) -> Rule[list[Hold]]:
    """Return the holds of the log, or of one name; the dropped ones, too."""
    found = yield Scan(_PREFIX if name is None else hold_key(name, ""))
    return [_read(key, value) for key, value in sorted(found.items())]


def each_hold() -> Rule[list[Hold | LogError]]:
    """Return the holds of the log, or what is wrong with one."""
    found = yield Scan(_PREFIX)
    each: list[Hold | LogError] = []
    for key, value in sorted(found.items()):
        try:
            each.append(_read(key, value))
        except LogError as error:
            each.append(error)
    return each


def take(
    name: str,
    starts: Mapping[str, Start],
    incarnation: str,
    now_us: int,
    retention_us: int,
    *,
    held: bool = False,
    note: str = "",
) -> Rule[dict[str, Hold]]:
    """Return a name's hold of each tag, making those that are not there yet, unless it ``held``.

    ``starts``: where a new one begins: behind a position, at an LSN, ``BEGINNING`` or ``END``.
    ``note``: of new ones.
    From the return on nothing behind them is trimmed. Raises ``TrimmedLog`` for a new hold
    below what is whole, and for one that was dropped, or was ``held`` and is not there;
    ``LogForked`` for a position of another log.
    One of another incarnation is returned: ``Hold.check_incarnation``. Some at a time, as they
    fit any engine: of a name that is taken in part the rest is taken by running it again.
    """
    check_hold_name(name)
    for start in starts.values():
        if isinstance(start, Position):
            start.check_incarnation(incarnation)
    taken: dict[str, Hold] = {}
    for piece in _pieces(list(starts)):
        mine = {tag: starts[tag] for tag in piece}
        times = (now_us, retention_us)
        taken |= yield from _take(name, mine, incarnation, *times, held=held, note=note)
    return taken


def _take(
    name: str,
    starts: Mapping[str, Start],
    incarnation: str,
    now_us: int,
    retention_us: int,
    *,
    held: bool,
    note: str,
) -> Rule[dict[str, Hold]]:
    keys = tuple(hold_key(name, tag) for tag in starts)
    while True:
        found = yield Get((*keys, TRIMMED, HOLDS))
        trimmed = trimmed_of(found[TRIMMED])
        holds: dict[str, Hold] = {}
        made: list[Put] = []
        ends: Lsns = yield Ends()
        for (tag, start), key in zip(starts.items(), keys, strict=True):
            value = found[key]
            if value is not None:
                hold = _read(key, value)
                check_held(hold, hold, trimmed)
            else:
                place: Position | None = None
                lsn: Start = start
                if isinstance(start, Position):
                    place, lsn = start, start.lsn
                elif isinstance(start, str):
                    lsn = {BEGINNING: trimmed.whole, END: ends.last + 1}.get(start, start)
                if not isinstance(lsn, int):
                    raise InvalidRequest(f"{start!r} is no place to begin at")
                trimmed.check(lsn)
                if place is not None:
                    yield from verify(place)
                times = (now_us, retention_us)
                hold = Hold(name, tag, lsn, place, *times, incarnation=incarnation, note=note)
                if held:
                    check_held(None, hold, trimmed)
                made.append(_put(hold))
            holds[tag] = hold
        if not made:
            return holds
        conditions = (
            *(Condition(put.key, None) for put in made),
            # Not below what is whole by now, and no trim that has not seen these.
            Condition(TRIMMED, found[TRIMMED]),
            Condition(HOLDS, found[HOLDS]),
        )
        count = 1 + int.from_bytes(found[HOLDS] or b"", "big")
        try:
            yield Commit(conditions, (*made, Put(HOLDS, count.to_bytes(8, "big"))))
        except Refused:
            continue
        return holds


def move(
    held: Mapping[str, Hold],
    places: Mapping[str, Position | None],
    now_us: int,
    *,
    note: str | None = None,
) -> Rule[dict[str, Hold]]:
    """Move holds forward, or renew them, some in each step, and return all with the changes.

    ``held``: as the follower saw them last; ``places``: through where it is done with each, None
    for one that stays where it is and is renewed; ``note``: theirs from now on. Run again after a
    lost reply it changes nothing more. Raises ``HoldMoved`` for a place below the hold's,
    ``TrimmedLog`` for a hold that was dropped.
    """
    held = dict(held)
    for piece in _pieces(list(places)):
        held |= yield from _move(held, {tag: places[tag] for tag in piece}, now_us, note)
    return held


def move_named(
    name: str, places: Mapping[str, Position | int | None], incarnation: str, now_us: int
) -> Rule[dict[str, Hold]]:
    """Move a name's holds forward, for a follower that is not at hand; return those of ``places``.

    ``places``: as ``move`` has them, and LSNs through which there was nothing to do; positions
    are looked for in the log. Raises as ``move``, ``LogForked``, and ``InvalidRequest`` for an LSN
    that the log has not reached.
    """
    held = {each.tag: each for each in (yield from all_holds(name))}
    trimmed = yield from read_trimmed()
    ends: Lsns = yield Ends()
    moved: dict[str, Position | None] = {}
    idle: dict[int, Position | None] = {}
    for tag, place in places.items():
        hold = held.get(tag) or Hold(name, tag, trimmed.whole, None, 0, 0, dropped=True)
        check_held(hold, hold, trimmed)
        hold.check_incarnation(incarnation)
        if isinstance(place, Position):
            if place[:2] > hold.place:
                yield from verify(place)
            moved[tag] = place
        elif place is None or place <= hold.lsn:
            moved[tag] = None
        else:
            if place > ends.last:
                raise InvalidRequest(f"LSN {place} is behind the log's end, {ends.last}")
            if place not in idle:
                idle[place] = yield from place_at(place, incarnation)
            found = idle[place]
            moved[tag] = found and found._replace(substream=substream_number(tag))
    now = yield from move(held, moved, now_us)
    return {tag: now[tag] for tag in moved}


def _move(
    held: Mapping[str, Hold],
    places: Mapping[str, Position | None],
    now_us: int,
    note: str | None,
) -> Rule[dict[str, Hold]]:
    held = dict(held)
    while True:
        moved = {tag: _moved(held[tag], place, now_us) for tag, place in places.items()}
        if note is not None:
            moved = {tag: each._replace(note=note) for tag, each in moved.items()}
        try:
            yield Commit(
                tuple(_as_it_is(held[tag]) for tag in moved),
                tuple(
                    Put(hold_key(each.name, each.tag), _written(each)) for each in moved.values()
                ),
            )
        except Refused as refused:
            for tag in moved:
                key = hold_key(held[tag].name, tag)
                value = refused.found[key]
                hold = None if value is None else _read(key, value)
                trimmed = yield from read_trimmed()
                check_held(hold, held[tag], trimmed)
                held[tag] = hold or held[tag]
            continue
        return held | moved


@portable
def drop(name: str, tags: Iterable[str] | None = None) -> Rule[list[Hold]]:
    """Have a name's holds, or those of some tags, keep nothing any more; return them.

    Its follower gets ``TrimmedLog`` from then on, until the name is forgotten.
    """
    return (yield from _end(name, tags, forget=False))


@portable
def forget(name: str, tags: Iterable[str] | None = None) -> Rule[list[Hold]]:
    """Remove a name's holds, the dropped ones too, and return them: the name begins anew."""
    return (yield from _end(name, tags, forget=True))


def check_held(found: Hold | None, known: Hold, trimmed: Trimmed) -> None:
    """Raise ``TrimmedLog`` unless a hold is there; ``known``: as its follower saw it last."""
    if found is None or found.dropped:
        _lost(found or known, trimmed)


def _end(name: str, tags: Iterable[str] | None, *, forget: bool) -> Rule[list[Hold]]:
    check_hold_name(name)
    found = yield from all_holds(name)
    mine = [each.tag for each in found if tags is None or each.tag in set(tags)]
    ended: list[Hold] = []
    for piece in _pieces(mine):
        ended += yield from _end_some(name, set(piece), forget=forget)
    return ended


def _end_some(name: str, tags: set[str], *, forget: bool) -> Rule[list[Hold]]:
    while True:
        found = yield from all_holds(name)
        ended = [each for each in found if each.tag in tags and (forget or not each.dropped)]
        if not ended:
            return []
        after = [None if forget else _written(each._replace(dropped=True)) for each in ended]
        try:
            yield Commit(
                tuple(_as_it_is(each) for each in ended),
                tuple(
                    Put(hold_key(each.name, each.tag), value)
                    for each, value in zip(ended, after, strict=True)
                ),
            )
        except Refused:
            # It moved meanwhile.
            continue
        return ended


def _moved(hold: Hold, place: Position | None, now_us: int) -> Hold:
    renewed_us = max(now_us, hold.renewed_us)
    if place is None:
        return hold._replace(renewed_us=renewed_us)
    if (place.lsn, place.ordinal) < hold.place:
        raise HoldMoved(
            f"the hold of {hold.name!r} on {hold.tag} is at {hold.position or hold.lsn}, beyond "
            f"{place}: another follower of this name runs"
        )
    moved = hold._replace(lsn=place.lsn, position=place, renewed_us=renewed_us)
    return moved._replace(incarnation=place.incarnation)


def _lost(hold: Hold, trimmed: Trimmed) -> NoReturn:
    first = hold.lsn if hold.position is None else hold.position.lsn + 1
    lost = (first, trimmed.whole - 1) if first < trimmed.whole else None
    gone = f"LSNs {lost[0]} to {lost[1]} are trimmed" if lost else "nothing is trimmed yet"
    raise TrimmedLog(
        f"the hold of {hold.name!r} on {hold.tag} was dropped at {hold.position or hold.lsn}; of "
        f"what followed, {gone}. Forget the name to begin anew",
        trimmed.whole,
        lost,
    )


def _put(hold: Hold) -> Put:
    return Put(hold_key(hold.name, hold.tag), _written(hold))


def _as_it_is(hold: Hold) -> Condition:
    return Condition(hold_key(hold.name, hold.tag), _written(hold))


def _written(hold: Hold) -> bytes:
    fixed = _VALUE.pack(_VERSION, hold.dropped, hold.lsn, hold.renewed_us, hold.retention_us)
    said = str(hold.position or f"@{hold.incarnation}")
    return fixed + (f"{said} {hold.note}" if hold.note else said).encode()


def _read(key: str, value: bytes) -> Hold:
    name, _, tag = key.removeprefix(_PREFIX).partition("/")
    if value and value[0] > _VERSION:
        raise NewerFormat(f"hold {name!r} on {tag} is of version {value[0]}: a newer release's")
    if len(value) < _VALUE.size or value[0] != _VERSION:
        raise CorruptLog(f"what is kept of hold {name!r} on {tag} is not what was written")
    _, dropped, lsn, renewed_us, retention_us = _VALUE.unpack(value[: _VALUE.size])
    try:
        text, _, note = value[_VALUE.size :].decode().partition(" ")
        position = None if text.startswith("@") else Position.parse(text)
    except (UnicodeDecodeError, InvalidRequest) as error:
        raise CorruptLog(
            f"what is kept of hold {name!r} on {tag} is not what was written"
        ) from error
    incarnation = text[1:] if position is None else position.incarnation
    return Hold(name, tag, lsn, position, renewed_us, retention_us, dropped, incarnation, note)


def _pieces(tags: Sequence[str]) -> list[Sequence[str]]:
    return [tags[first : first + _PIECE] for first in range(0, len(tags), _PIECE)]
