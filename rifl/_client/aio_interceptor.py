"""The aio client interceptor, for channels that the application builds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack

import grpc.aio

from rifl._client.aio_client import AioClient
from rifl._client.aio_exchange import AioExchange
from rifl._client.aio_session import AioSession
from rifl._client.settings import AioInterceptorKeywords, interceptor_settings, method_name, shows
from rifl._client.sync_interceptor import with_header


@shows(AioInterceptorKeywords)
def client_interceptor(
    lease_channel: grpc.aio.Channel,
    **keywords: Unpack[AioInterceptorKeywords],
) -> AioClientInterceptor:
    """Build an interceptor for ``grpc.aio`` channels' ``interceptors``.

    As ``rifl._client.client_interceptor``, with the same limits but two: it can
    hedge, and nothing blocks.
    """
    return AioClientInterceptor(AioClient(lease_channel, interceptor_settings(keywords)))


class AioClientInterceptor(grpc.aio.UnaryUnaryClientInterceptor):
    """The interceptor that ``client_interceptor`` returns. Used on its event loop only."""

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
        """Deduplicate and retry a unary call."""
        client = self._client
        client.check_usable()
        invocation, given = client.invoked(
            method_name(client_call_details.method),
            client_call_details.metadata,
            client_call_details.timeout,
        )

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

        exchange = AioExchange(client, invocation, send)
        exchange.begin()
        await exchange.result()
        return exchange.inner
