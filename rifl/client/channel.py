"""The sync channel: existing stubs, with retries that are safe (DESIGN §3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import grpc

from rifl.client.multicallable import UnaryUnaryMultiCallable
from rifl.client.session import Session
from rifl.client.settings import Settings, channel_options, make_settings
from rifl.client.sync_client import SyncClient
<<<<<<< HEAD
from rifl.client.sync_exchange import BlockingExchange, CallFuture, Sender
from rifl.core.attempt import IssuedCall
from rifl.core.client_lease import ClientLease
from rifl.core.observer import Observer
from rifl.core.outcome import Outcome
=======
>>>>>>> main
from rifl.core.retry import RetryPolicy

__all__ = ["Channel", "connect"]


def connect(
    target: str,
    credentials: grpc.ChannelCredentials | None = None,
    *,
    options: Sequence[tuple[str, Any]] = (),
    compression: grpc.Compression | None = None,
    interceptors: Sequence[Any] = (),
    retry: RetryPolicy | None = None,
    hedge_after: float | None = None,
    window: int = 512,
    unresolved_for: float = 60.0,
    unresolved_limit: int = 64,
    on_lease_lost: Callable[[int], None] | None = None,
    observer: Observer | Sequence[Observer] | None = None,
) -> Channel:
    """Open a channel whose unary calls have their effect once.

    ``target``, ``credentials``, ``options`` and ``compression`` are what
    ``grpc.insecure_channel`` and ``grpc.secure_channel`` take. gRPC's own retries
    are off unless ``options`` turn them on; then a call refused for an expired
    lease is never sent again under a new id.

    Calls are retried by ``retry`` within the caller's deadline. ``hedge_after``
    seconds without an answer (None: never), a second attempt of the same call is
    sent beside the first. At most ``window`` calls may be unacknowledged at
    once (the server may allow fewer); more wait. A call whose outcome stayed
    unknown can be resolved for ``unresolved_for`` seconds, the latest
    ``unresolved_limit`` of them. ``on_lease_lost`` is called with the client id
    when it expired with calls outstanding; it must not block.
    ``observer``, one or several, is told of each call that ends.
    ``interceptors`` run below: once for each attempt, on serialised requests.
    Those that are to see each call once go around the channel, by
    ``grpc.intercept_channel``.

    Nothing is sent before the first call. Raises ``ValueError`` for settings that
    make no sense. See ``Channel``.
    """
    inner_options, grpc_retries, max_response_bytes = channel_options(options)
    settings = make_settings(
        retry=retry,
        hedge_after=hedge_after,
        window=window,
        unresolved_for=unresolved_for,
        unresolved_limit=unresolved_limit,
        on_lease_lost=on_lease_lost,
        grpc_retries=grpc_retries,
        max_response_bytes=max_response_bytes,
        observer=observer,
    )
    if credentials is None:
        inner = grpc.insecure_channel(target, inner_options, compression)
    else:
        inner = grpc.secure_channel(target, credentials, inner_options, compression)
    if interceptors:
        inner = grpc.intercept_channel(inner, *interceptors)
    return Channel(inner, settings)


class Channel(grpc.Channel):
    """A ``grpc.Channel`` over another one; built by ``connect``.

    Unary calls of methods that the server deduplicates carry an identity and are
    retried; other unary calls and all streams are passed through, sent once.
    Failed unary calls raise ``CallError``. In a forked child every use raises
    ``ForkedProcessError``, but for ``close``, which then does nothing.
    ``close`` cancels what is under way and takes at most a second. Any thread.
    """

    def __init__(self, inner: grpc.Channel, settings: Settings) -> None:
        self._inner = inner
        self._client = SyncClient(inner, settings)
        self._session = Session(self._client)

    @property
    def session(self) -> Session:
        """The identities of this channel's calls."""
        return self._session

    def unary_unary(
        self,
        method: str,
        request_serializer: Callable[[Any], bytes] | None = None,
        response_deserializer: Callable[[bytes], Any] | None = None,
        _registered_method: bool | None = False,
    ) -> UnaryUnaryMultiCallable:
        """See ``grpc.Channel.unary_unary``."""
        self._check_process()
        inner: Any = self._inner.unary_unary(
            method,
            None,
            response_deserializer,
            _registered_method,  # type: ignore[call-arg]
        )
        return UnaryUnaryMultiCallable(
            self._client, inner, method, request_serializer, response_deserializer
        )

    def unary_stream(self, *args: Any, **kwargs: Any) -> Any:
        """See ``grpc.Channel.unary_stream``."""
        self._check_process()
        return self._inner.unary_stream(*args, **kwargs)

    def stream_unary(self, *args: Any, **kwargs: Any) -> Any:
        """See ``grpc.Channel.stream_unary``."""
        self._check_process()
        return self._inner.stream_unary(*args, **kwargs)

    def stream_stream(self, *args: Any, **kwargs: Any) -> Any:
        """See ``grpc.Channel.stream_stream``."""
        self._check_process()
        return self._inner.stream_stream(*args, **kwargs)

    def subscribe(
        self, callback: Callable[[grpc.ChannelConnectivity], None], try_to_connect: bool = False
    ) -> None:
        """See ``grpc.Channel.subscribe``."""
        self._check_process()
        self._inner.subscribe(callback, try_to_connect)

    def unsubscribe(self, callback: Callable[[grpc.ChannelConnectivity], None]) -> None:
        """See ``grpc.Channel.unsubscribe``."""
        self._check_process()
        self._inner.unsubscribe(callback)

    def close(self) -> None:
        """Close: cancel what is under way, give an idle client id back."""
        if not self._client.forked:
            self._client.stop()
            self._inner.close()

    def __enter__(self) -> Channel:
        self._check_process()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        self.close()

    def _check_process(self) -> None:
        if self._client.forked:
            self._client.check_usable()
