"""The hold of a shard: it follows the checkpoint, so that nothing undone is trimmed (L6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sharedlog._core.commit import Commit, Condition, Put, Refused
from sharedlog._core.consumer.checkpoint import Checkpoint
from sharedlog._core.consumer.keeping import went_back
from sharedlog._core.consumer.names import hold_name, start_key
from sharedlog._core.errors import HoldMoved
from sharedlog._core.fences import Fence
from sharedlog._core.holds import BEGINNING, Hold, Start, hold_key, move, take
from sharedlog._core.position import Position
from sharedlog._core.steps import Get, Rule
from sharedlog._core.times import first_after


class Since(NamedTuple):
    """Behind what was appended until a moment."""

    at_us: int


# Where a new consumer begins in a substream.
Begins = Start | Since


class ShardHold:
    """Of one substream. It is never ahead of what the store says."""

    def __init__(self, name: str, tag: str, incarnation: str) -> None:
        """``name``: the consumer's."""
        self._name = name
        self._tag = tag
        self._incarnation = incarnation
        self._held: dict[str, Hold] = {}

    @property
    def lsn(self) -> int:
        """From where on commits are kept."""
        return self._held[self._tag].lsn

    def take(
        self, fence: Fence, checkpoint: Checkpoint, begins: Begins, now_us: int, retention_us: int
    ) -> Rule[Position | int]:
        """Take the hold, and return where to go on; ``begins``: of a consumer that is new.

        Raises ``StoreWentBack`` if it is further on than the checkpoint, and ``TrimmedLog``.
        """
        position = checkpoint.position
        start = (yield from self._start(begins)) if position is None else position
        self._held = yield from take(
            hold_name(self._name),
            {self._tag: start},
            self._incarnation,
            now_us,
            retention_us,
        )
        hold, why = self._held[self._tag], ""
        if position is None:
            if hold.position is not None and hold.position != start:
                why = f"it was done through {hold.position}, and has nothing"
        elif hold.place > (position.lsn, position.ordinal):
            why = f"it was done through {hold.position or hold.lsn}"
        if why:
            raise (yield from went_back(self._name, self._tag, fence, checkpoint, why))
        return hold.position or hold.lsn if position is None else position

    def _start(self, begins: Begins) -> Rule[Start]:
        """Return where it begins, as was said first: a position is noted before it is held.

        So a hold at it is told from one of a consumer that was further on than its store.
        """
        key, held = start_key(self._name, self._tag), hold_key(hold_name(self._name), self._tag)
        while True:
            found = yield Get((key, held))
            if (noted := found[key]) is not None:
                return Position.parse(noted.decode())
            if found[held] is not None:
                return BEGINNING
            if isinstance(begins, Since):
                return (yield from first_after(begins.at_us))
            if not isinstance(begins, Position):
                return begins
            begins.check_incarnation(self._incarnation)
            try:
                yield Commit(
                    (Condition(key, None), Condition(held, None)),
                    (Put(key, str(begins).encode()),),
                )
            except Refused:
                continue
            return begins

    def due(self, place: Position | None, now_us: int) -> dict[str, Position | None]:
        """Return the position to move it to, None: renew it; empty: neither is due."""
        hold = self._held[self._tag]
        if place is not None and (place.lsn, place.ordinal) > hold.place:
            return {self._tag: place}
        if 4 * (now_us - hold.renewed_us) > hold.retention_us:
            return {self._tag: None}
        return {}

    @property
    def held(self) -> dict[str, Hold]:
        """It, as it was seen last, by its tag."""
        return self._held

    def moved(self, held: Mapping[str, Hold]) -> None:
        """Take how it is now, among others."""
        self._held = {self._tag: held[self._tag]}


class Done(NamedTuple):
    """Through where a shard is done, by which its hold is moved."""

    hold: ShardHold
    place: Position | None


def move_holds(done: Sequence[Done], now_us: int) -> Rule[None]:
    """Let the log trim what shards have done; or renew their holds, where that is due.

    All of them in one step, as far as an engine takes that: each step is waited for.
    """
    due: list[Done] = []
    held: dict[str, Hold] = {}
    places: dict[str, Position | None] = {}
    for each in done:
        if where := each.hold.due(each.place, now_us):
            due.append(each)
            held |= each.hold.held
            places |= where
    if not due:
        return
    try:
        held = yield from move(held, places, now_us)
    except HoldMoved:
        # By a successor: this one learns of it by its next commit. The others' are moved alone.
        if len(due) > 1:
            for each in due:
                yield from move_holds([each], now_us)
        return
    for each in due:
        each.hold.moved(held)
