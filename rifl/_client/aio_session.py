"""``channel.session`` on an aio channel: the identities of its calls."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio

from rifl._client.aio_client import AioClient
from rifl._client.errors import Status
from rifl._client.resolution import (
    RESOLVE_METHOD,
    Closing,
    Resolution,
    Resolver,
    lease_error,
    lease_timeout,
)
from rifl.core._calling.answer import Answer
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
        client = self._client
        client.check_usable()
        if timeout is None:
            timeout = client.settings.retry.max_elapsed_s
        waiter = _LeaseWaiter(None if timeout is None else client.now() + timeout)
        with client.lock:
            usable = client.session.usable(client.now())
            if not usable:
                client.lease_waiters[waiter] = None
        if not usable:
            client.look_at_lease()
            await waiter.wait(client, timeout)
        client_id = self.client_id
        return client_id if client_id is not None else await self.open(timeout)

    async def resolve(self, rpc_id: RpcId, timeout: float | None = None) -> Resolution:
        """Ask the server what became of a call; see ``Session.resolve``."""
        resolver = Resolver(self._client, rpc_id, timeout)
        while True:
            try:
                reply = await self._resolve(resolver.request(), timeout=resolver.remaining_s())
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
                await ask(closing.request, timeout=closing.remaining_s())
            except grpc.aio.AioRpcError as error:
                await asyncio.sleep(closing.retry_after_s(error))
            else:
                self._client.session_ended()
                return


class _LeaseWaiter:
    """Waits for a lease without a call."""

    def __init__(self, ends_at: float | None) -> None:
        self.ends_at = ends_at
        self._event = asyncio.Event()
        self._refused: tuple[Status, Answer] | None = None

    def wake(self) -> None:
        self._event.set()

    def refuse(self, status: Status, answer: Answer) -> None:
        self._refused = (status, answer)
        self._event.set()

    def close(self) -> None:
        self._event.set()

    async def wait(self, client: AioClient, timeout: float | None) -> None:
        try:
            async with asyncio.timeout(timeout):
                await self._event.wait()
        except TimeoutError:
            raise lease_timeout(client) from None
        finally:
            with client.lock:
                client.forget(self)
        client.check_usable()
        if self._refused is not None:
            raise lease_error(*self._refused)