<<<<<<< HEAD


class UnaryUnaryMultiCallable(grpc.UnaryUnaryMultiCallable):  # type: ignore[type-arg]
    """One method of a stub. Any thread.

    The hot path: identity and header, one call of the inner multicallable,
    acknowledgement. Whatever else there is to do takes the slow one.
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
        self._inner_with_call = inner.with_call
        self._method = method
        self._serializer = serializer
        self._deserializer = deserializer
        # Whether the method is deduplicated, and the lease that says so.
        self._lease: ClientLease | None = None
        self._deduplicated = False
        self._fast = client.settings.hedge_after_s is None
        self._attempt_timeout_s = client.settings.retry.attempt_timeout_s

    def __call__(
        self,
        request: Any,
        timeout: float | None = None,
        metadata: Any = None,
        credentials: grpc.CallCredentials | None = None,
        wait_for_ready: bool | None = None,
        compression: grpc.Compression | None = None,
    ) -> Any:
        return self._call(
            self._inner, request, timeout, metadata, credentials, wait_for_ready, compression
        )

    def with_call(
        self,
        request: Any,
        timeout: float | None = None,
        metadata: Any = None,
        credentials: grpc.CallCredentials | None = None,
        wait_for_ready: bool | None = None,
        compression: grpc.Compression | None = None,
    ) -> tuple[Any, Any]:
        """See ``grpc.UnaryUnaryMultiCallable.with_call``."""
        found: tuple[Any, Any] = self._call(
            self._inner_with_call,
            request,
            timeout,
            metadata,
            credentials,
            wait_for_ready,
            compression,
        )
        return found

    def future(  # type: ignore[override]
        self,
        request: Any,
        timeout: float | None = None,
        metadata: Any = None,
        credentials: grpc.CallCredentials | None = None,
        wait_for_ready: bool | None = None,
        compression: grpc.Compression | None = None,
    ) -> CallFuture:
        """See ``grpc.UnaryUnaryMultiCallable.future``."""
        client = self._client
        client.check_usable()
        now = client.now()
        begun = None
        if client.observer is not None:
            metadata, begun = client.observer.call_begins(self._method, metadata)
        send = self._sender(
            self._serialise(request), metadata, credentials, wait_for_ready, compression
        )
        future = CallFuture(
            client,
            self._method,
            send,
            started_at=now,
            deadline=None if timeout is None else now + timeout,
            context=self._deserializer,
            begun=begun,
        )
        future.begin()
        return future

    def _call(
        self,
        invoke: Callable[..., Any],
        request: Any,
        timeout: float | None,
        metadata: Any,
        credentials: grpc.CallCredentials | None,
        wait_for_ready: bool | None,
        compression: grpc.Compression | None,
    ) -> Any:
        client = self._client
        lease = client.lease
        serializer = self._serializer
        try:
            body = request if serializer is None else serializer(request)
        except Exception as error:
            raise unserialisable() from error
        begun = None
        observer = client.observer
        if observer is not None:
            metadata, begun = observer.call_begins(self._method, metadata)
        sent_at = client.now()
        call = None
        if lease is not None:
            if lease is not self._lease:
                self._deduplicated = self._method in lease.methods
                self._lease = lease
            if not self._deduplicated:
                try:
                    return invoke(body, timeout, metadata, credentials, wait_for_ready, compression)
                except grpc.RpcError as error:
                    raise plain_error(error) from None
            # Calls that wait for the window go first.
            if self._fast and not client.window_waiters:
                stamp = client.stamp()
                with client.lock:
                    call = client.session.try_begin(*stamp, sent_at)
        if call is None:
            return self._call_slowly(
                None, None, invoke, body, sent_at, timeout, metadata, credentials,
                wait_for_ready, compression, begun,
            )  # fmt: skip
        header = client.header(call)
        limit = self._attempt_timeout_s
        try:
            reply = invoke(
                body,
                timeout if limit is None or (timeout is not None and timeout <= limit) else limit,
                (header,) if metadata is None else (*metadata, header),
                credentials,
                wait_for_ready,
                compression,
            )
        except grpc.RpcError as error:
            call.context = self._deserializer
            return self._call_slowly(
                call, error, invoke, body, sent_at, timeout, metadata, credentials,
                wait_for_ready, compression, begun,
            )  # fmt: skip
        except BaseException:
            # Interrupted: the call may have run.
            call.context = self._deserializer
            with client.lock:
                client.session.abandon(call, client.now())
            if observer is not None:
                client.tell_first(self._method, call, sent_at, "CANCELLED", begun)
            raise
        client.complete(call, sent_at)
        if observer is not None:
            client.tell_first(self._method, call, sent_at, "OK", begun)
        return reply

    def _call_slowly(
        self,
        call: IssuedCall | None,
        error: Any,
        invoke: Callable[..., Any],
        body: bytes,
        started_at: float,
        timeout: float | None,
        metadata: Any,
        credentials: grpc.CallCredentials | None,
        wait_for_ready: bool | None,
        compression: grpc.Compression | None,
        begun: Any,
    ) -> Any:
        if call is None:
            self._client.check_usable()
        exchange = BlockingExchange(
            self._client,
            self._method,
            self._sender(body, metadata, credentials, wait_for_ready, compression),
            started_at=started_at,
            deadline=None if timeout is None else started_at + timeout,
            call=call,
            context=self._deserializer,
            begun=begun,
        )
        if call is None:
            exchange.begin()
        else:
            exchange.resume(started_at, error)
        try:
            reply = exchange.run()
        except CallError as failed:
            # The attempts' own errors are of no interest below ours.
            raise failed from None
        return (reply, exchange.status) if invoke is self._inner_with_call else reply

    def _sender(
        self,
        body: bytes,
        metadata: Any,
        credentials: grpc.CallCredentials | None,
        wait_for_ready: bool | None,
        compression: grpc.Compression | None,
    ) -> Sender:
        given = tuple(metadata or ())

        def send(header: tuple[str, bytes] | None, timeout_s: float | None) -> Any:
            entries = given if header is None else (*given, header)
            try:
                return self._inner.future(
                    body, timeout_s, entries, credentials, wait_for_ready, compression
                )
            except ValueError:
                # What gRPC raises on a closed channel.
                return closed_call()

        return send

    def _serialise(self, request: Any) -> bytes:
        if self._serializer is None:
            body: bytes = request
            return body
        try:
            return self._serializer(request)
        except Exception as error:
            raise unserialisable() from error


def closed_call() -> CallError:
    """Build the end of an attempt that a closed channel did not take."""
    status = FinalStatus(grpc.StatusCode.CANCELLED, "Channel closed!")
    return call_error(
        status.code(), status.details(), rpc_id=None, outcome=Outcome.NOT_EXECUTED, status=status
    )
=======
>>>>>>> main
