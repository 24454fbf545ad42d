"""The aio channel: existing stubs, with retries that are safe (DESIGN §3)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Unpack

import grpc
import grpc.aio

from rifl._client.aio_batches import run_batch
from rifl._client.aio_call import UnaryUnaryCall
from rifl._client.aio_client import AioClient
from rifl._client.aio_exchange import AioExchange, AioSender
from rifl._client.aio_session import AioSession
from rifl._client.aio_streams import (
    AioBidirectionalMultiCallable,
    AioStreamUnaryMultiCallable,
    AioUnaryStreamMultiCallable,
)
from rifl._client.aio_targets import AioSeveralTargets
from rifl._client.batch import BatchItem, BatchResult
from rifl._client.errors import unserialisable
from rifl._client.keys import invalid_metadata, take_key
from rifl._client.opening import open_aio, opening
from rifl._client.routing import Router
from rifl._client.settings import (
    ConnectKeywords,
    Settings,
    channel_options,
    make_settings,
    method_name,
    shows,
)
from rifl.core._calling.attempt import IssuedCall
from rifl.core._calling.client_lease import ClientLease
from rifl.core._calling.invocation import Invocation
from rifl.core._calling.targets import Targets, split_targets


@shows(ConnectKeywords)
def connect(
    target: str | Sequence[str],
    credentials: grpc.ChannelCredentials | None = None,
    **keywords: Unpack[ConnectKeywords],
) -> AioChannel:
    """Open an aio channel whose unary calls have their effect once.

    As ``rifl._client.connect``, for ``grpc.aio``. ``interceptors`` run below: once
    for each attempt, on serialised requests; they cost each call a task.
    """
    options, grpc_retries, max_response_bytes = channel_options(keywords.get("options"))
    settings = make_settings(
        keywords, grpc_retries=grpc_retries, max_response_bytes=max_response_bytes
    )
    around = list(keywords.get("interceptors", ()))

    def open_one(address: str) -> grpc.aio.Channel:
        return open_aio(address, credentials, options, keywords.get("compression"), around)

    targets = split_targets(target)
    if opening():
        # Called in place of gRPC's function, by another call of this one.
        return open_one(targets[0])  # type: ignore[return-value]
    follow = keywords.get("follow_leaders", False)
    inner: grpc.aio.Channel
    if len(targets) == 1 and not follow:
        inner = open_one(targets[0])
    else:
        inner = AioSeveralTargets(Router(Targets(targets, follow=follow)), open_one)
    channel = AioChannel(inner, settings, open_one, intercepted=bool(around))
    channel._client.insecure = credentials is None
    return channel


class AioChannel(grpc.aio.Channel):
    """A ``grpc.aio.Channel`` over another one; built by ``rifl.aio.connect``.

    As ``rifl._client.Channel``; used on its event loop only. ``close(grace)`` lets
    calls under way go on for ``grace`` seconds, those too that still wait for a client
    id or between two attempts.
    """

    def __init__(
        self,
        inner: grpc.aio.Channel,
        settings: Settings,
        connect: Callable[[str], grpc.aio.Channel] | None = None,
        *,
        intercepted: bool = False,
    ) -> None:
        self._inner = inner
        self._client = AioClient(inner, settings, connect)
        self._session = AioSession(self._client)
        self._direct = (
            settings.hedge_after_s is None and settings.session_name is None and not intercepted
        )

    @property
    def session(self) -> AioSession:
        """The identities of this channel's calls."""
        return self._session

    def unary_unary(
        self,
        method: str | bytes,
        request_serializer: Callable[[Any], bytes] | None = None,
        response_deserializer: Callable[[bytes], Any] | None = None,
        _registered_method: bool | None = False,
    ) -> AioUnaryUnaryMultiCallable:
        """See ``grpc.aio.Channel.unary_unary``."""
        self._check_process()
        method = method_name(method)
        inner: Any = self._inner.unary_unary(
            method,
            None,
            response_deserializer,
            _registered_method,  # type: ignore[call-arg]
        )
        return AioUnaryUnaryMultiCallable(
            self._client,
            inner,
            method,
            request_serializer,
            response_deserializer,
            direct=self._direct,
        )

    def unary_stream(
        self,
        method: str | bytes,
        request_serializer: Callable[[Any], bytes] | None = None,
        response_deserializer: Callable[[bytes], Any] | None = None,
        _registered_method: bool | None = False,
    ) -> AioUnaryStreamMultiCallable:
        """See ``grpc.aio.Channel.unary_stream``."""
        self._check_process()
        method = method_name(method)
        inner: Any = self._inner.unary_stream(
            method,
            None,
            response_deserializer,
            _registered_method,  # type: ignore[call-arg]
        )
        return AioUnaryStreamMultiCallable(
            self._client, inner, method, request_serializer, response_deserializer
        )

    def stream_unary(
        self,
        method: str | bytes,
        request_serializer: Callable[[Any], bytes] | None = None,
        response_deserializer: Callable[[bytes], Any] | None = None,
        _registered_method: bool | None = False,
    ) -> AioStreamUnaryMultiCallable:
        """See ``grpc.aio.Channel.stream_unary``."""
        self._check_process()
        method = method_name(method)
        inner: Any = self._inner.stream_unary(
            method,
            None,
            response_deserializer,
            _registered_method,  # type: ignore[call-arg]
        )
        return AioStreamUnaryMultiCallable(
            self._client, inner, method, request_serializer, response_deserializer
        )

    def stream_stream(self, method: str | bytes, *args: Any, **kwargs: Any) -> Any:
        """See ``grpc.aio.Channel.stream_stream``."""
        self._check_process()
        method = method_name(method)
        inner = self._inner.stream_stream(method, *args, **kwargs)
        return AioBidirectionalMultiCallable(self._client, inner, method)

    async def batch(
        self,
        method: str,
        items: Iterable[BatchItem],
        *,
        timeout: float | None = None,
        metadata: Any = None,
    ) -> list[BatchResult]:
        """See ``rifl.Channel.batch``.

        Cancelled, it cancels its RPC; what became of its calls is unknown then.
        """
        self._check_process()
        return await run_batch(self._client, self._inner, method, items, timeout, metadata)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """See ``grpc.aio.Channel.get_state``."""
        self._check_process()
        return self._inner.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """See ``grpc.aio.Channel.wait_for_state_change``."""
        self._check_process()
        await self._inner.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        """See ``grpc.aio.Channel.channel_ready``."""
        self._check_process()
        await self._inner.channel_ready()

    async def close(self, grace: float | None = None) -> None:
        """Close: cancel what is under way, give an idle client id back."""
        if not self._client.forked:
            if grace:
                until = self._client.now() + grace
                await self._client.rest(grace)
                grace = max(until - self._client.now(), 0.0)
            await self._client.stop()
            await self._inner.close(grace)

    async def __aenter__(self) -> AioChannel:
        self._check_process()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        await self.close()

    def _check_process(self) -> None:
        if self._client.forked:
            self._client.check_usable()


