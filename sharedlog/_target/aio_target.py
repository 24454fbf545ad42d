"""The methods of a target on ``grpc.aio.server``: a stream for each player (DESIGN-LOG §15, P8)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

import grpc

from _rifl_ground.threads import in_thread
from rifl._grpc.audit import address_of
from rifl._server.local_calls import ServerHandlers
from sharedlog._core.errors import LogError
from sharedlog._core.target_seat import settle
from sharedlog._core.target_steps import DeliveryAnswer, TargetUnavailable
from sharedlog._core.target_taking import connect
from sharedlog._target.aio_connection import DeliveryConnection
from sharedlog._target.aio_driving import AioRules
from sharedlog._target.requests import (
    SERVICE,
    answers_to_wire,
    connecting,
    index_to_wire,
    origin_of,
    parsed,
    passed_over_of,
)
from sharedlog._target.target import ServedTarget, known
from sharedlog._wire.refusals import refusal_of
from sharedlog.v1 import target_pb2 as pb

# Of what may wait in one connection one substream may have so much.
_SHARE = 4
# What a byte of a batch comes to, at most, once it is parsed.
_MOST_A_BYTE = 1024


class AioTarget:
    """Answers ``Connect``, ``Deliver`` and ``DeliverBatch`` on one event loop."""

    def __init__(self, target: ServedTarget) -> None:
        self.target = target
        self.rules = AioRules(target)

    def methods(self) -> dict[str, Callable[[ServerHandlers], Any]]:
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

    def _guarded(
        self, answer: Callable[[Any, Any], Awaitable[bytes | None]]
    ) -> Callable[[Any, Any], Awaitable[bytes | None]]:
        async def behavior(data: Any, context: Any) -> bytes | None:
            whence = address_of(context)
            try:
                self.target.access.check(context)
                return await answer(data, context)
            except (LogError, TargetUnavailable) as error:
                self.target.calls.audit.refused(error, whence)
                await context.abort(*refusal_of(known(error)))
                return None

        return behavior

    async def _connect(self, data: bytes, context: Any) -> bytes:
        request = parsed(pb.ConnectRequest, data)
        feed, tags = connecting(request)
        for tag in tags:
            self.target.methods.check_tag(tag)
        for tag, place in passed_over_of(request):
            # Else it is answered when the message is skipped.
            with suppress(TargetUnavailable):
                await self.rules.abandon(feed, tag, place)
        held = [self.rules.seats.get(feed, tag) for tag in tags]
        for seat, lock in held:
            if seat.owes and not lock.locked():
                async with lock:
                    await self.rules.drive(settle(seat), context, None, _nobody)
        told = await self.rules.drive(connect([seat for seat, _ in held]), context, None, _nobody)
        return pb.ConnectReply(
            store=self.target.rows.store_id,
            indexes=[
                index_to_wire(tag, *each, waits=self.target.waits(self.rules.seats, feed, tag))
                for tag, each in zip(tags, told, strict=True)
            ],
            streams=True,
            most_bytes=self.target.limits.most_bytes,
            process=self.target.rows.process,
            beats=await in_thread(self.target.beats, request.processes),
        ).SerializeToString()

    async def _batch(self, data: bytes, context: Any, handlers: ServerHandlers | None) -> bytes:
        message = parsed(pb.Deliveries, data)
        origin = origin_of(message)
        # All of it is here already.
        most = len(data) * _MOST_A_BYTE
        connection = DeliveryConnection(self.rules, origin, context, handlers, most, most)
        try:
            connection.take_in(message)
            await connection.worked_off()
        finally:
            connection.close()
        return answers_to_wire(origin.term, connection.outbox.take())

    async def _stream(
        self, stream: AsyncIterator[bytes], context: Any, handlers: ServerHandlers | None
    ) -> None:
        first = await anext(stream, None)
        if first is None:
            return
        message = parsed(pb.Deliveries, first)
        origin = origin_of(message)
        most = self.target.limits.queued_bytes
        connection = DeliveryConnection(self.rules, origin, context, handlers, most, most // _SHARE)
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


def _nobody(answer: DeliveryAnswer) -> None:
    """Tell no player: the one that connects learns the index."""
