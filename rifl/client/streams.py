"""Streams on the sync channel: retried and resumed (DESIGN §4)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import grpc

from rifl.client.errors import CallError, unserialisable
from rifl.client.keys import refuse_key, take_key
from rifl.client.resending import Resending, resumed
from rifl.client.sync_client import SyncClient
from rifl.client.sync_exchange import BlockingExchange, CallFuture, Sender
from rifl.core.stream_attempts import ReceivedResponses

__all__ = [
    "BidirectionalMultiCallable",
    "StreamCall",
    "StreamUnaryMultiCallable",
    "UnaryStreamMultiCallable",
]


class StreamUnaryMultiCallable(grpc.StreamUnaryMultiCallable):  # type: ignore[type-arg]
    """One method with a request stream. Any thread.

    Messages are kept, up to 4 MiB, to be sent again; after that a lost answer is an
    unknown outcome, and can be resolved.
    """

    def __init__(
        self,
        client: SyncClient,
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

    def __call__(self, request_iterator: Iterable[Any], *args: Any, **kwargs: Any) -> Any:
        """See ``grpc.StreamUnaryMultiCallable.__call__``."""
        return self.with_call(request_iterator, *args, **kwargs)[0]

    def with_call(
        self,
        request_iterator: Iterable[Any],
        timeout: float | None = None,
        metadata: Any = None,
        credentials: grpc.CallCredentials | None = None,
        wait_for_ready: bool | None = None,
        compression: grpc.Compression | None = None,
    ) -> tuple[Any, Any]:
        """See ``grpc.StreamUnaryMultiCallable.with_call``."""
        exchange = self._exchange(
            BlockingExchange,
            request_iterator,
            timeout,
            metadata,
            (credentials, wait_for_ready, compression),
        )
        exchange.begin()
        try:
            return exchange.run(), exchange.status
        except CallError as failed:
            raise failed from None

    def future(  # type: ignore[override]
        self,
        request_iterator: Iterable[Any],
        timeout: float | None = None,
        metadata: Any = None,
        credentials: grpc.CallCredentials | None = None,
        wait_for_ready: bool | None = None,
        compression: grpc.Compression | None = None,
    ) -> CallFuture:
        """See ``grpc.StreamUnaryMultiCallable.future``."""
        exchange: CallFuture = self._exchange(
            CallFuture,
            request_iterator,
            timeout,
            metadata,
            (credentials, wait_for_ready, compression),
        )
        exchange.begin()
        return exchange

    def _exchange(
        self, kind: Any, requests: Iterable[Any], timeout: float | None, metadata: Any, rest: Any
    ) -> Any:
        client = self._client
        client.check_usable()
        now = client.now()
        key, metadata = take_key(metadata)
        given = tuple(metadata or ())
        resending = Resending(iter(requests), self._serializer)

        def send(header: tuple[str, bytes] | None, timeout_s: float | None) -> Any:
            resending.check()
            entries = given if header is None else (*given, header)
            marked = header is not None and client.end_marker
            return self._inner.future(resending.attempt(marked=marked), timeout_s, entries, *rest)

        return kind(
            client,
            self._method,
            send,
            started_at=now,
            deadline=None if timeout is None else now + timeout,
            context=self._deserializer,
            key=key,
            stream=True,
        )


class StreamCall(BlockingExchange, grpc.Call):
    """A call with a response stream: iterate over it, in one thread at a time.

    A stream that breaks off is asked for again, from the message after the last one
    received; the server answers from its record. Leaving it early cancels it.
    """

    hedges = False

    def __init__(self, *args: Any, deadline: float | None, **kwargs: Any) -> None:
        super().__init__(*args, deadline=deadline, **kwargs)
        self._deadline = deadline
        self._current: Any = None
        self._number = 0
        self._responses = ReceivedResponses()
        self._on_end: list[Callable[[], None]] = []

    @property
    def received(self) -> int:
        """How many messages there were so far."""
        return self._responses.count

    def launch(
        self, number: int, header: tuple[str, bytes] | None, timeout_s: float | None
    ) -> None:
        """See ``Exchange``."""
        self._number = number
        self._current = self._send(resumed(header, self._responses.asked_after()), timeout_s)

    def cancel_attempt(self, number: int) -> None:
        """See ``Exchange``."""
        if self._current is not None:
            self._current.cancel()

    def ended(self) -> None:
        """See ``Exchange``."""
        super().ended()
        for callback in self._on_end:
            self._client.call_back(callback)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        while not self._over:
            current = self._current
            if current is None:
                self.step()
                continue
            try:
                message = next(current)
            except (StopIteration, grpc.RpcError):
                self._current = None
                self.attempt_ended(self._number, current, None)
            else:
                self._responses.take()
                return message
        if self.error is not None:
            raise self.error
        raise StopIteration

    def __del__(self) -> None:
        # Wherever a collection comes this thread may hold the session's lock, or any
        # other: what takes one is left to another thread. gRPC's call is let go here,
        # which cancels it.
        if not getattr(self, "_over", True):
            self._current = None
            self._client.leave(self._left)

    def _left(self) -> None:
        self.handle(lambda: self._give_up("the stream was left"))

    def cancel(self) -> bool:
        """Cancel the call; its outcome is unknown, and it can be resolved."""
        if self._over:
            return False
        self.give_up()
        current = self._current
        if current is not None:
            current.cancel()
        return True

    def is_active(self) -> bool:
        """Return whether the call is under way."""
        return not self._over

    def time_remaining(self) -> Any:
        """Return the seconds to the deadline, None if there is none."""
        return None if self._deadline is None else max(self._deadline - self.state.now(), 0.0)

    def add_callback(self, callback: Callable[[], None]) -> bool:
        """Call ``callback`` at the end; return False if that is past."""
        if self._over:
            return False
        self._on_end.append(callback)
        return True

    def initial_metadata(self) -> Any:
        """Wait for the initial metadata of the attempt under way, and return it."""
        while not self._over and self._current is None:
            self.step()
        answered: Any = self.status if self._over else self._current
        return answered.initial_metadata()

    def trailing_metadata(self) -> Any:
        """Return the final status' metadata, None before the stream was read to its end."""
        return self.status.trailing_metadata() if self.status is not None else None

    def code(self) -> Any:
        """Return the final status code, None before the stream was read to its end."""
        return self.status.code() if self.status is not None else None

    def details(self) -> Any:
        """Return the final status text, None before the stream was read to its end."""
        return self.status.details() if self.status is not None else None


