"""A connection of a player: what one call brought, worked off by substream (DESIGN-LOG §15, P4)."""

from __future__ import annotations

import asyncio
from typing import Any

from rifl._server.local_calls import ServerHandlers
from sharedlog._core.target_steps import (
    UNAVAILABLE,
    AnswerKind,
    DeliveryAnswer,
    TargetUnavailable,
)
from sharedlog._core.target_taking import take
from sharedlog._target.aio_driving import AioRules
from sharedlog._target.lanes import AnswerQueue, Lane
from sharedlog._target.requests import Origin, answers_to_wire, items_of
from sharedlog._target.target import not_passed_over, skipped
from sharedlog.v1 import target_pb2 as pb

# A player that does not read its answers is read no further.
_MOST_ANSWERS = 10_000


class DeliveryConnection:
    """What one call brought: its lanes, each worked off by a task of its own, and its answers."""

    def __init__(
        self,
        of: AioRules,
        origin: Origin,
        context: Any,
        handlers: ServerHandlers | None,
        most_bytes: int,
        lane_bytes: int,
    ) -> None:
        """``most_bytes``: of what may wait; ``lane_bytes``: of one substream."""
        self.outbox = AnswerQueue()
        self._of = of
        self._origin = origin
        self._context = context
        self._handlers = handlers
        self._most_bytes = most_bytes
        self._lane_bytes = lane_bytes
        self._lanes: dict[str, Lane] = {}
        self._working = 0
        self._closed = False
        # Those who wait for something to be told, worked off, or closed.
        self._waiting: list[asyncio.Future[None]] = []

    def take_in(self, message: pb.Deliveries) -> None:
        """Have what came worked off.

        Raises ``InvalidRequest`` and ``OtherStore`` before any of it.
        """
        self._of.target.check_store(message.store)
        items = list(items_of(message, self._origin))
        for tag in {tag for tag, _, _ in items}:
            self._of.target.methods.check_tag(tag)
        came: dict[str, Lane] = {}
        for tag, item, size in items:
            lane = self._lanes.get(tag)
            if lane is None:
                lane = self._lanes[tag] = Lane(tag, self._lane_bytes)
            if lane.add(item, size):
                came[tag] = lane
        for lane in came.values():
            if not lane.working:
                lane.working = True
                self._working += 1
                # Not this call's: what was begun goes on when its player has left.
                self._of.target.calls.begin_task(self._work(lane))

    async def room(self) -> None:
        """Wait until there is room for more."""
        while not self._closed and (
            sum(lane.bytes for lane in self._lanes.values()) >= self._most_bytes
            or len(self.outbox) >= _MOST_ANSWERS
        ):
            await self._change()

    async def worked_off(self) -> None:
        """Wait until nothing waits."""
        while self._working:
            await self._change()

    async def write(self) -> None:
        """Write answers until it is closed and all are written."""
        while True:
            answers = self.outbox.take()
            if answers:
                self._note()
                await self._context.write(answers_to_wire(self._origin.term, answers))
            elif self._closed:
                return
            else:
                await self._change()

    def close(self) -> None:
        """Begin nothing more."""
        self._closed = True
        for lane in self._lanes.values():
            lane.clear()
        self._note()

    async def _work(self, lane: Lane) -> None:
        of, feed = self._of, self._origin.feed

        def tell(answer: DeliveryAnswer) -> None:
            lane.told(answer)
            self.outbox.add(answer)
            self._note()

        try:
            try:
                for place in skipped(lane.waiting):
                    await of.abandon(feed, lane.tag, place)
            except TargetUnavailable as error:
                lane.clear()
                tell(not_passed_over(lane.tag, place, error))
            seat, lock = of.seats.get(feed, lane.tag)
            while len(lane):
                async with lock, of.slots:
                    resolve = of.target.methods.resolve
                    rule = take(seat, lane.taking(), resolve, lane.at_hand)
                    await of.drive(rule, self._context, self._handlers, tell)
                if lane.refused is not None:
                    text = "too much of this substream waits"
                    kind = AnswerKind.UNAVAILABLE
                    tell(DeliveryAnswer(kind, lane.tag, lane.refused, UNAVAILABLE, text))
                    lane.refused = None
                self._note()
        finally:
            lane.working = False
            self._working -= 1
            self._note()

    def _note(self) -> None:
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.done():
                each.set_result(None)

    async def _change(self) -> None:
        changed = asyncio.get_running_loop().create_future()
        self._waiting.append(changed)
        await changed
