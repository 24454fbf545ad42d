"""The main stream: what is committed, read once for all targets (DESIGN-LOG §15)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from _rifl_ground.log import get_logger
from sharedlog._core.errors import LogError, LogForked, NewerFormat
from sharedlog._core.following import Follower
from sharedlog._core.player.indexes import main_begins
from sharedlog._core.player.item import Item, items
from sharedlog._core.position import Position
from sharedlog._core.reading import Committed, place_at
from sharedlog._core.streams import substream_number
from sharedlog._log.place import Place
from sharedlog._player.course import Course
from sharedlog._player.outside import Outside

_log = get_logger("sharedlog")
# How long it waits for the log to grow before it looks for other work; how often
# targets without messages are moved forward; how long targets may take to say where they are
# before it begins without them; and how soon it reads again after an error.
_WAIT_S, _PASS_S, _ASKED_S, _AGAIN_S = 0.25, 5.0, 1.0, 1.0


class MainStream:
    """Of one player that leads; on its event loop."""

    def __init__(self, place: Place, outside: Outside) -> None:
        """Nothing is read yet."""
        self._place = place
        self._log = outside.log(1)
        self._now_us = outside.now_us
        self._follower: Follower | None = None
        self._tags: set[str] = set()
        self._courses: list[Course] = []
        self._passed_s = 0.0
        self._passed = 0
        # Through which LSN it was dispatched, None before it began.
        self.dispatched: int | None = None

    def feeds(self, courses: Iterable[Course]) -> None:
        """From now on it is dispatched to these."""
        self._courses = list(courses)

    async def run(self, near: int) -> None:
        """Read and dispatch, until it is cancelled.

        Raises ``LogForked`` and ``NewerFormat``, which no other attempt of this process changes.

        ``near``: behind the log's end by how many entries a target may be whose index it begins at.
        """
        try:
            await self._begin(near)
            while True:
                try:
                    await self._round()
                except (LogForked, NewerFormat):
                    raise
                except LogError as error:
                    # It goes on where it was.
                    _log.error("player_cannot_read", log=self._place.name, error=str(error))
                    await asyncio.sleep(_AGAIN_S)
        finally:
            self._log.close()

    async def _begin(self, near: int) -> None:
        waiting = [asyncio.ensure_future(each.asked()) for each in self._courses]
        if waiting:
            await asyncio.wait(waiting, timeout=_ASKED_S)
            for each in waiting:
                each.cancel()
        lows = [
            min(place.lsn for place in each.feeder.acknowledged.values()) - 1
            for each in self._courses
            if each.feeder.acknowledged
        ]
        while True:
            try:
                first = await self._log.once(main_begins(lows, near))
            except LogError as error:
                _log.error("player_cannot_read", log=self._place.name, error=str(error))
                await asyncio.sleep(_AGAIN_S)
            else:
                break
        self.dispatched = first - 1
        self._fix()

    async def _round(self) -> None:
        tags = {tag for each in self._courses for tag in each.tags}
        if not tags or self.dispatched is None:
            await asyncio.sleep(_WAIT_S)
            return
        if self._follower is None or not tags <= self._tags:
            self._tags = tags
            start: dict[str, Position | int | str | None] = dict.fromkeys(tags, self.dispatched + 1)
            self._follower = Follower(sorted(tags), self._place.incarnation, start)
        follower = self._follower
        found = await self._read(follower)
        self._dispatch(found, max(self.dispatched, follower.through))
        if found:
            # It is sent before a thread that reads on competes for the interpreter's lock.
            await asyncio.sleep(0)
        now_s = asyncio.get_running_loop().time()
        if now_s - self._passed_s > _PASS_S and self.dispatched > self._passed:
            self._passed_s, self._passed = now_s, self.dispatched
            await self._move_on(self.dispatched)
        await self._room()

    async def _read(self, follower: Follower) -> list[Committed]:
        found = await self._log.run(lambda: follower.read(self._now_us()))
        if not found and await self._log.wait(follower, _WAIT_S):
            found = await self._log.run(lambda: follower.read(self._now_us()))
        return found

    def _dispatch(self, found: list[Committed], through: int) -> None:
        """Hand it to all targets: one step, between two of the event loop."""
        by_tag: dict[str, list[Item]] = {}
        for item in items(found):
            by_tag.setdefault(item.tag, []).append(item)
        self.dispatched = through
        for course in self._courses:
            if not course.feeder.fed:
                continue
            mine = [by_tag[tag] for tag in course.tags if tag in by_tag]
            if mine:
                merged = (
                    mine[0]
                    if len(mine) == 1
                    else sorted((each for some in mine for each in some), key=_order)
                )
                course.feeder.dispatch(merged)
                course.poke()
        self._fix()

    def _fix(self) -> None:
        for course in self._courses:
            if course.feeder.fix(self.dispatched):
                course.poke()

    async def _move_on(self, through: int) -> None:
        """Have targets that had nothing to do take note of how far the log is."""
        rule = place_at(through, self._place.incarnation)
        try:
            place = await self._log.once(rule)
        except LogError:
            return
        if place is None or self.dispatched != through:
            return
        for course in self._courses:
            course.feeder.move_on(
                {tag: place._replace(substream=substream_number(tag)) for tag in course.tags}
            )
            course.poke()

    async def _room(self) -> None:
        """Wait while every target that is fed has much to do: this delays no target."""
        while True:
            fed = [each for each in self._courses if each.feeder.fed]
            if not fed or not all(each.feeder.crowded for each in fed):
                return
            await asyncio.sleep(_ROOM_S)


_ROOM_S = 0.002


def _order(item: Item) -> tuple[int, str, int]:
    return item.place.lsn, item.tag, item.place.ordinal
