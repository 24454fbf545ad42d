"""The sync client interceptor, for channels that the application builds."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any, Unpack

import grpc

from rifl._client.errors import CallError
from rifl._client.settings import InterceptorKeywords, interceptor_settings, method_name, shows
from rifl._client.sync_client import SyncClient
from rifl._client.sync_exchange import BlockingExchange, CallFuture, Sender
from rifl._client.sync_multicallable import closed_call
from rifl._client.sync_session import Session
from rifl.core._calling.invocation import Invocation


@shows(InterceptorKeywords)
def client_interceptor(
    lease_channel: grpc.Channel,
    **keywords: Unpack[InterceptorKeywords],
) -> ClientInterceptor:
    """Build an interceptor for ``grpc.intercept_channel``.

    ``lease_channel`` reaches the same servers, without this interceptor; it is
    not closed by it. What ``connect`` does and an interceptor cannot:

    - It cannot see the channel's options. Say ``grpc_retries=False`` if the
      channel was built with ``("grpc.enable_retries", 0)``; else calls refused for
      an expired lease are not sent again. Say ``max_response_bytes`` if its
      receive limit is not 4 MiB.
    - It takes no keys: those need a named session.
    - It cannot replace a connection that a middle box forgot: a call there waits for its
      timeout, unless the channel pings.
    - It does not hedge, and requests are serialised again for every attempt: a
      serialiser that is not deterministic gets PAYLOAD_MISMATCH on retries.
    - ``future`` may block until the client id is there, and while a first attempt
      that failed at once is retried.
    - Interceptors inside it run once an attempt, those outside once a call.
    - It costs each call about 15% of its throughput (``grpc.intercept_channel``
      does); a closed channel does not give its client id back: call ``close``.
    """
    return ClientInterceptor(SyncClient(lease_channel, interceptor_settings(keywords)))


class CallDetails(
    collections.namedtuple(
        "CallDetails",
        ("method", "timeout", "metadata", "credentials", "wait_for_ready", "compression"),
    ),
    grpc.ClientCallDetails,
):
    """``grpc.ClientCallDetails`` with values."""


def with_header(
    details: Any, given: tuple[Any, ...], header: tuple[str, bytes] | None, timeout_s: float | None
) -> CallDetails:
    """Return call details for one attempt."""
    return CallDetails(
        details.method,
        timeout_s,
        given if header is None else (*given, header),
        details.credentials,
        details.wait_for_ready,
        getattr(details, "compression", None),
    )


class ClientInterceptor(grpc.UnaryUnaryClientInterceptor):
    """The interceptor that ``client_interceptor`` returns. Any thread."""

    def __init__(self, client: SyncClient) -> None:
        self._client = client
        self._session = Session(client)

    @property
    def session(self) -> Session:
        """The identities of the calls that pass here."""
        return self._session

    def close(self) -> None:
        """Give the client id back if nothing hangs on it; later calls raise."""
        self._client.stop()

    def intercept_unary_unary(
        self,
        continuation: Callable[[Any, Any], Any],
        client_call_details: Any,
        request: Any,
    ) -> Any:
        """Deduplicate and retry a unary call."""
        client = self._client
        client.check_usable()
        invocation, given = client.invoked(
            method_name(client_call_details.method),
            client_call_details.metadata,
            client_call_details.timeout,
        )

        def send(header: tuple[str, bytes] | None, timeout_s: float | None) -> Any:
            try:
                return continuation(
                    with_header(client_call_details, given, header, timeout_s), request
                )
            except ValueError:
                return closed_call()

        exchange = _Intercepted(client, invocation, send)
        return exchange.first_then_rest()


class _Intercepted(BlockingExchange):
    """A call whose way of being called shows by its first attempt.

    A blocking call's continuation comes back when it is over, a future's at
    once: the rest of the former is done here, that of the latter in the
    background.
    """

    def __init__(self, client: SyncClient, invocation: Invocation, send: Sender) -> None:
        super().__init__(client, invocation, send)
        self._future: Any = None

    def launch(
        self, number: int, header: tuple[str, bytes] | None, timeout_s: float | None
    ) -> None:
        """Send an attempt, or hand over to the background."""
        attempt = self._send(header, timeout_s)
        self._attempts[number] = attempt
        if number == 1 and not attempt.done():
            self._future = CallFuture(self._client, self.invocation, self._send)
            self._future.adopt(self.flow, number, attempt)
            self._over = True
            return
        attempt.add_done_callback(lambda done: self._attempt_done(number, done))

    def first_then_rest(self) -> Any:
        """Return what the interceptor's caller wants: a call that is a future."""
        self.begin()
        try:
            self.run()
        except CallError as error:
            return error
        return self._future if self._future is not None else self.status
