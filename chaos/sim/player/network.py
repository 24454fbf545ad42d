"""Model of the world: the network between players and targets, calls and streams both ways.

TCP keeps the order of what a connection carries: it arrives, late, or a suffix of it never does.
Who gives a call up is not heard of at once: what was sent before is served meanwhile, beside the
next connection. A copy is what a proxy makes of a batch.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import grpc.aio

from chaos.sim.event_loop import EventLoop
from chaos.sim.faults import Fault, Point
from chaos.sim.log.course import Actor
from chaos.sim.loop import Process
from chaos.sim.player.cast import PlayerCast
from sharedlog._player.link import Link, told
from sharedlog.v1 import target_pb2 as pb

__all__ = ["Call", "Host", "SimulatedLink"]

# Messages on their way on one stream in one direction; more wait for room.
_WINDOW = 16
# How long until a silent connection is given up by keepalive.
_SILENCE_S = 15.0
_CODE = grpc.StatusCode


class Host:
    """One process of a target, as the network sees it."""

    process: Process
    events: EventLoop
    calls: dict[Call, None]

    def answer(self, call: Call) -> Any:
        """Return the coroutine that answers a call."""


class Path:
    """What lies between a player and a target."""

    def __init__(self, cast: PlayerCast, player: int, target: int) -> None:
        self._cast = cast
        self._ends = (player, target)
        self.target = target

    def delay(self, point: Point) -> float:
        """Return how long a message is on its way."""
        cast, weather = self._cast, self._cast.weather
        now, random = cast.loop.now, cast.random.random
        delay = 0.0002 + 0.001 * random()
        stalled = weather.stalled.get(self._ends, 0.0)
        if stalled > now:
            cast.coverage.hit(Fault.PARTITION, point)
            # What is sent again arrives when there is a way.
            delay += stalled - now
        if weather.slow.get(self._ends, 0.0) > now and random() < 0.5:
            cast.coverage.hit(Fault.DELAY, point)
            delay += 0.5 * random()
        return delay


class _Pipe:
    """One direction of a connection: messages in their order."""

    def __init__(self, cast: PlayerCast, path: Path, to: EventLoop, point: Point) -> None:
        self._cast = cast
        self._path = path
        self._to = to
        self._point = point
        self._last = 0.0
        self.on_way = 0
        self._there: deque[bytes] = deque()
        self.ended = False
        self.broken = False
        self._waiting: deque[asyncio.Future[None]] = deque()
        self.room: deque[tuple[EventLoop, asyncio.Future[None]]] = deque()

    @property
    def to(self) -> Process:
        """Who reads."""
        return self._to.process

    def send(self, data: bytes | None) -> None:
        """Send a message; None: that there are no more."""
        if self.broken:
            return
        self.on_way += 1
        loop = self._cast.loop
        self._last = max(self._last + 1e-6, loop.now + self._path.delay(self._point))
        loop.at(self._last, self._to.process, self._arrive, data)

    def cut(self, delay_s: float) -> None:
        """Have nothing more arrive; the reader learns it so much later."""
        if self.broken:
            return
        self.broken = True
        self._cast.loop.after(delay_s, self._tell)

    def _tell(self) -> None:
        self._to.process.after(0.0, self._wake)
        self.make_room(all_of_them=True)

    def _arrive(self, data: bytes | None) -> None:
        if self.broken:
            return
        if data is None:
            self.ended = True
            self.on_way -= 1
        else:
            self._there.append(data)
        self._wake()

    def _wake(self) -> None:
        while self._waiting:
            each = self._waiting.popleft()
            if not each.done():
                each.set_result(None)

    def make_room(self, *, all_of_them: bool = False) -> None:
        """Have who waits for room go on."""
        while self.room and (all_of_them or self.on_way < _WINDOW):
            events, each = self.room.popleft()
            # What the reader has taken is told at once: it costs nothing here.
            if events.process.alive and not each.done():
                events.process.after(0.0, _settle, each)

    async def read(self) -> bytes | None:
        """Return the next message; None: there are no more. Raises ``ConnectionError``."""
        while True:
            if self._there:
                self.on_way -= 1
                self.make_room()
                return self._there.popleft()
            if self.ended:
                return None
            if self.broken:
                raise ConnectionError("connection lost")
            future: asyncio.Future[None] = self._to.create_future()
            self._waiting.append(future)
            await future


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Call:
    """One call, unary or a stream, from both of its sides."""

    def __init__(
        self, cast: PlayerCast, method: str, host: Host, source: EventLoop, path: Path
    ) -> None:
        self.method = method
        self.host = host
        self.path = path
        self._cast = cast
        asked, answered = _POINTS[method]
        self.point = asked
        self.there = _Pipe(cast, path, host.events, asked)
        self.back = _Pipe(cast, path, source, answered)
        # How the target ended it: its status, or None while it goes on.
        self.status: tuple[grpc.StatusCode, str, Any] | None = None
        self._task: asyncio.Task[Any] | None = None
        self.over = False
        host.calls[self] = None
        cast.calls[self] = None
        cast.loop.after(path.delay(asked), self._begin)

    def _begin(self) -> None:
        self.host.process.after(0.0, self._begin_there)

    def _begin_there(self) -> None:
        if self.there.broken:
            return
        self._task = self.host.events.create_task(self._serve())

    async def _serve(self) -> None:
        try:
            await self.host.answer(self)
            self.status = (_CODE.OK, "", ())
        except Aborted as error:
            self.status = error.status
        except ConnectionError:
            return
        self.back.send(None)

    def give_up(self) -> None:
        """The player wants nothing more of it; the target learns it later, if at all."""
        if self.over:
            return
        self.over = True
        self.back.cut(0.0)
        self._cast.calls.pop(self, None)
        self._cast.loop.after(self.path.delay(self.point), self._cancel)

    def break_off(self) -> None:
        """The connection breaks; each side learns it by itself."""
        draw = self._cast.random.random
        self.there.cut(0.01 * draw() if draw() < 0.5 else _SILENCE_S * draw())
        self.back.cut(0.05 * draw())
        self._cast.calls.pop(self, None)
        # Who serves it learns by the next thing that it reads or writes.
        self._cast.loop.after(0.1 * draw(), self._cancel)

    def _cancel(self) -> None:
        self.host.process.after(0.0, self._cancelled)

    def _cancelled(self) -> None:
        self.host.calls.pop(self, None)
        self.there.cut(0.0)
        if self._task is not None:
            self._task.cancel()


class Aborted(Exception):
    """A target's answer that is an error."""

    def __init__(self, code: grpc.StatusCode, details: str, metadata: Any) -> None:
        super().__init__(details)
        self.status = (code, details, metadata)


