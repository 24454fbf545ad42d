"""The delivering over one connection: what is missed, what is sent, what is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import grpc.aio

from sharedlog._core.envelope import unpack
from sharedlog._core.errors import LogError, LogForked, TrimmedLog
from sharedlog._core.following import Follower
from sharedlog._core.player.failing import Suspended, Why
from sharedlog._core.player.feeder import Feeder, FeederState
from sharedlog._core.player.item import Item, Outgoing, items
from sharedlog._core.player.trouble import Cause, Trouble
from sharedlog._core.position import Position
from sharedlog._core.sealing import opened
from sharedlog._core.steps import Rule
from sharedlog._core.streams import stream_of
from sharedlog._core.target_delivery import DeliveryKind
from sharedlog._player.beginning import Here, ask
from sharedlog._player.link import Link, told, why
from sharedlog._player.stage import Fed
from sharedlog._player.under_way import UnderWay
from sharedlog._player.wire import DONE, confirmed_of, delivery_of, trouble_of
from sharedlog.v1 import sharedlog_pb2, target_pb2

if TYPE_CHECKING:
    from sharedlog._core.reading import Committed

# Of google.rpc.Code.
_RESOURCE_EXHAUSTED = 8
# How often it is looked whether an answer is late, at most.
_LOOK_S = 0.5


class Delivering:
    """One connection of a course; it ends when its feeder is in S."""

    def __init__(
        self,
        course: Fed,
        link: Link,
        starts: Mapping[str, Position | int],
        confirmed: Sequence[tuple[str, int]],
        here: Here,
    ) -> None:
        """Its feeder is in RF, as the target said that it is ``here``.

        ``confirmed``: skipped messages that are dead letters by now.
        """
        self._course = course
        self._feeder = course.feeder
        self._term = course.feeder.term
        self._link = link
        self._starts = starts
        self._confirmed = confirmed_of(confirmed)
        self._streams = here.streams
        self._store = here.store
        self._at_once = here.at_once
        self._place = course.stage.place
        self._methods = course.target.methods
        self._wake = asyncio.Event()
        self._ended = asyncio.Event()
        # What each recovery stream waits for, and what has substreams go on by themselves.
        self._rooms: list[asyncio.Event] = []
        self._aside = asyncio.Event()
        self._tasks: dict[asyncio.Future[None], None] = {}
        self._fed = False
        self._began_s = asyncio.get_running_loop().time()
        watchers = course.stage.watchers
        self._under_way = (
            UnderWay(watchers, course.target.name, course.highest, asyncio.get_running_loop().time)
            if watchers.each_delivery
            else None
        )

    def poke(self) -> None:
        """Something changed."""
        self._wake.set()
        for room in self._rooms:
            room.set()
        if self._feeder.aside:
            self._aside.set()
        if self._feeder.state is FeederState.S or self._feeder.term != self._term:
            self._ended.set()

    async def run(self) -> None:
        """Deliver until it ends."""
        main = self._feeder.main
        missed = {tag: at for tag, at in self._starts.items() if tag not in self._feeder.aside}
        for each in (
            self._recover(main, missed),
            self._watch(),
            self._go_on(),
            self._stream() if self._streams else self._batches(),
        ):
            self._begin(each)
        try:
            await self._ended.wait()
        finally:
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self._under_way is not None:
                self._under_way.close(f"cut off: {self._feeder.trouble.cause.value}")

    def _begin(self, doing: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(self._guarded(doing))
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    async def _guarded(self, doing: Coroutine[Any, Any, None]) -> None:
        """Have what goes wrong end the connection."""
        try:
            await doing
        except TrimmedLog as error:
            self._course.suspend(Suspended(Why.TRIMMED, str(error)))
        except LogForked as error:
            self._course.suspend(Suspended(Why.NOT_IN_LOG, str(error)))
        except _Sealed as error:
            self._course.suspend(Suspended(Why.SEALED, str(error), *error.about))
        except _TooLarge as error:
            tag, place = error.about
            refused = Trouble(Cause.REFUSED, tag, place, _RESOURCE_EXHAUSTED, str(error))
            self._course.refused(self._term, refused)
            self.poke()
        except grpc.aio.AioRpcError as error:
            self._cut(why(told(error)))
        except LogError as error:
            self._cut(why(error))
        except Exception as error:  # noqa: BLE001 - such as gRPC's of a call that has just ended
            self._cut(Trouble(Cause.BROKEN, details=f"{type(error).__name__}: {error}"))

    def _cut(self, trouble: Trouble) -> None:
        if trouble.cause is Cause.LATE:
            # Of a batch any may be what the others wait for.
            patience_s = self._course.target.patience.total_seconds() if self._streams else 0.0
            now_s = asyncio.get_running_loop().time()
            self._course.was_late(self._feeder.late(now_s, patience_s))
        if self._feeder.settled:
            self._course.rested(asyncio.get_running_loop().time() - self._began_s)
        self._feeder.cut(trouble)
        self.poke()

    # What it missed.

    async def _recover(self, feeder: Feeder, starts: Mapping[str, Position | int]) -> None:
        """Fetch what a feeder missed, until the main stream feeds it."""
        stage, term = self._course.stage, feeder.term
        follower: Follower | None = None
        if starts:
            incarnation, ahead = self._place.incarnation, feeder.ahead_bytes
            follower = Follower(sorted(starts), incarnation, starts, ahead_bytes=ahead)
        room = asyncio.Event()
        self._rooms.append(room)

        def read(follower: Follower) -> Callable[[], Rule[list[Committed]]]:
            return lambda: follower.read(stage.outside.now_us())

        try:
            while feeder.state in (FeederState.RF, FeederState.FC) and feeder.term == term:
                if feeder.wants():
                    if follower is None:
                        found, through = [], stage.dispatched() or 0
                    else:
                        found = await stage.run(read(follower))
                        through = follower.through
                    feeder.fetch(term, items(found), through)
                    feeder.fix(stage.dispatched())
                    self._wake.set()
                    if found:
                        continue
                # Its end cannot be fixed yet, or what was fetched must be sent first.
                room.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_S):
                        await room.wait()
        finally:
            self._rooms.remove(room)

    async def _go_on(self) -> None:
        """Have substreams whose messages failed go on by themselves, each when it is time."""
        feeder, now_s = self._feeder, asyncio.get_running_loop().time
        while True:
            self._aside.clear()
            for tag in feeder.due(now_s()):
                if tag in self._course.hung and feeder.decided(tag) is None:
                    feeder.wait_on(tag, now_s() + self._course.polls_s)
                    self._begin(self._poll(tag))
                    continue
                one, at = feeder.open(tag)
                self._begin(self._recover(one, {tag: self._starts[tag] if at is None else at}))
            due_s = feeder.due_s()
            with suppress(TimeoutError):
                pause_s = None if due_s is None else max(0.0, due_s - now_s())
                async with asyncio.timeout(pause_s):
                    await self._aside.wait()

    async def _poll(self, tag: str) -> None:
        """Ask whether a handler that hung has ended; nothing is sent to it before."""
        course, feeder = self._course, self._feeder
        here = await ask(course.stage, self._link, course.feed, [tag])
        await course.polled(feeder, here.indexes[0])

    # What it is sent.

    async def _stream(self) -> None:
        call = self._link.stream()
        hearing = asyncio.ensure_future(self._guarded(self._hear(call)))
        try:
            if self._confirmed:
                await call.write(self._message(()))
            while True:
                batch = await self._next()
                if self._feeder.deaths.careful:
                    await self._course.noted()
                await call.write(self._message(batch))
        finally:
            hearing.cancel()
            call.cancel()
            await asyncio.gather(hearing, return_exceptions=True)

    async def _hear(self, call: Any) -> None:
        async for answers in call:
            self._heard(answers)
        self._cut(Trouble(Cause.BROKEN, details="it ended the stream"))

    async def _batches(self) -> None:
        if self._confirmed:
            self._heard(await self._link.batch(self._message(())))
        while True:
            batch = await self._next()
            if self._feeder.deaths.careful:
                await self._course.noted()
            self._fed = False
            self._heard(await self._link.batch(self._message(batch)))
            if self._feeder.in_flight and not batch[-1].more:
                self._cut(Trouble(Cause.GARBAGE, details="it left deliveries unanswered"))

    async def _next(self) -> list[Outgoing]:
        """Wait for the next batch."""
        feeder = self._feeder
        linger_s = self._course.target.linger.total_seconds()
        while True:
            if linger_s and feeder.gathers:
                await self._gather(linger_s)
            found = feeder.take(asyncio.get_running_loop().time())
            if found:
                for room in self._rooms:
                    room.set()
                return found
            self._wake.clear()
            await self._wake.wait()

    async def _gather(self, linger_s: float) -> None:
        """Wait for more of the next batch, until it is full or the linger time has passed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(linger_s):
                while self._feeder.gathers:
                    self._wake.clear()
                    await self._wake.wait()

    def _message(self, batch: Sequence[Outgoing]) -> target_pb2.Deliveries:
        now_us = self._course.stage.outside.now_us()
        found = target_pb2.Deliveries(
            term=self._term,
            deliveries=[self._delivery(each, now_us) for each in batch],
            confirmed=self._confirmed,
            store=self._store,
        )
        self._confirmed = []
        if not self._fed:
            found.feed.CopyFrom(self._course.feed)
            found.incarnation = self._place.incarnation
            self._fed = True
        return found

    def _delivery(self, sent: Outgoing, now_us: int) -> target_pb2.Delivery:
        if sent.kind is not DeliveryKind.MESSAGE:
            return delivery_of(sent, b"", now_us)
        envelope = self._envelope(sent)
        if self._at_once and len(envelope) > self._at_once:
            said = f"it has {len(envelope)} bytes, and its target takes {self._at_once} at once"
            raise _TooLarge(said, sent.item)
        found = delivery_of(sent, envelope, now_us)
        if self._under_way is not None:
            found.trace_parent, found.trace_state = self._under_way.sent(sent, envelope)
        return found

    def _envelope(self, sent: Outgoing) -> bytes:
        """Return the envelope as the target reads it: open, and with the method to be called."""
        item = sent.item
        envelope, why = opened(item.envelope, self._place.seals, item.tag)
        if why:
            raise _Sealed(f"{item.place} is sealed: {why}", item)
        method = self._methods[stream_of(item.tag)]
        if method and not unpack(envelope).method:
            # A field behind the others is one more of them.
            envelope += sharedlog_pb2.Envelope(method=method).SerializeToString()
        return envelope

    # What it answers.

    def _heard(self, answers: target_pb2.DeliveryAnswers) -> None:
        course, term = self._course, answers.term
        incarnation = self._place.incarnation
        for each in answers.answers:
            if each.tag not in self._starts:
                self._cut(Trouble(Cause.GARBAGE, details="it answers of another substream"))
                return
            if each.kind != DONE:
                trouble = trouble_of(each, incarnation)
                if self._under_way is not None:
                    said = f"{trouble.cause.value}: {trouble.details}"
                    self._under_way.failed(each.tag, said)
                course.refused(term, trouble)
                continue
            place = each.place
            at = Position(place.lsn, place.ordinal, place.checksum, incarnation, place.substream)
            if self._under_way is not None:
                self._under_way.taken(each.tag, at)
            skips = self._feeder.decided(each.tag)
            before = self._feeder.in_flight
            course.taken_through(term, each.tag, at)
            course.taken += max(0, before - self._feeder.in_flight)
            if skips is not None and at[:2] >= skips[:2]:
                # What it skipped is a dead letter before anything else is taken.
                self._feeder.cut(Trouble(Cause.ORDERED))
        feeder = self._feeder
        if feeder.state is not FeederState.N or feeder.queued or feeder.aside:
            # Else nothing waits for it.
            self.poke()

    async def _watch(self) -> None:
        patience_s = self._course.target.patience.total_seconds()
        while True:
            await asyncio.sleep(min(patience_s / 4, _LOOK_S))
            if self._feeder.settled:
                self._feeder.deaths.settled()
            if self._feeder.late(asyncio.get_running_loop().time(), patience_s):
                said = f"nothing was answered for {patience_s:g} s"
                self._cut(Trouble(Cause.LATE, details=said))
            elif not (self._streams or self._feeder.in_flight or self._link.connected):
                # A stream would have ended; between two batches nothing else says so.
                self._cut(Trouble(Cause.BROKEN, details="its connection ended"))


class _NotSent(Exception):
    """A message cannot be sent; ``about``: which."""

    def __init__(self, message: str, item: Item) -> None:
        super().__init__(message)
        self.about = (item.tag, item.place)


class _Sealed(_NotSent):
    """It cannot be opened here."""


class _TooLarge(_NotSent):
    """Its target takes no message of that size."""
