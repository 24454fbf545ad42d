"""The interceptor alone, for channels built by somebody else (aio)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import grpc.aio

from rifl._client.aio_client import AioClient
from rifl._client.aio_exchange import AioExchange
from rifl._client.aio_session import AioSession
from rifl._client.interceptor import with_header
from rifl._client.keys import take_key
from rifl._client.settings import make_settings
from rifl.core._calling.retry import RetryPolicy
from rifl.core._shared.observer import Observer


def client_interceptor(
    lease_channel: grpc.aio.Channel,
    *,
    retry: RetryPolicy | None = None,
    hedge_after: float | None = None,
    window: int = 512,
    unresolved_for: float = 60.0,
    unresolved_limit: int = 64,
    on_lease_lost: Callable[[int], None] | None = None,
    grpc_retries: bool = True,
    max_response_bytes: int = 0,
    observer: Observer | Sequence[Observer] | None = None,
    keep_deadline_exceeded: bool = False,
) -> AioClientInterceptor:
    """Build an interceptor for ``grpc.aio`` channels' ``interceptors``.

    As ``rifl._client.client_interceptor``, with the same limits but two: it can
    hedge, and nothing blocks.
    """
    return AioClientInterceptor(
        AioClient(
            lease_channel,
            make_settings(
                retry=retry,
                hedge_after=hedge_after,
                window=window,
                unresolved_for=unresolved_for,
                unresolved_limit=unresolved_limit,
                on_lease_lost=on_lease_lost,
                grpc_retries=grpc_retries,
                max_response_bytes=max_response_bytes,
                observer=observer,
                keep_deadline_exceeded=keep_deadline_exceeded,
            ),
        )
    )


class AioClientInterceptor(grpc.aio.UnaryUnaryClientInterceptor):
    """See ``client_interceptor``. Used on its event loop only."""

    def __init__(self, client: AioClient) -> None:
        self._client = client
        self._session = AioSession(client)

    @property
    def session(self) -> AioSession:
        """The identities of the calls that pass here."""
        return self._session

    async def close(self) -> None:
        """Give the client id back if nothing hangs on it; later calls raise."""
        await self._client.stop()

    async def intercept_unary_unary(
        self,
        continuation: Callable[[Any, Any], Any],
        client_call_details: Any,
        request: Any,
    ) -> Any:
        """See ``grpc.aio.UnaryUnaryClientInterceptor``."""
        client = self._client
        client.check_usable()
        method = client_call_details.method
        now = client.now()
        timeout = client_call_details.timeout
        key, metadata = take_key(client_call_details.metadata)
        given: Any = tuple(metadata or ())
        begun = None
        method = method.decode() if isinstance(method, bytes) else method
        if client.observer is not None:
            given, begun = client.observer.call_begins(method, given)

        async def send(header: tuple[str, bytes] | None, timeout_s: float | None) -> Any:
            details = with_header(client_call_details, given, header, timeout_s)
            return await continuation(
                # gRPC's aio channel wants its own type here.
                grpc.aio.ClientCallDetails(
                    details.method,
                    details.timeout,
                    grpc.aio.Metadata(*details.metadata),
                    details.credentials,
                    details.wait_for_ready,
                ),
                request,
            )

        exchange = AioExchange(
            client,
            method,
            send,
            started_at=now,
            deadline=None if timeout is None else now + timeout,
            begun=begun,
            key=key,
        )
        exchange.begin()
        await exchange.result()
        return exchange.inner