_POINTS = {
    "Connect": (Point.ASKED_WHERE, Point.TOLD_WHERE),
    "DeliverBatch": (Point.DELIVERY, Point.DELIVERED),
    "Deliver": (Point.DELIVERY, Point.DELIVERED),
}


def _error(code: grpc.StatusCode, details: str, metadata: Any = ()) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(
        code, grpc.aio.Metadata(), grpc.aio.Metadata.from_tuple(tuple(metadata)), details=details
    )


def _ended(call: Call) -> grpc.aio.AioRpcError:
    if call.status is None or call.status[0] is _CODE.OK:
        return _error(_CODE.UNAVAILABLE, "connection lost")
    return _error(*call.status)


class SimulatedLink(Link):
    """See ``Link``: to whichever process of the target answers at its address."""

    def __init__(
        self,
        cast: PlayerCast,
        actor: Actor,
        events: EventLoop,
        find: Callable[[], Host | None],
        path: Path,
        patience_s: float,
    ) -> None:
        self._cast = cast
        self._actor = actor
        self._events = events
        self._find = find
        self._path = path
        self._patience_s = patience_s
        cast.links += 1
        self._number = cast.links

    async def connect(self, request: pb.ConnectRequest) -> pb.ConnectReply:
        """See ``Link``."""
        reply = pb.ConnectReply.FromString(await self._unary("Connect", request))
        reply.streams = reply.streams and self._cast.streams[self._path.target]
        return reply

    async def batch(self, request: pb.Deliveries) -> pb.DeliveryAnswers:
        """See ``Link``."""
        self._note(request)
        return pb.DeliveryAnswers.FromString(await self._unary("DeliverBatch", request))

    def stream(self) -> Any:
        """See ``Link``."""
        host = self._find()
        call = None
        if host is not None:
            call = Call(self._cast, "Deliver", host, self._events, self._path)
        return _Stream(self._events, call, self._sent)

    def _sent(self, message: pb.Deliveries) -> None:
        self._note(message)
        self._cast.reached(self._actor, Point.DELIVERY)

    async def close(self) -> None:
        """See ``Link``."""

    def _note(self, message: pb.Deliveries) -> None:
        """Have the judge know what is sent on which connection."""
        sent = self._cast.sent.setdefault((self._number, self._path.target, message.term), [])
        sent += [(each.tag, each.place.lsn, each.place.ordinal) for each in message.deliveries]

    async def _unary(self, method: str, request: Any) -> bytes:
        await asyncio.sleep(0.0)
        host = self._find()
        if host is None:
            await asyncio.sleep(0.001)
            raise told(_error(_CODE.UNAVAILABLE, "connection refused"))
        call = Call(self._cast, method, host, self._events, self._path)
        data = request.SerializeToString()
        call.there.send(data)
        call.there.send(None)
        self._cast.reached(self._actor, call.point)
        self._copied(method, host, data)
        try:
            async with asyncio.timeout(self._patience_s):
                found = await call.back.read()
            if found is None:
                raise told(_ended(call))
        except TimeoutError:
            raise told(_error(_CODE.DEADLINE_EXCEEDED, "Deadline Exceeded")) from None
        except ConnectionError:
            raise told(_ended(call)) from None
        else:
            return found
        finally:
            call.give_up()

    def _copied(self, method: str, host: Host, data: bytes) -> None:
        """Have a proxy send a batch once more, later; no process reads its answer."""
        cast = self._cast
        if method != "DeliverBatch" or cast.weather.copied_until <= cast.loop.now:
            return
        cast.coverage.hit(Fault.DUPLICATE, Point.DELIVERY)

        def send() -> None:
            found = self._find()
            if found is not None:
                copy = Call(cast, method, found, self._events, self._path)
                copy.there.send(data)
                copy.there.send(None)

        cast.loop.after(cast.random.choice((0.002, 0.3, 2.0)) * cast.random.random(), send)


