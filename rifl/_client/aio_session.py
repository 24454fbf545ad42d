"""``channel.session`` on an aio channel: the identities of its calls."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import grpc.aio

from rifl._client.aio_client import AioClient
from rifl._client.lease_requests import LeaseWaiter
from rifl._client.own_metadata import aio_entries_for
from rifl._client.resolution import (
    RESOLVE_METHOD,
    Closing,
    Resolution,
    Resolver,
)
from rifl.core._shared.identity import RpcId
from rifl.v1 import rifl_pb2


class AioSession:
    """What ``channel.session`` is on an aio channel; see ``rifl._client.Session``."""

    def __init__(self, client: AioClient) -> None:
        self._client = client
        self._resolve: Any = client.channel.unary_unary(
            RESOLVE_METHOD,
            request_serializer=rifl_pb2.ResolveRequest.SerializeToString,
            response_deserializer=rifl_pb2.ResolveReply.FromString,
        )

    @property
    def client_id(self) -> int | None:
        """The client id that calls are issued under now; see ``Session.client_id``."""
        lease = self._client.session.lease
        return lease.client_id if lease is not None else None

    async def open(self, timeout: float | None = None) -> int:
        """Get a client id now; see ``Session.open``."""
        event = asyncio.Event()
        waiter = LeaseWaiter(self._client, timeout, event.set)
        if waiter.begin():
            try:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(waiter.timeout_s):
                        await event.wait()
            finally:
                waiter.forget()
            waiter.check(woken=event.is_set())
        client_id = self.client_id
        return client_id if client_id is not None else await self.open(timeout)

    async def resolve(self, rpc_id: RpcId, timeout: float | None = None) -> Resolution:
        """Ask the server what became of a call; see ``Session.resolve``."""
        resolver = Resolver(self._client, rpc_id, timeout)
        while True:
            try:
                metadata = await aio_entries_for(self._client.settings.metadata, RESOLVE_METHOD)
                reply = await self._resolve(
                    resolver.request(), timeout=resolver.remaining_s(), metadata=metadata
                )
            except grpc.aio.AioRpcError as error:
                await asyncio.sleep(resolver.retry_after_s(error))
            else:
                return resolver.read(reply)

    async def close(self, timeout: float | None = None) -> None:
        """Close the named session, for good; see ``Session.close``."""
        closing = Closing(self._client, timeout)
        ask: Any = self._client.channel.unary_unary(closing.METHOD)
        while True:
            try:
                metadata = await aio_entries_for(self._client.settings.metadata, closing.METHOD)
                await ask(closing.request, timeout=closing.remaining_s(), metadata=metadata)
            except grpc.aio.AioRpcError as error:
                await asyncio.sleep(closing.retry_after_s(error))
            else:
                self._client.session_ended()
                return