class UnaryStreamMultiCallable(grpc.UnaryStreamMultiCallable):  # type: ignore[type-arg]
    """One method with a response stream. Any thread."""

    def __init__(
        self,
        client: SyncClient,
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
        timeout: float | None = None,
        metadata: Any = None,
        credentials: grpc.CallCredentials | None = None,
        wait_for_ready: bool | None = None,
        compression: grpc.Compression | None = None,
    ) -> Any:
        """See ``grpc.UnaryStreamMultiCallable.__call__``."""
        client = self._client
        client.check_usable()
        now = client.now()
        key, metadata = take_key(metadata)
        given = tuple(metadata or ())
        try:
            body = request if self._serializer is None else self._serializer(request)
        except Exception as error:
            raise unserialisable() from error

        def send(header: tuple[str, bytes] | None, timeout_s: float | None) -> Any:
            entries = given if header is None else (*given, header)
            return self._inner(body, timeout_s, entries, credentials, wait_for_ready, compression)

        lease = client.lease
        if lease is not None and key is None and not lease.methods.has(self._method, stream=True):
            return send(None, timeout)
        sender: Sender = send
        call = StreamCall(
            client,
            self._method,
            sender,
            started_at=now,
            deadline=None if timeout is None else now + timeout,
            key=key,
            stream=True,
        )
        call.begin()
        # Sent now if there is a lease; else when the first message is asked for.
        call.step()
        return call


class BidirectionalMultiCallable(grpc.StreamStreamMultiCallable):  # type: ignore[type-arg]
    """gRPC's own, but that a key is refused, which nobody would look at. Any thread."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __call__(
        self,
        request_iterator: Iterable[Any],
        timeout: float | None = None,
        metadata: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """See ``grpc.StreamStreamMultiCallable.__call__``."""
        refuse_key(metadata)
        return self._inner(request_iterator, timeout, metadata, *args, **kwargs)
