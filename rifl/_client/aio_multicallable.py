"""One method of a stub on the aio channel: the hot path, and the way to an exchange."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio

from rifl._client.aio_call import UnaryUnaryCall
from rifl._client.aio_client import AioClient
from rifl._client.aio_exchange import AioExchange, AioSender
from rifl._client.errors import unserialisable
from rifl._client.keys import CURRENT_KEY, invalid_metadata, take_key
from rifl.core._calling.client_lease import ClientLease
from rifl.core._calling.invocation import Invocation
from rifl.core._calling.issued_call import IssuedCall


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
        # The method on the channel, and the multicallable that sends now.
        self._method_here = inner
        self._inner = inner.now()
        # The path that attempts are sent by; None: straight to the server.
        self._path: Any = None
        self._method = method
        self._serializer = serializer
        self._deserializer = deserializer
        # Whether the first attempt may do without an exchange.
        self._direct = direct
        # Whether the method is deduplicated, and the lease that says so.
        self._lease: ClientLease | None = None
        self._deduplicated = False
        self._attempt_timeout_s = client.session.retry.attempt_timeout_s
        self._begin = client.beginner()
        with client.lock:
            client.stubs.add(self)

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
        key = None
        if metadata or CURRENT_KEY.get() is not None:
            key, metadata = take_key(metadata)
        begun = None
        observer = client.observer
        if observer is not None:
            metadata, begun = observer.call_begins(self._method, metadata)
        fault = invalid_metadata(metadata) if metadata else None
        # One whose timeout is not positive is not sent: the exchange says so.
        usual = key is None and fault is None and (timeout is None or timeout > 0)
        try:
            if lease is not None and self._direct and usual:
                if lease is not self._lease:
                    self._deduplicated = self._method in lease.methods
                    self._take_inner()
                    self._lease = lease
                if self._deduplicated and not client.window_waiters:
                    stamp = client.stamp()
                    with client.lock:
                        issued = self._begin(stamp, sent_at)

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
                limit = self._attempt_timeout_s
                if limit is not None and (timeout is None or timeout > limit):
                    issued.try_ms = client.tried_ms(timeout)
                    timeout = limit
                header = client.header(issued)
                entries: Any = (header,) if metadata is None else (*metadata, header)
            elif lease is not None and self._direct and not self._deduplicated and usual:
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
            if wait_for_ready and issued is None:
                client.patient.add(inner)
                inner.add_done_callback(client.patient.discard)
            if observer is not None:
                call.observe(self._method, begun)
            call.follow(inner, issued, sent_at)
            return call
        except BaseException:
            # Maybe a signal's, at any line: leave no seq without a waiting caller.
            if issued is not None:
                client.interrupted(issued)
            raise

    def look_beneath(self) -> None:
        """See ``Stub``."""
        self._lease = None

    def _take_inner(self) -> None:
        path = self._client.path
        if path is None:
            self._inner = self._method_here.now()
        elif path is not self._path:
            self._attempt_timeout_s = self._client.session.retry.attempt_timeout_s
            self._begin = self._client.beginner()
            self._inner = path.unary_unary(self._method, self._method_here)
            self._path = path

    def _sender(
        self,
        body: bytes,
        metadata: Any,
        credentials: grpc.CallCredentials | None,
        wait_for_ready: bool | None,
        compression: grpc.Compression | None,
    ) -> AioSender:
        given = tuple(metadata or ())
        self._take_inner()
        # Which sees itself that its connection was replaced.
        sends = self._method_here if self._path is None else self._inner

        async def send(header: tuple[str, bytes] | None, timeout_s: float | None) -> Any:
            return sends(
                body,
                timeout=timeout_s,
                metadata=given if header is None else (*given, header),
                credentials=credentials,
                wait_for_ready=wait_for_ready,
                compression=compression,
            )

        return send
