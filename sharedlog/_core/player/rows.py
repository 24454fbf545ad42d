"""Rows of a player in its log: what operators wish of its targets, and what it tells of them.

``player/NAME/wish/TARGET`` and ``player/NAME/told/TARGET`` have JSON; every program with access to
the log can read and write them, wherever the player runs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from sharedlog._core.commit import Commit, Condition, Put, Refused
from sharedlog._core.errors import CorruptLog, Fenced, InvalidRequest, LogError, NewerFormat
from sharedlog._core.fences import Fence, check_fence, condition_of, fence_key
from sharedlog._core.player.failing import TargetStopped, Why
from sharedlog._core.position import Position
from sharedlog._core.steps import Get, Rule, Scan

_T = TypeVar("_T")
_VERSION = 1
_PREFIX, _WISH = "player/", "wish"
ORDERS = ("pause", "resume", "skip", "replay")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,59}")
# Rows of one commit: etcd takes few keys.
_PIECE = 32


def check_part(name: str, what: str) -> None:
    """Raise ``InvalidRequest`` unless this can name a player or a target."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"{str(name)[:100]!r} cannot name a {what}: 1 to 60 letters, digits, _ and -, "
            "beginning with none of the last"
        )


class Order(NamedTuple):
    """Something that an operator decided: of whom, why, and when."""

    by: str
    why: str
    at_us: int


class SkipOne(NamedTuple):
    """One message of a target that it is not called with; ``number``: of the index it is said of.

    Under another one it is taken anew, as everything is.
    """

    tag: str
    place: Position
    order: Order
    number: int


class Latest(NamedTuple):
    """What was ordered last: ``pause``, ``resume``, ``skip`` or ``replay``, and by whom."""

    what: str
    order: Order


class Wish(NamedTuple):
    """What operators wish of one target.

    ``resumed``: how often it was resumed. ``skips``: each until it is known to be done, or its
    index is over. ``number``: of its index, raised by each replay, which begins at
    ``first``, an LSN; 0: as its player was told. ``latest``: for people.
    """

    paused: Order | None = None
    resumed: int = 0
    skips: tuple[SkipOne, ...] = ()
    number: int = 0
    first: int = 0
    latest: Latest | None = None


class TargetState(NamedTuple):
    """What a player tells of one target.

    ``state``: that of the feeder, ``paused``, or ``stopped`` (then ``why``, and ``about``: the
    message). ``lag``: how many entries of the log it is behind. ``rate``: messages a second.
    ``store``: the id of the store that answered last. ``process``: which one leads, HOST:PID.
    ``dead_letters``: how many its index counts. ``moved_at_us``: when it did something last, 0:
    never under this player. ``limit``: how many messages it is sent at once since its process
    crashed, 0: as many as fit; ``deaths``: what the next player needs to know of that.
    """

    state: str
    address: str = ""
    number: int = 0
    why: str = ""
    details: str = ""
    about_tag: str = ""
    about: str = ""
    indexes: Mapping[str, str] = {}
    lag: int = 0
    queued: int = 0
    in_flight: int = 0
    taken: int = 0
    rate: float = 0.0
    error: str = ""
    error_at_us: int = 0
    at_us: int = 0
    attempts: Mapping[str, tuple[str, int]] = {}
    store: str = ""
    process: str = ""
    dead_letters: int = 0
    moved_at_us: int = 0
    limit: int = 0
    deaths: Mapping[str, Any] = {}

    def has_done(self, skip: SkipOne) -> bool:
        """Whether it is past the message of an order, or the order is for an older index."""
        done = self.indexes.get(skip.tag)
        behind = done is not None and skip.place[:2] <= Position.parse(done)[:2]
        return behind or skip.number < self.number

    @property
    def stopped(self) -> TargetStopped | None:
        """Why it waits for an operator; None: it does not."""
        if self.state != "stopped":
            return None
        said = Why[self.why].value if self.why in Why.__members__ else self.why
        return TargetStopped(f"{said}: {self.details}", self.why)


def wishes(player: str) -> Rule[dict[str, Wish]]:
    """Return what is wished of a player's targets, by their names."""
    return (yield from _all(player, _WISH, _wish_of))


def all_told(player: str) -> Rule[dict[str, TargetState]]:
    """Return what a player told of its targets last, by their names."""
    return (yield from _all(player, "told", _told_of))