class AioUnaryUnaryMultiCallable(grpc.aio.UnaryUnaryMultiCallable):  # type: ignore[type-arg]
    """One method of a stub."""

    def __init__(
        self,
        client: AioClient,
        inner: Any,
        method: str,
        serializer: Callable[[Any], bytes] | None,
        deserializer: Callable[[bytes], Any] | None,
        *,
        direct: bool,
    ) -> None:
        self._client = client
        self._direct_inner = self._inner = inner
        # By which way attempts are sent, None: straight to the server.
        self._path: Any = None
        self._method = method
        self._serializer = serializer
        self._deserializer = deserializer
        # Whether the first attempt may do without an exchange.
        self._direct = direct
        # Whether the method is deduplicated, and the lease that says so.
        self._lease: ClientLease | None = None
        self._deduplicated = False
        self._attempt_timeout_s = client.settings.retry.attempt_timeout_s

    def __call__(
        self,
        request: Any,
        *,
        timeout: float | None = None,
        metadata: Any = None,
        credentials: grpc.CallCredentials | None = None,
        wait_for_ready: bool | None = None,
        compression: grpc.Compression | None = None,
    ) -> UnaryUnaryCall:
        """See ``grpc.aio.UnaryUnaryMultiCallable``."""
        client = self._client
        if credentials is not None:
            client.check_usable(credentials)
        lease = client.lease
        serializer = self._serializer
        try:
            body = request if serializer is None else serializer(request)
        except Exception as error:
            raise unserialisable() from error
        sent_at = client.now()
        deadline = None if timeout is None else sent_at + timeout
        issued: IssuedCall | None = None
        key, metadata = take_key(metadata)
        begun = None
        observer = client.observer
        if observer is not None:
            metadata, begun = observer.call_begins(self._method, metadata)
        fault = invalid_metadata(metadata) if metadata else None
        if lease is not None and self._direct and key is None and fault is None:
            if lease is not self._lease:
                self._deduplicated = self._method in lease.methods
                self._take_path()
                self._lease = lease
            if self._deduplicated and not client.window_waiters:
                stamp = client.stamp()
                with client.lock:
                    issued = client.session.try_begin(*stamp, sent_at)

        def recovery(issued: IssuedCall | None, on_end: Callable[[], None]) -> AioExchange:
            invocation = Invocation(
                self._method,
                sent_at,
                deadline,
                key,
                hedge_after_s=client.settings.hedge_after_s,
                stamp=client.stamp(),
                decode=self._deserializer,
                begun=begun,
            )
            send = self._sender(body, metadata, credentials, wait_for_ready, compression)
            return AioExchange(client, invocation, send, issued, on_end)

        call = UnaryUnaryCall(client, deadline, recovery)
        if issued is not None:
            issued.decode = self._deserializer
            header = client.header(issued)
            limit = self._attempt_timeout_s
            if limit is not None and (timeout is None or timeout > limit):
                timeout = limit
            entries: Any = (header,) if metadata is None else (*metadata, header)
        elif (
            lease is not None
            and self._direct
            and not self._deduplicated
            and key is None
            and fault is None
        ):
            entries = metadata
        else:
            client.check_usable()
            call.run(recovery(None, call.finish), fault)
            return call
        try:
            inner = self._inner(
                body,
                timeout=timeout,
                metadata=entries,
                credentials=credentials,
                wait_for_ready=wait_for_ready,
                compression=compression,
            )
        except BaseException:
            # Such as metadata that gRPC rejects: nothing was sent.
            if issued is not None:
                client.complete(issued, None)
            raise
        if observer is not None:
            call.observe(self._method, begun)
        call.follow(inner, issued, sent_at)
        return call

    def _take_path(self) -> None:
        path = self._client.path
        if path is not None and path is not self._path:
            self._path = path
            self._attempt_timeout_s = self._client.session.retry.attempt_timeout_s
            self._inner = path.unary_unary(self._method, self._direct_inner)

    def _sender(
        self,
        body: bytes,
        metadata: Any,
        credentials: grpc.CallCredentials | None,
        wait_for_ready: bool | None,
        compression: grpc.Compression | None,
    ) -> AioSender:
        given = tuple(metadata or ())
        self._take_path()

        async def send(header: tuple[str, bytes] | None, timeout_s: float | None) -> Any:
            return self._inner(
                body,
                timeout=timeout_s,
                metadata=given if header is None else (*given, header),
                credentials=credentials,
                wait_for_ready=wait_for_ready,
                compression=compression,
            )

        return send
