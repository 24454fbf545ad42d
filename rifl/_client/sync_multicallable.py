"""One method of a stub on the sync channel: the hot path and the way to the slow one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc

from _rifl_ground.refusals import Outcome
from rifl._client.answers import CLOSED
from rifl._client.errors import (
    CallError,
    call_error,
    plain_error,
    unserialisable,
)
from rifl._client.keys import CURRENT_KEY, invalid_metadata, take_key
from rifl._client.routing import ROUTED_TO
from rifl._client.sync_client import SyncClient
from rifl._client.sync_exchange import BlockingExchange, CallFuture, Sender
from rifl.core._calling.client_lease import ClientLease
from rifl.core._calling.invocation import Invocation
from rifl.core._shared.errors import ReentrantCall


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
        *,
        with_call: bool = False,
    ) -> None:
        self._client = client
        # Whether gRPC's call is returned, too; and the one that does so, for ``with_call``.
        self._with_call = with_call
        self._twin: UnaryUnaryMultiCallable | None = None
        # The method on the channel, the multicallable that sends now, and its first attempts' way.
        self._method_here = inner
        self._use(inner.now())
        self._method = method
        self._serializer = serializer
        self._deserializer = deserializer
        # The path that attempts are sent by; None: straight to the server.
        self._path: Any = None
        # Whether the method is deduplicated, and the lease that says so.
        self._lease: ClientLease | None = None
        self._deduplicated = False
        self._fast = client.settings.hedge_after_s is None and client.settings.session_name is None
        self._attempt_timeout_s = client.session.retry.attempt_timeout_s
        self._begin = client.beginner()
        with client.lock:
            client.stubs.add(self)

    def __call__(
        self,
        request: Any,
        timeout: float | None = None,
        metadata: Any = None,
        credentials: grpc.CallCredentials | None = None,
        wait_for_ready: bool | None = None,
        compression: grpc.Compression | None = None,
    ) -> Any:
        """See ``grpc.UnaryUnaryMultiCallable.__call__``."""
        client = self._client
        lease = client.lease
        serializer = self._serializer
        try:
            body = request if serializer is None else serializer(request)
        except Exception as error:
            raise unserialisable() from error
        key = None
        if metadata or CURRENT_KEY.get() is not None:
            key, metadata = take_key(metadata)
        begun = None
        observer = client.observer
        if observer is not None:
            metadata, begun = observer.call_begins(self._method, metadata)
        sent_at = client.now()
        call = None
        try:
            if lease is not self._lease and lease is not None:
                self._deduplicated = self._method in lease.methods
                self._take_inner()
                self._lease = lease
            invoke = self._invoke
            if lease is not None and key is None and (timeout is None or timeout > 0):
                if not self._deduplicated:
                    # Until this frame is gone.
                    waits = client.waits() if wait_for_ready else None  # noqa: F841
                    try:
                        try:
                            reply = invoke(
                                body, timeout, metadata, credentials, wait_for_ready, compression
                            )
                        except ValueError:
                            if not self._replaced(invoke):
                                raise
                            invoke = self._invoke
                            reply = invoke(
                                body, timeout, metadata, credentials, wait_for_ready, compression
                            )
                    except ReentrantCall:
                        raise
                    except grpc.RpcError as error:
                        status: Any = client.as_lost(error)  # type: ignore[arg-type]
                        if observer is not None:
                            client.tell_plain(self._method, sent_at, status.code(), begun)
                        raise plain_error(status) from None
                    if observer is not None:
                        client.tell_plain(self._method, sent_at, grpc.StatusCode.OK, begun)
                    return reply
                # Calls that wait for the window go first.
                if self._fast and not client.window_waiters:
                    stamp = client.stamp()
                    with client.lock:
                        call = self._begin(stamp, sent_at)
            if call is None:
                client.check_usable()
                exchange = BlockingExchange(
                    client,
                    self._invocation(sent_at, timeout, key, begun),
                    self._sender(body, metadata, credentials, wait_for_ready, compression),
                )
                exchange.begin(invalid_metadata(metadata))
                return self._run(exchange)
            limit = self._attempt_timeout_s
            if limit is None or (timeout is not None and timeout <= limit):
                limit = timeout
            else:
                call.try_ms = client.tried_ms(timeout)
            header = client.header(call)
            try:
                reply = invoke(
                    body,
                    limit,
                    (header,) if metadata is None else (*metadata, header),
                    credentials,
                    wait_for_ready,
                    compression,
                )
            except ReentrantCall:
                # Refused beneath, where several targets are: nothing was sent.
                client.complete(call, None)
                raise
            except BaseException as error:
                call.decode, call.method = self._deserializer, self._method
                status = error if isinstance(error, grpc.RpcError) else None
                if isinstance(error, ValueError) and self._replaced(invoke):
                    status = CLOSED
                if status is not None:
                    exchange = BlockingExchange(
                        client,
                        self._invocation(sent_at, timeout, None, begun),
                        self._sender(body, metadata, credentials, wait_for_ready, compression),
                        call,
                    )
                    at = getattr(error, ROUTED_TO, None)
                    exchange.resume(sent_at, status, invalid_metadata(metadata), at)
                    return self._run(exchange)
                # Interrupted: the call may have run.
                with client.lock:
                    client.session.abandon(call, client.now())
                if observer is not None:
                    client.tell_first(self._method, call, sent_at, "CANCELLED", begun)
                if isinstance(error, (TypeError, ValueError)) and (
                    fault := invalid_metadata(metadata)
                ):
                    # grpcio 1.80.0 fails where it formats its own message about them.
                    raise fault from None
                raise
            with client.lock:
                client.session.complete(call, sent_at)
                woken = client.next_waiters() if client.window_waiters else ()
            if woken:
                client.wake(woken)
            if observer is not None:
                client.tell_first(self._method, call, sent_at, "OK", begun)
            return reply
        except BaseException:
            # Maybe a signal's, at any line: leave no seq without a waiting caller.
            if call is not None:
                client.interrupted(call)
            raise

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
        twin = self._twin
        if twin is None:
            twin = self._twin = UnaryUnaryMultiCallable(
                self._client,
                self._method_here,
                self._method,
                self._serializer,
                self._deserializer,
                with_call=True,
            )
        found: tuple[Any, Any] = twin(
            request, timeout, metadata, credentials, wait_for_ready, compression
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
        body = self._serialise(request)
        invocation, given = client.invoked(
            self._method, metadata, timeout, decode=self._deserializer
        )
        send = self._sender(body, given, credentials, wait_for_ready, compression)
        future = CallFuture(client, invocation, send)
        future.begin(invalid_metadata(given))
        return future

    def _invocation(
        self, sent_at: float, timeout: float | None, key: bytes | None, begun: Any
    ) -> Invocation:
        client = self._client
        return Invocation(
            self._method,
            sent_at,
            None if timeout is None else sent_at + timeout,
            key,
            hedge_after_s=client.settings.hedge_after_s,
            stamp=client.stamp(),
            decode=self._deserializer,
            begun=begun,
        )

    def _run(self, exchange: BlockingExchange) -> Any:
        try:
            reply = exchange.run()
        except CallError as failed:
            # The attempts' own errors are of no interest below ours.
            raise failed from None
        return (reply, exchange.status) if self._with_call else reply

    def _sender(
        self,
        body: bytes,
        metadata: Any,
        credentials: grpc.CallCredentials | None,
        wait_for_ready: bool | None,
        compression: grpc.Compression | None,
    ) -> Sender:
        given = tuple(metadata or ())
        self._take_inner()
        # Which sees itself that its connection was replaced.
        sends = self._method_here if self._path is None else self._inner

        def send(header: tuple[str, bytes] | None, timeout_s: float | None) -> Any:
            entries = given if header is None else (*given, header)
            try:
                return sends.future(
                    body, timeout_s, entries, credentials, wait_for_ready, compression
                )
            except ValueError:
                # What gRPC raises on a closed channel.
                return closed_call()

        return send

    def look_beneath(self) -> None:
        """See ``Stub``."""
        self._lease = None

    def _replaced(self, invoked: Any) -> bool:
        """Whether what was just invoked is of a connection that was replaced meanwhile."""
        if self._client.closed or self._path is not None:
            return False
        self._take_inner()
        return invoked is not self._invoke

    def _take_inner(self) -> None:
        path = self._client.path
        if path is None:
            inner = self._method_here.now()
        elif path is not self._path:
            self._attempt_timeout_s = self._client.session.retry.attempt_timeout_s
            self._begin = self._client.beginner()
            inner = path.unary_unary(self._method, self._method_here)
            self._path = path
        else:
            return
        if inner is not self._inner:
            self._use(inner)

    def _use(self, inner: Any) -> None:
        self._inner = inner
        self._invoke: Any = inner.with_call if self._with_call else inner

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
    return call_error(
        CLOSED.code(), CLOSED.details(), rpc_id=None, outcome=Outcome.NOT_EXECUTED, status=CLOSED
    )
