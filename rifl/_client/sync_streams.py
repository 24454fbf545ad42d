"""Streams on the sync channel: retried and resumed (DESIGN §4)."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import grpc

from rifl._client.errors import CallError, unserialisable
from rifl._client.grpc_channels import waits_for_ready
from rifl._client.keys import invalid_metadata, refuse_key
from rifl._client.resending import Resending, resumed
from rifl._client.state import forked_error
from rifl._client.sync_client import SyncClient
from rifl._client.sync_exchange import BlockingExchange, CallFuture, Sender
from rifl.core._calling.invocation import Invocation
from rifl.core._calling.stream_attempts import ReceivedResponses


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
        exchange.begin(invalid_metadata(metadata))
        try:
            return exchange.run(), exchange.status
        except CallError as failed:
            raise failed from failed.__cause__

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
        exchange.begin(invalid_metadata(metadata))
        return exchange

    def _exchange(
        self, kind: Any, requests: Iterable[Any], timeout: float | None, metadata: Any, rest: Any
    ) -> Any:
        client = self._client
        client.check_usable()
        invocation, given = client.invoked(
            self._method, metadata, timeout, decode=self._deserializer, stream=True
        )
        resending = Resending(requests, self._serializer)

        def send(header: tuple[str, bytes] | None, timeout_s: float | None) -> Any:
            resending.check()
            entries = given if header is None else (*given, header)
            attempt = resending.attempt(marked=header is not None)
            return self._inner.future(attempt, timeout_s, entries, *rest)

        return kind(client, invocation, send)


class StreamCall(CallFuture):
    """A call with a response stream: iterate over it, in one thread at a time.

    A stream that breaks off is asked for again, from the message after the last one
    received; the server answers from its record. Leaving it early cancels it. It goes on
    in the background, as ``CallFuture`` does, but for its messages, which are taken when
    they are asked for.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Guarded by ``_lock``: the attempt in flight, and whether a thread reads it.
        self._current: Any = None
        self._number = 0
        self._reading = False
        self._responses = ReceivedResponses()

    # The exchange's shell.

    def launch(
        self, number: int, header: tuple[str, bytes] | None, timeout_s: float | None
    ) -> None:
        """See ``Exchange``."""
        try:
            current = self._send(resumed(header, self._responses.asked_after()), timeout_s)
        except Exception as error:  # noqa: BLE001 - such as metadata that gRPC rejects
            self.fail(error)
            return
        with self._lock:
            self._current, self._number = current, number
            self._condition.notify_all()
        if isinstance(current, grpc.Future):
            # Weakly: a stream without a reader must be cancelled.
            reference = weakref.ref(self)

            def done(_: Any) -> None:
                call = reference()
                if call is not None:
                    call._current_done(current)

            current.add_done_callback(done)

    def set_timer(self, at: float | None) -> None:
        """See ``Exchange``; the timer does not keep the call, either."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if at is not None:
            reference = weakref.ref(self)

            def wake() -> None:
                call = reference()
                if call is not None:
                    call.wake()

            self._timer = self._client.timers.call_at(at, wake)

    def cancel_attempt(self, number: int) -> None:
        """See ``Exchange``."""
        current = self._current
        if current is not None:
            current.cancel()

    def _current_done(self, current: Any) -> None:
        """Take an attempt's end, on gRPC's thread, where no other one is about to see it."""
        with self._lock:
            if self._reading or self._over:
                return
        # What is asked of an attempt may wait for this thread.
        self._client.timers.call_at(self.state.now(), lambda: self._end(current))

    def _end(self, current: Any) -> None:
        with self._lock:
            if self._current is not current:
                return
            self._current = None
        # No thread of gRPC's: it may wait.
        super(CallFuture, self).attempt_ended(self._number, current, None)

    # The caller's side.

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self.state.forked:
            # gRPC's threads are the parent's.
            raise forked_error()
        while True:
            with self._lock:
                self._condition.wait_for(lambda: self._over or self._current is not None)
                if self._over:
                    break
                current, self._reading = self._current, True
            try:
                message = next(current)
            except (StopIteration, grpc.RpcError):
                self._reading = False
                self._end(current)
            else:
                # Interrupted it stays set: a message may be left, so only readers see the end.
                self._reading = False
                self._responses.take()
                return message
        if self.error is not None:
            raise self.error
        raise StopIteration

    # As gRPC's own iterator has it.
    next = __next__

    def __del__(self) -> None:
        # Wherever a collection comes this thread may hold the session's lock, or any
        # other: what takes one is left to another thread, cancelling gRPC's call, too.
        if not getattr(self, "_over", True):
            self._client.leave(self._left)

    def _left(self) -> None:
        self.post(lambda: self._give_up("the caller left the stream"))

    def initial_metadata(self) -> Any:
        """Wait for the initial metadata of the attempt in flight, and return it."""
        with self._lock:
            self._condition.wait_for(lambda: self._over or self._current is not None)
            answered: Any = self.status if self._over else self._current
        return answered.initial_metadata()


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
        try:
            body = request if self._serializer is None else self._serializer(request)
        except Exception as error:
            raise unserialisable() from error
        invocation, given = client.invoked(
            self._method, metadata, timeout, stream=True, hedges=False
        )

        def send(header: tuple[str, bytes] | None, timeout_s: float | None) -> Any:
            entries = given if header is None else (*given, header)
            return self._inner(body, timeout_s, entries, credentials, wait_for_ready, compression)

        lease = client.lease
        if (
            lease is not None
            and invocation.key is None
            and not lease.methods.has(self._method, stream=True)
        ):
            return watched(client, invocation, send(None, timeout))
        sender: Sender = send
        call = StreamCall(client, invocation, sender)
        call.begin(invalid_metadata(given))
        if call.error is not None and not isinstance(call.error, CallError):
            # Such as metadata that gRPC rejects: nothing was sent.
            raise call.error
        return call


class BidirectionalMultiCallable(grpc.StreamStreamMultiCallable):  # type: ignore[type-arg]
    """gRPC's own, but that it is observed, and a key refused. Any thread."""

    def __init__(self, client: SyncClient, inner: Any, method: str) -> None:
        self._client = client
        self._inner = inner
        self._method = method

    def __call__(
        self,
        request_iterator: Iterable[Any],
        timeout: float | None = None,
        metadata: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """See ``grpc.StreamStreamMultiCallable.__call__``."""
        client = self._client
        if client.forked:
            raise forked_error()
        refuse_key(metadata)
        invocation, metadata = client.invoked(self._method, metadata, None, stream=True)
        call = self._inner(request_iterator, timeout, metadata or None, *args, **kwargs)
        if waits_for_ready(*args, **kwargs):
            client.patient.add(call)
            if not call.add_callback(lambda: client.patient.discard(call)):
                client.patient.discard(call)
        return watched(client, invocation, call)


def watched(client: SyncClient, invocation: Invocation, call: Any) -> Any:
    """Return a call that is passed through, its end told to the observer, if there is one."""
    if client.observer is not None:

        def ended() -> None:
            client.tell_plain(
                invocation.method, invocation.started_at, call.code(), invocation.begun
            )

        if not call.add_callback(ended):
            ended()
    return call
