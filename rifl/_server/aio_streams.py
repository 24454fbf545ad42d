"""Streams on a ``grpc.aio.server``: one side is a stream, the other a message (DESIGN §4)."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from typing import Any

import grpc
import grpc.aio

from rifl._server.aio import AioShell, send
from rifl._server.context import CURRENT, AioHandlerContext, Serving, caller_leaves
from rifl._server.eager_task import take_cancellation
from rifl._server.handler_results import (
    first_metadata,
    message_bytes,
    raised_result,
    returned_result,
)
from rifl._server.reply import SentReply
from rifl.core._serving.admission import admit
from rifl.core._serving.answer import Answer, HandlerResult
from rifl.core._serving.client_entry import Attempt
from rifl.core._serving.later import Later
from rifl.core._serving.policy import MethodPolicy
from rifl.core._serving.serving import execute
from rifl.core._serving.streams import RequestStream, ResponseStream
from rifl.core._shared.call import Call
from rifl.core._shared.errors import BadHeader, RiflError
from rifl.core._shared.invariant import InvariantViolated
from rifl.core._shared.record import Metadata

# Messages made and not yet sent, before the handler has to wait.
_AHEAD = 16
_END = object()


class _Context(AioHandlerContext):
    """Handlers of streams read and write through it, too."""

    requests: _Requests | None = None
    emit: Callable[[Any], Awaitable[None]] | None = None

    async def read(self) -> Any:
        """Return the next message of the request stream, ``grpc.aio.EOF`` at its end."""
        if self.requests is None:
            return await super().read()
        return await anext(self.requests, grpc.aio.EOF)

    async def write(self, message: Any) -> None:
        """Send a message of the response stream."""
        if self.emit is None:
            await super().write(message)
        else:
            await self.emit(message)


class _BrokenOff(grpc.RpcError):
    """The caller went away in the middle of its stream."""


class _Requests(Later):
    """The messages of one call: what was buffered, then what arrives."""

    def __init__(
        self,
        source: AsyncIterator[bytes],
        stream: RequestStream,
        deserialize: Callable[[bytes], Any] | None,
    ) -> None:
        self._source = source
        self._stream = stream
        self._deserialize = deserialize

    async def buffer(self) -> None:
        """Read the stream to its end, or until no more may be kept."""
        async for message in self._source:
            if not (self._stream.take(message) and self._stream.keep(message)):
                return
        self._stream.exhausted()

    async def _drain(self) -> None:
        self._stream.drop()
        async for message in self._source:
            if not self._stream.take(message):
                return
        self._stream.exhausted()

    def wait(self) -> None:
        """Raise: a loop does not block."""
        raise InvariantViolated("an event loop does not block")

    def __await__(self) -> Generator[Any, Any, None]:
        return self._drain().__await__()

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        message = self._stream.next()
        if message is None:
            if self._stream.ended:
                raise StopAsyncIteration
            message = await self._arriving()
        return message if self._deserialize is None else self._deserialize(message)

    def _broke_off(self) -> None:
        try:
            self._stream.exhausted()
        except BadHeader as error:
            raise _BrokenOff(str(error)) from None

    async def _arriving(self) -> bytes:
        try:
            message = await anext(self._source)
        except StopAsyncIteration:
            self._broke_off()
            raise
        except BaseException:
            self._stream.break_off()
            raise
        if not self._stream.take(message):
            raise StopAsyncIteration
        return message


def stream_unary_behavior(
    shell: AioShell, method: str, policy: MethodPolicy, handler: Any
) -> Callable[[Any, Any], Awaitable[Any]]:
    """Return the raw behavior that deduplicates calls with a request stream.

    As ``sync_streams.stream_unary_behavior``.
    """
    engine = shell.engine
    replies = engine.replies
    store = engine.store
    serialize = handler.response_serializer
    serving = Serving(store, serialize)

    async def run(
        stream: RequestStream,
        requests: _Requests,
        context: Any,
        attempt: Attempt,
        raised: list[BaseException],
    ) -> HandlerResult:
        inner = _Context(context, attempt, serving)
        inner.requests = requests
        CURRENT.set(inner)
        task: Any = asyncio.current_task()
        try:
            response = await handler.stream_unary(requests, inner)
        except KeyboardInterrupt:
            # It ends the loop, and is no answer: the next start finds the call as after a crash.
            raise
        except BaseException as error:  # noqa: BLE001 - recorded, and logged
            if not inner.aborted:
                raised.append(error)
            return stream.result(raised_result(inner, error, aio=True))
        finally:
            if task.cancelling():
                await take_cancellation(task)
        return returned_result(inner, response, serialize, aio=True)

    async def carry_out(
        attempt: Attempt, stream: RequestStream, requests: _Requests, context: Any, began: float
    ) -> SentReply:
        """Execute the call to its durable end, with or without a waiting caller."""
        raised: list[BaseException] = []
        try:
            told = await shell.drive(
                execute(store, attempt),
                context,
                lambda attempt: run(stream, requests, context, attempt, raised),
            )
        except RiflError as refusal:
            told = refusal
        return replies.status(method, attempt.call, told, began, raised)

    async def deduplicated(source: AsyncIterator[bytes], context: Any) -> Any:
        call: Call | None = None
        began = replies.begin()
        try:
            call = engine.arrive_stream(method, context)
            stream = RequestStream(call, policy.buffer_bytes)
            requests = _Requests(aiter(source), stream, handler.request_deserializer)
            await requests.buffer()
            answer = await shell.drive(stream.admit(store, policy, requests), context)
            if isinstance(answer, Attempt):
                status = await shell.shielded(
                    carry_out(answer, stream, requests, context, began), context
                )
            else:
                status = replies.status(method, call, answer, began)
        except RiflError as refusal:
            status = replies.status(method, call, refusal, began)
        except asyncio.CancelledError:
            if call is not None:
                call.gone = True
            raise
        return await send(context, status)

    return deduplicated


class _Outlet:
    """Between the handler, which runs on, and the caller, who may be gone."""

    def __init__(self, responses: ResponseStream) -> None:
        self._queue: asyncio.Queue[Any] = asyncio.Queue(_AHEAD)
        self._responses = responses
        # What was sent before the first message.
        self.opened = False

    async def put(self, message: Any) -> None:
        """Hand a message over; waits while the caller is slow."""
        if self._responses.here:
            await self._queue.put(message)

    async def send_all(self, context: Any, noted: Callable[[], Metadata]) -> None:
        """Send what comes until the end; ``noted`` says what initial metadata goes first."""
        try:
            while (message := await self._queue.get()) is not _END:
                if not self.opened and (initial := noted()):
                    await context.send_initial_metadata(initial)
                self.opened = True
                await context.write(message)
        except BaseException:
            self._responses.leave()
            # A task that waits to put a message must not block here without end.
            while not self._queue.empty():
                self._queue.get_nowait()
            raise


def unary_stream_behavior(
    shell: AioShell, method: str, policy: MethodPolicy, handler: Any
) -> Callable[[Any, Any], Awaitable[None]]:
    """Return the raw behavior that deduplicates calls with a response stream.

    As ``sync_streams.unary_stream_behavior``. Messages leave by ``context.write``.
    """
    engine = shell.engine
    replies = engine.replies
    store = engine.store
    deserialize = handler.request_deserializer
    serialize = handler.response_serializer
    serving = Serving(store, serialize)
    generates = inspect.isasyncgenfunction(handler.unary_stream)

    async def produce(
        inner: _Context,
        responses: ResponseStream,
        outlet: _Outlet,
        request: bytes,
        raised: list[BaseException],
    ) -> HandlerResult:
        CURRENT.set(inner)
        task: Any = asyncio.current_task()

        async def emit(response: Any) -> None:
            data = message_bytes(response if serialize is None else serialize(response))
            if responses.add(data):
                await outlet.put(data)

        inner.emit = emit
        try:
            message = request if deserialize is None else deserialize(request)
            produced = handler.unary_stream(message, inner)
            if generates:
                async for response in produced:
                    await emit(response)
            else:
                await produced
        except KeyboardInterrupt:
            # It ends the loop, and is no answer: the next start finds the call as after a crash.
            raise
        except BaseException as error:  # noqa: BLE001 - recorded, and logged
            if not inner.aborted:
                raised.append(error)
            return raised_result(inner, error, aio=True)
        finally:
            if task.cancelling():
                await take_cancellation(task)
        return returned_result(inner, b"", None, aio=True)

    async def carry_out(
        inner: _Context,
        responses: ResponseStream,
        outlet: _Outlet,
        request: bytes,
        call: Call,
        began: float,
    ) -> SentReply:
        """Execute the call to its durable end, with or without a listening caller."""
        raised: list[BaseException] = []
        told: Answer | RiflError
        try:
            steps = execute(store, inner.rifl_attempt)
            await shell.drive(steps, inner)
            live = responses.result(await produce(inner, responses, outlet, request, raised))
            told = responses.ended(await shell.drive(steps, inner, value=live))
        except RiflError as refusal:
            told = refusal
        finally:
            await outlet.put(_END)
        return replies.status(method, call, told, began, raised)

    async def deduplicated(request: bytes, context: Any) -> None:
        call: Call | None = None
        opened = True
        began = replies.begin()
        try:
            call = engine.arrive(method, request, context, deserialize)
            received = engine.received(context)
            responses = ResponseStream(call, policy, received)
            answer = await shell.drive(admit(store, call, policy), context)
            if isinstance(answer, Attempt):
                outlet = _Outlet(responses)
                inner = _Context(context, answer, serving)
                work = asyncio.ensure_future(
                    shell.shielded(
                        carry_out(inner, responses, outlet, request, call, began), context
                    )
                )
                try:
                    await outlet.send_all(context, lambda: first_metadata(inner))
                finally:
                    if not responses.here:
                        call.gone = True
                        if not work.done():
                            # Before this task ends, and so before ``work`` finds out.
                            caller_leaves(context)
                        work.cancel()
                status = await work
                opened = outlet.opened
            else:
                rest = ResponseStream.rest(answer.record, received)
                status = replies.status(method, call, answer, began)
                if status.initial_metadata:
                    await context.send_initial_metadata(status.initial_metadata)
                for message in rest:
                    await context.write(message)
        except RiflError as refusal:
            status = replies.status(method, call, refusal, began)
        await send(context, status._replace(initial_metadata=()) if opened else status)

    return deduplicated
