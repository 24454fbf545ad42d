"""Streams on the aio channel: retried and resumed (DESIGN §4)."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import grpc.aio

from _rifl_ground.loops import tell_loop
from rifl._client.aio_call import UnaryUnaryCall
from rifl._client.aio_client import AioClient
from rifl._client.aio_exchange import AioExchange
from rifl._client.aio_status import at_hand
from rifl._client.errors import CallError, unserialisable
from rifl._client.grpc_channels import waits_for_ready
from rifl._client.keys import invalid_metadata, refuse_key
from rifl._client.resending import AioResending, resumed
from rifl._client.state import forked_error
from rifl.core._calling.invocation import Invocation
from rifl.core._calling.stream_attempts import ReceivedResponses

_AHEAD = 16
_MIXED = "The iterator and read/write APIs may not be mixed on a single RPC."


def _weakly(end: weakref.WeakMethod[Callable[[], None]]) -> Callable[[], None]:
    def on_end() -> None:
        finish = end()
        if finish is not None:
            finish()

    return on_end


class StreamUnaryCall(UnaryUnaryCall, grpc.aio.StreamUnaryCall):  # type: ignore[type-arg]
    """A call with a request stream, from an iterator or by ``write``."""

    def feed(self, resending: AioResending, *, by_iterator: bool) -> None:
        """Take what the stream is written to, and whether an iterator does that."""
        self._resending = resending
        self._by_iterator = by_iterator

    async def write(self, request: Any) -> None:
        """Send a message; returns when an attempt has sent it.

        Raises ``asyncio.InvalidStateError`` after the end of the call or of the stream,
        and what the call ends with, if it ends meanwhile.
        """
        self._check_style()
        if self.done() or self.cancelled():
            raise asyncio.InvalidStateError("RPC already finished.")
        if self._resending.ended:
            raise asyncio.InvalidStateError("RPC is half closed after calling done_writing().")
        sent = self._resending.write(request)
        over = asyncio.ensure_future(self._exchange.finished())  # type: ignore[union-attr]
        try:
            await asyncio.wait((sent, over), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self.cancel()
            raise
        finally:
            over.cancel()
        if not sent.done():
            # It ended first.
            await self

    async def done_writing(self) -> None:
        """End the stream; again, or after the call's end, it does nothing."""
        self._check_style()
        self._resending.end()

    def _check_style(self) -> None:
        if self._by_iterator:
            raise grpc.aio.UsageError(_MIXED)


class AioStreamUnaryMultiCallable(grpc.aio.StreamUnaryMultiCallable):  # type: ignore[type-arg]
    """One method with a request stream; as the sync one."""

    def __init__(
        self,
        client: AioClient,
        inner: Any,
        method: str,
        serializer: Callable[[Any], bytes] | None,
        deserializer: Callable[[bytes], Any] | None,
    ) -> None:
        self._client = client
        self._inner = inner
        self._method = method
        self._serializer = serializer
        self._deserializer = deserializer

    def __call__(
        self,
        request_iterator: Any = None,
        timeout: float | None = None,
        metadata: Any = None,
        credentials: grpc.CallCredentials | None = None,
        wait_for_ready: bool | None = None,
        compression: grpc.Compression | None = None,
    ) -> StreamUnaryCall:
        """See ``grpc.aio.StreamUnaryMultiCallable``."""
        client = self._client
        client.check_usable(credentials)
        invocation, given = client.invoked(
            self._method, metadata, timeout, decode=self._deserializer, stream=True
        )
        resending = AioResending(request_iterator, self._serializer)

        async def send(header: tuple[str, bytes] | None, timeout_s: float | None) -> Any:
            resending.check()
            return self._inner(
                resending.attempt(marked=header is not None),
                timeout=timeout_s,
                metadata=given if header is None else (*given, header),
                credentials=credentials,
                wait_for_ready=wait_for_ready,
                compression=compression,
            )

        call = StreamUnaryCall(client, invocation.deadline)
        call.feed(resending, by_iterator=request_iterator is not None)
        exchange = AioExchange(client, invocation, send, on_end=call.finish)
        call.run(exchange, invalid_metadata(given))
        return call


