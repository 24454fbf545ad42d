"""The entrance of a command's ``grpc.aio.server``: where calls wait for their message.

No thread waits there, but a server has so many places for calls, and each call takes memory.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Any

import grpc
import grpc.aio

from rifl._grpc.ended_calls import EndedCalls
from rifl._grpc.entrance import LOOK_S, MESSAGE_S, NO_MESSAGE, WAITING
from rifl._grpc.status import CallStatus, rich_status
from rifl._grpc.waiting import WaitingCall, WaitingCalls


def too_many(text: str) -> CallStatus:
    """Return rifl's refusal of a call whose message did not come."""
    return rich_status(grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY", text, {}, MESSAGE_S / 2)


class _Call(WaitingCall):
    __slots__ = ("gone", "task")

    def __init__(self, context: Any, since: float, wait_s: float) -> None:
        super().__init__(context, since, wait_s)
        self.task: Any = asyncio.current_task()
        # Told to go.
        self.gone = False


class AioEntrance:
    """Of one server, on its event loop: of all that is added to it after ``guard``.

    At most ``WAITING`` calls wait for a message; one more ends the oldest of the address that
    holds most. A message takes ``message_s`` at most (0: any time), a later one of gRPC's
    reflection, too. Streams of our own services have rules of their own.
    """

    def __init__(
        self, message_s: float = MESSAGE_S, refusal: Callable[[str], CallStatus] = too_many
    ) -> None:
        self._message_s = message_s or math.inf
        self._refusal = refusal
        self._waiting: WaitingCalls[_Call] = WaitingCalls(WAITING)
        self._ended = EndedCalls()
        self._watched = False

    def guard(self, server: grpc.aio.Server) -> None:
        """Have the server's handlers take their message here. Before any is added."""
        guarded: Any = server
        add, register = server.add_generic_rpc_handlers, server.add_registered_method_handlers

        def add_entered(handlers: Iterable[grpc.GenericRpcHandler]) -> None:
            add(tuple(_Entered(each, self._entered) for each in handlers))

        def register_entered(service: str, handlers: Mapping[str, Any]) -> None:
            register(service, {name: self._entered(each) for name, each in handlers.items()})

        # gRPC has no hook for that, and an interceptor takes more of each call.
        guarded.add_generic_rpc_handlers = add_entered
        guarded.add_registered_method_handlers = register_entered

    def _entered(self, handler: Any) -> Any:
        if handler.request_streaming:
            behavior = handler.stream_stream
            if not inspect.isasyncgenfunction(behavior):
                # It reads by itself.
                return handler
            entered: Any = _yielding(behavior, self._messages)
        elif handler.response_streaming:
            behavior = handler.unary_stream
            yields = inspect.isasyncgenfunction(behavior)
            entered = (_yielding if yields else _answering)(behavior, self.message)
        else:
            entered = _answering(handler.unary_unary, self.message)
        make: Any = (
            grpc.stream_stream_rpc_method_handler
            if handler.response_streaming
            else grpc.stream_unary_rpc_method_handler
        )
        return make(entered, handler.request_deserializer, handler.response_serializer)

    async def message(self, context: Any) -> Any:
        """Return a call's one message; ends the call if there is none, or it takes too long.

        For handlers that let a caller in first, and take a stream for that.
        """
        message = await self._read(context)
        if message is grpc.aio.EOF:
            await _end_call(context, grpc.StatusCode.UNIMPLEMENTED, NO_MESSAGE, ())
        return message

    async def _messages(self, context: Any) -> AsyncIterator[Any]:
        while (message := await self._read(context)) is not grpc.aio.EOF:
            yield message

    async def _read(self, context: Any) -> Any:
        loop = asyncio.get_running_loop()
        call = _Call(context, loop.time(), self._message_s)
        if self._waiting.enter(call):
            self._end(self._waiting.take_crowding(call.since), call.since)
        if not self._watched:
            self._watched = True
            self._watch(loop)
        try:
            return await context.read()
        except asyncio.CancelledError:
            if not call.gone:
                raise
            call.task.uncancel()
        finally:
            self._waiting.leave(call)
        refusal = self._refusal("the message of the call did not come in time: send it again")
        return await _end_call(context, refusal.code, refusal.details, refusal.trailing_metadata)

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        self._end(self._waiting.take_expired(now), now)
        self._watched = len(self._waiting) > 0
        if self._watched:
            loop.call_later(min(LOOK_S, self._message_s / 4), self._watch, loop)

    def _end(self, calls: list[_Call], now: float) -> None:
        self._ended.note(calls, now)
        for call in calls:
            call.gone = True
            call.task.cancel()


async def _end_call(context: Any, code: Any, details: str, metadata: Any) -> None:
    try:
        await context.abort(code, details, metadata)
    except grpc.aio.InternalError:
        # The client left: that is why there was no message.
        raise asyncio.CancelledError from None


class _Entered(grpc.GenericRpcHandler):
    """The handlers of another one, which take their message at the entrance."""

    def __init__(self, inner: grpc.GenericRpcHandler, entered: Callable[[Any], Any]) -> None:
        self._inner = inner
        self._entered = entered
        self._made: dict[str, tuple[Any, Any]] = {}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Return the handler that takes its message from a stream: on the wire it is the same."""
        handler = self._inner.service(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method
        known = self._made.get(method)
        if known is None or known[0] is not handler:
            known = self._made[method] = (handler, self._entered(handler))
        return known[1]


def _answering(
    behavior: Callable[..., Awaitable[Any]], message: Callable[[Any], Any]
) -> Callable[..., Awaitable[Any]]:
    async def answering(_: Any, context: Any) -> Any:
        return await behavior(await message(context), context)

    return answering


def _yielding(
    behavior: Callable[..., AsyncIterator[Any]], requests: Callable[[Any], Any]
) -> Callable[..., AsyncIterator[Any]]:
    async def yielding(_: Any, context: Any) -> AsyncIterator[Any]:
        request = requests(context)
        if inspect.isawaitable(request):
            request = await request
        async for reply in behavior(request, context):
            yield reply

    return yielding