def all_players() -> Rule[list[str]]:
    """Return the names of players that told something, or of which something was wished."""
    found = yield Scan(_PREFIX)
    return sorted({key.removeprefix(_PREFIX).partition("/")[0] for key in found})


def wish(player: str, target: str, change: Callable[[Wish], Wish]) -> Rule[Wish]:
    """Change what is wished of a target, and return the new wish."""
    check_part(player, "player")
    check_part(target, "target")
    key = row_key(player, _WISH, target)
    while True:
        value = (yield Get((key,)))[key]
        made = change(Wish() if value is None else parsed(key, value, _wish_of))
        try:
            yield Commit((Condition(key, value),), (Put(key, _wish_written(made)),))
        except Refused:
            continue
        return made


def ordered(key: str, value: bytes) -> str:
    """Return what an operator orders by a row that is written; "": it is no such row.

    One that cannot be read is "order".
    """
    if not key.startswith(_PREFIX) or f"/{_WISH}/" not in key:
        return ""
    with suppress(LogError):
        latest = parsed(key, value, _wish_of).latest
        if latest is not None and latest.what in ORDERS:
            return latest.what
    return "order"


def tell(player: str, told: Mapping[str, TargetState | None], fence: Fence) -> Rule[None]:
    """Tell of targets; None: of one that is no more. Raises ``Fenced`` for who leads no more."""
    puts = [
        Put(row_key(player, "told", name), None if each is None else _told_written(each))
        for name, each in told.items()
    ]
    for first in range(0, len(puts), _PIECE):
        try:
            yield Commit((condition_of(fence),), tuple(puts[first : first + _PIECE]))
        except Refused as refused:
            check_fence(fence, refused.found[fence_key(fence.name)])
            raise Fenced("another player leads", fence.number) from refused


def row_key(player: str, kind: str, target: str) -> str:
    """Return the key of a target's row of a kind."""
    return f"{_PREFIX}{player}/{kind}/{target}"


def _all(player: str, kind: str, read: Callable[[dict[str, Any]], _T]) -> Rule[dict[str, _T]]:
    check_part(player, "player")
    prefix = row_key(player, kind, "")
    found = yield Scan(prefix)
    return {
        key.removeprefix(prefix): parsed(key, value, read) for key, value in sorted(found.items())
    }


def parsed(key: str, value: bytes, read: Callable[[dict[str, Any]], _T]) -> _T:
    """Return what a row says; raises ``NewerFormat`` and ``CorruptLog``."""
    try:
        data = json.loads(value)
        version = data.pop("version")
        if isinstance(version, int) and version > _VERSION:
            raise NewerFormat(f"{key} is of version {version}: a newer release wrote it")
        return read(data)
    except (ValueError, KeyError, TypeError, AttributeError, InvalidRequest) as error:
        raise CorruptLog(f"what is kept as {key} is not what was written") from error


def written(data: dict[str, Any]) -> bytes:
    """Return the bytes of a row."""
    return json.dumps({"version": _VERSION} | data).encode()


def _wish_written(made: Wish) -> bytes:
    return written(
        {
            "paused": made.paused,
            "resumed": made.resumed,
            "skips": [[each.tag, str(each.place), each.order, each.number] for each in made.skips],
            "number": made.number,
            "first": made.first,
            "latest": made.latest,
        }
    )


def _wish_of(data: dict[str, Any]) -> Wish:
    paused, latest = data["paused"], data["latest"]
    return Wish(
        None if paused is None else Order(*paused),
        int(data["resumed"]),
        tuple(_skip_of(*each) for each in data["skips"]),
        int(data["number"]),
        int(data["first"]),
        None if latest is None else Latest(str(latest[0]), Order(*latest[1])),
    )


def _skip_of(tag: str, place: str, order: list[Any], number: int) -> SkipOne:
    return SkipOne(tag, Position.parse(place), Order(*order), int(number))


def _told_written(told: TargetState) -> bytes:
    return written(told._asdict())


def _told_of(data: dict[str, Any]) -> TargetState:
    attempts = {tag: (str(place), int(count)) for tag, (place, count) in data["attempts"].items()}
    return TargetState(**(data | {"attempts": attempts}))