class _StreamExchange(AioExchange):
    """Hands the messages of one attempt after the other to the caller."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._responses = ReceivedResponses()
        self.messages: asyncio.Queue[Any] = asyncio.Queue(_AHEAD)

    def launch(
        self, number: int, header: tuple[str, bytes] | None, timeout_s: float | None
    ) -> None:
        """See ``Exchange``."""
        super().launch(number, resumed(header, self._responses.asked_after()), timeout_s)

    def leave(self) -> None:
        """Give the call up, soon. For finalizers, on any thread: takes no lock."""
        tell_loop(self._loop, self.give_up)

    async def receive(self, inner: Any) -> None:
        """Take the messages of an attempt, to its end."""
        async for message in inner:
            self._responses.take()
            await self.messages.put(message)


class UnaryStreamCall(UnaryUnaryCall, grpc.aio.UnaryStreamCall):  # type: ignore[type-arg]
    """A call with a response stream: ``async for``, or ``read``.

    One that is dropped before its end is cancelled, as gRPC's are; with a callback for
    its end it is kept.
    """

    _exchange: _StreamExchange

    def run(self, exchange: AioExchange, fault: CallError | None = None) -> None:
        """Let an exchange do all of it; it does not keep this call alive."""
        exchange.on_end = _weakly(weakref.WeakMethod(self.finish))
        super().run(exchange, fault)

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Call ``callback`` with this call at the end, or now if it has ended."""
        self._exchange.on_end = self.finish
        super().add_done_callback(callback)

    def __del__(self) -> None:
        exchange = getattr(self, "_exchange", None)
        if exchange is not None and not self._over:
            exchange.leave()

    # Whether messages are taken by iteration or by ``read``, once known: gRPC allows one of them.
    _iterated: bool | None = None

    def __aiter__(self) -> AsyncIterator[Any]:
        self._taken(iterated=True)
        return self._messages()

    async def read(self) -> Any:
        """Return the next message, ``grpc.aio.EOF`` at the end; raises ``CallError``."""
        self._taken(iterated=False)
        return await self._read()

    def _taken(self, *, iterated: bool) -> None:
        if self._iterated is None:
            self._iterated = iterated
        elif self._iterated is not iterated:
            raise grpc.aio.UsageError(_MIXED)

    async def _read(self) -> Any:
        exchange = self._exchange
        while exchange.messages.empty():
            if self._over:
                await exchange.result()
                return grpc.aio.EOF
            getting = asyncio.ensure_future(exchange.messages.get())
            ending = asyncio.ensure_future(exchange.finished())
            try:
                await asyncio.wait((getting, ending), return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                self.cancel()
                raise
            finally:
                ending.cancel()
                if not getting.done():
                    getting.cancel()
            if getting.done() and not getting.cancelled():
                return getting.result()
        return exchange.messages.get_nowait()

    async def _messages(self) -> AsyncIterator[Any]:
        while (message := await self._read()) is not grpc.aio.EOF:
            yield message


class AioUnaryStreamMultiCallable(grpc.aio.UnaryStreamMultiCallable):  # type: ignore[type-arg]
    """One method with a response stream; as the sync one."""

    def __init__(
        self,
        client: AioClient,
        inner: Any,
        method: str,
        serializer: Callable[[Any], bytes] | None,
        deserializer: Callable[[bytes], Any] | None,
    ) -> None:
        del deserializer  # the inner multicallable has it
        self._client = client
        self._inner = inner
        self._method = method
        self._serializer = serializer

    def __call__(
        self,
        request: Any,
        *,
        timeout: float | None = None,
        metadata: Any = None,
        credentials: grpc.CallCredentials | None = None,
        wait_for_ready: bool | None = None,
        compression: grpc.Compression | None = None,
    ) -> Any:
        """See ``grpc.aio.UnaryStreamMultiCallable``."""
        client = self._client
        client.check_usable(credentials)
        try:
            body = request if self._serializer is None else self._serializer(request)
        except Exception as error:
            raise unserialisable() from error
        invocation, given = client.invoked(
            self._method, metadata, timeout, stream=True, hedges=False
        )

        def send_now(header: tuple[str, bytes] | None, timeout_s: float | None) -> Any:
            return self._inner(
                body,
                timeout=timeout_s,
                metadata=given if header is None else (*given, header),
                credentials=credentials,
                wait_for_ready=wait_for_ready,
                compression=compression,
            )

        async def send(header: tuple[str, bytes] | None, timeout_s: float | None) -> Any:
            return send_now(header, timeout_s)

        lease = client.lease
        if (
            lease is not None
            and invocation.key is None
            and not lease.methods.has(self._method, stream=True)
        ):
            return _watched(client, invocation, send_now(None, timeout))
        call = UnaryStreamCall(client, invocation.deadline)
        call.run(_StreamExchange(client, invocation, send), invalid_metadata(given))
        return call


class AioBidirectionalMultiCallable(grpc.aio.StreamStreamMultiCallable):  # type: ignore[type-arg]
    """gRPC's own, but that it is observed, and a key refused."""

    def __init__(self, client: AioClient, inner: Any, method: str) -> None:
        self._client = client
        self._inner = inner
        self._method = method

    def __call__(
        self,
        request_iterator: Any = None,
        timeout: float | None = None,
        metadata: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """See ``grpc.aio.StreamStreamMultiCallable``."""
        client = self._client
        if client.forked:
            raise forked_error()
        refuse_key(metadata)
        invocation, metadata = client.invoked(self._method, metadata, None, stream=True)
        call = self._inner(request_iterator, timeout, metadata or None, *args, **kwargs)
        if waits_for_ready(*args, **kwargs):
            client.patient.add(call)
            call.add_done_callback(client.patient.discard)
        return _watched(client, invocation, call)


def _watched(client: AioClient, invocation: Invocation, call: Any) -> Any:
    """Return a call that is passed through, its end told to the observer, if there is one."""
    if client.observer is not None:

        def ended(done: Any) -> None:
            code = at_hand(done.code())
            client.tell_plain(invocation.method, invocation.started_at, code, invocation.begun)

        call.add_done_callback(ended)
    return call
