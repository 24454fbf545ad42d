"""The methods of a target on ``grpc.aio.server``: a stream for each player (DESIGN-LOG §15, P8)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc

from rifl._server.local_calls import Attempt, Handlers, NotFound, RiflError
from sharedlog._core.errors import LogError, LogUnavailable
from sharedlog._core.target_seat import (
    settle,
)
from sharedlog._core.target_steps import (
    UNAVAILABLE,
    Answer,
    AnswerKind,
    Await,
    Fetch,
    HandlerKind,
    Put,
    Run,
    TargetUnavailable,
    Tell,
)
from sharedlog._core.target_taking import (
    connect,
    take,
)
from sharedlog._target.lanes import Lane, Outbox
from sharedlog._target.requests import (
    SERVICE,
    From,
    answers_to_wire,
    connecting,
    index_to_wire,
    items_of,
    origin_of,
    parsed,
)
from sharedlog._target.target import (
    Seats,
    Steps,
    Target,
    ended_of,
    interceptor_failed,
    refused,
)
from sharedlog._wire.errors import refusal_of
from sharedlog.v1 import target_pb2 as pb

# Of what may wait in one connection one substream may have so much.
_SHARE = 4
# A player that does not read its answers is read no further.
_MOST_ANSWERS = 10_000


class AioTarget:
    """Answers ``Connect``, ``Deliver`` and ``DeliverBatch`` on one event loop."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.seats: Seats[asyncio.Lock] = Seats(asyncio.Lock)
        self.slots = asyncio.Semaphore(target.limits.concurrency)

    def methods(self) -> dict[str, Callable[[Handlers], Any]]:
        """Return what makes the handler of each method, of what finds others'."""
        return {
            f"/{SERVICE}/Connect": lambda _: grpc.unary_unary_rpc_method_handler(
                self._guarded(self._connect)
            ),
            f"/{SERVICE}/DeliverBatch": lambda handlers: grpc.unary_unary_rpc_method_handler(
                self._guarded(lambda data, context: self._batch(data, context, handlers))
            ),
            f"/{SERVICE}/Deliver": lambda handlers: grpc.stream_stream_rpc_method_handler(
                self._guarded(lambda stream, context: self._stream(stream, context, handlers))
            ),
        }

    async def drive(
        self, rule: Steps, context: Any, handlers: Handlers | None, tell: Callable[[Answer], None]
    ) -> Any:
        """Carry a rule out; returns what it does."""
        target = self.target
        # Runs of plain handlers, which go on until the index says that they have ended.
        runs: list[Attempt] = []
        value: Any = None
        error: Exception | None = None
        try:
            while True:
                step = rule.send(value) if error is None else rule.throw(error)
                value, error = None, None
                try:
                    if isinstance(step, Run):
                        value = await self._run(step, context, handlers, runs)
                    elif isinstance(step, Put):
                        value = await _moved(target.put(step))
                        self._end(runs)
                    elif isinstance(step, Await):
                        value = await _committed(step)
                        self._end(runs)
                    elif isinstance(step, Fetch):
                        loop = asyncio.get_running_loop()
                        value = await loop.run_in_executor(None, target.fetch, step)
                    elif isinstance(step, Tell):
                        target.note(step.answer)
                        tell(step.answer)
                except Exception as failed:  # noqa: BLE001 - the rule's to judge
                    error = failed
        except StopIteration as stop:
            return stop.value
        finally:
            self._end(runs)

    def _guarded(
        self, answer: Callable[[Any, Any], Awaitable[bytes | None]]
    ) -> Callable[[Any, Any], Awaitable[bytes | None]]:
        async def behavior(data: Any, context: Any) -> bytes | None:
            try:
                self.target.access.check(context)
                return await answer(data, context)
            except (LogError, TargetUnavailable) as error:
                known = error if isinstance(error, LogError) else LogUnavailable(str(error))
                refusal = refusal_of(known)
                await context.abort(refusal.code, refusal.details, refusal.metadata)
                return None

        return behavior

    async def _connect(self, data: bytes, context: Any) -> bytes:
        feed, tags = connecting(parsed(pb.ConnectRequest, data))
        for tag in tags:
            self.target.methods.check_tag(tag)
        held = [self.seats.get(feed, tag) for tag in tags]
        for seat, lock in held:
            if seat.owes and not lock.locked():
                async with lock:
                    await self.drive(settle(seat), context, None, _nobody)
        told = await self.drive(connect([seat for seat, _ in held]), context, None, _nobody)
        return pb.ConnectReply(
            store=self.target.rows.store_id,
            indexes=[
                index_to_wire(tag, index, connects)
                for tag, (index, connects) in zip(tags, told, strict=True)
            ],
            streams=True,
            most_bytes=self.target.limits.most_bytes,
        ).SerializeToString()

    async def _batch(self, data: bytes, context: Any, handlers: Handlers | None) -> bytes:
        message = parsed(pb.Deliveries, data)
        origin = origin_of(message)
        connection = _Connection(self, origin, context, handlers, len(data), len(data))
        try:
            connection.take_in(message)
            await connection.worked_off()
        finally:
            connection.close()
        return answers_to_wire(origin.term, connection.outbox.take())

    async def _stream(
        self, stream: AsyncIterator[bytes], context: Any, handlers: Handlers | None
    ) -> None:
        first = await anext(stream, None)
        if first is None:
            return
        message = parsed(pb.Deliveries, first)
        origin = origin_of(message)
        most = self.target.limits.queued_bytes
        connection = _Connection(self, origin, context, handlers, most, most // _SHARE)
        writing = asyncio.ensure_future(connection.write())
        try:
            connection.take_in(message)
            async for data in stream:
                await connection.room()
                connection.take_in(parsed(pb.Deliveries, data))
            await connection.worked_off()
        except asyncio.CancelledError:
            writing.cancel()
            raise
        finally:
            connection.close()
            # What was told before a refusal is written before it.
            await asyncio.wait([writing])
        await writing

    async def _run(self, step: Run, context: Any, handlers: Any, runs: list[Attempt]) -> Any:
        target, called = self.target, step.called
        calls = target.calls
        policy: Any = calls.policy(called.method)
        try:
            handler = await calls.find_async(handlers, called.method, target.metadata_of(step))
        except NotFound as error:
            raise refused(error) from error
        except Exception as error:  # noqa: BLE001 - whatever a user's interceptor raises
            return interceptor_failed(error)
        try:
            transport = target.transport(context, step)
            call = target.call_of(step)
            ran, attempt = await calls.run_async(
                handler, called.content.body, transport, call, policy
            )
        except NotFound as error:
            raise refused(error) from error
        except RiflError as error:
            raise TargetUnavailable(str(error)) from error
        runs.append(attempt)
        # Of a plain one the index has to say so first; of one that commits, whatever it comes to.
        if called.kind is not HandlerKind.PLAIN and ran.committing is None:
            self._end(runs)
        return ended_of(ran)

    def _end(self, runs: list[Attempt]) -> None:
        while runs:
            self.target.rows.end(runs.pop())


class _Connection:
    """What one call brought: its lanes, each worked off by a task of its own, and its answers."""

    def __init__(
        self,
        of: AioTarget,
        origin: From,
        context: Any,
        handlers: Handlers | None,
        most_bytes: int,
        lane_bytes: int,
    ) -> None:
        """``most_bytes``: of what may wait; ``lane_bytes``: of one substream."""
        self.outbox = Outbox()
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
        """Have what came worked off; raises ``InvalidRequest`` before any of it."""
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
        of = self._of
        seat, lock = of.seats.get(self._origin.feed, lane.tag)

        def tell(answer: Answer) -> None:
            lane.told(answer)
            self.outbox.add(answer)
            self._note()

        try:
            while len(lane):
                async with lock, of.slots:
                    resolve = of.target.methods.resolve
                    rule = take(seat, lane.taking(), resolve, lane.at_hand)
                    await of.drive(rule, self._context, self._handlers, tell)
                if lane.refused is not None:
                    text = "too much of this substream waits"
                    kind = AnswerKind.UNAVAILABLE
                    tell(Answer(kind, lane.tag, lane.refused, UNAVAILABLE, text))
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


async def _committed(step: Await) -> tuple[int, str]:
    for at, each in enumerate(step.committing):
        try:
            if await each is None:
                return at, "the transaction was rolled back"
        except RiflError as error:
            return at, str(error)
    return len(step.committing), ""


async def _moved(later: Any) -> Any:
    try:
        return await later
    except RiflError as error:
        raise TargetUnavailable(str(error)) from error


def _nobody(answer: Answer) -> None:
    """Nobody is told: it is a player that connects, which learns the index."""