class _Stream:
    """The player's side of a stream."""

    def __init__(
        self, events: EventLoop, call: Call | None, sent: Callable[[pb.Deliveries], object]
    ) -> None:
        self._events = events
        self._call = call
        self._sent = sent

    async def write(self, message: pb.Deliveries) -> None:
        call = self._call
        if call is None:
            await asyncio.sleep(0.001)
            raise _error(_CODE.UNAVAILABLE, "connection refused")
        pipe = call.there
        while pipe.on_way >= _WINDOW and not call.back.broken and not call.back.ended:
            future: asyncio.Future[None] = self._events.create_future()
            pipe.room.append((self._events, future))
            await future
        if call.back.broken:
            raise _ended(call)
        if call.back.ended:
            raise asyncio.InvalidStateError("the call has ended")
        pipe.send(message.SerializeToString())
        self._sent(message)
        # As gRPC does: others have their turn.
        await asyncio.sleep(0)

    async def __aiter__(self) -> AsyncIterator[pb.DeliveryAnswers]:
        call = self._call
        if call is None:
            await asyncio.sleep(0.001)
            raise _error(_CODE.UNAVAILABLE, "connection refused")
        while True:
            try:
                data = await call.back.read()
            except ConnectionError:
                raise _ended(call) from None
            if data is None:
                if call.status is not None and call.status[0] is not _CODE.OK:
                    raise _ended(call)
                return
            yield pb.DeliveryAnswers.FromString(data)

    def cancel(self) -> None:
        if self._call is not None:
            self._call.give_up()
