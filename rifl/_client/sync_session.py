"""``channel.session`` on a sync channel: the identities of its calls."""

from __future__ import annotations

import threading
from typing import Any

import grpc

from rifl._client.lease_requests import LeaseWaiter
from rifl._client.own_metadata import entries_for
from rifl._client.resolution import (
    RESOLVE_METHOD,
    Closing,
    Resolution,
    Resolver,
)
from rifl._client.sync_client import SyncClient
from rifl.core._shared.identity import RpcId
from rifl.v1 import rifl_pb2


class Session:
    """What ``channel.session`` is. Any thread."""

    def __init__(self, client: SyncClient) -> None:
        self._client = client
        self._resolve = client.channel.unary_unary(
            RESOLVE_METHOD,
            request_serializer=rifl_pb2.ResolveRequest.SerializeToString,
            response_deserializer=rifl_pb2.ResolveReply.FromString,
        )

    @property
    def client_id(self) -> int | None:
        """The client id that calls are issued under now.

        None before the first call (see ``open``), and between the loss of an id
        and the next call.
        """
        lease = self._client.session.lease
        return lease.client_id if lease is not None else None

    def open(self, timeout: float | None = None) -> int:
        """Get a client id now, rather than at the first call; return it.

        Raises ``CallError`` after ``timeout`` seconds (None: the retry policy's
        ``max_elapsed_s``), or as soon as the server refuses.
        """
        event = threading.Event()
        waiter = LeaseWaiter(self._client, timeout, event.set)
        if waiter.begin():
            try:
                event.wait(waiter.timeout_s)
            finally:
                waiter.forget()
            waiter.check(woken=event.is_set())
        client_id = self.client_id
        return client_id if client_id is not None else self.open(timeout)

    def resolve(self, rpc_id: RpcId, timeout: float | None = None) -> Resolution:
        """Ask the server what became of a call whose outcome stayed unknown.

        Waits for a call that still runs, at most ``timeout`` seconds (None: the
        retry policy's ``max_elapsed_s``). A definite answer acknowledges the
        call: it can be asked for once. A call that the server never saw will
        never run. Raises ``rifl.core.StaleRpc`` for a call that is not, or
        no longer, an unresolved one of this channel, ``rifl.core.LeaseExpired`` if its
        client id is gone, and ``CallError`` if the server could not be asked.
        """
        resolver = Resolver(self._client, rpc_id, timeout)
        pause = threading.Event()
        while True:
            try:
                metadata = entries_for(self._client.settings.metadata, RESOLVE_METHOD)
                reply: Any = self._resolve(
                    resolver.request(), timeout=resolver.remaining_s(), metadata=metadata
                )
            except grpc.RpcError as error:
                pause.wait(resolver.retry_after_s(error))  # type: ignore[arg-type]
            else:
                return resolver.read(reply)

    def close(self, timeout: float | None = None) -> None:
        """Close the named session for good: delete its records, and refuse late calls.

        For a job that has ended: calls of its name, from any process, are SESSION_CLOSED from
        then on (also calls in flight: have none). Closing twice is the same as once. Retried for
        ``timeout`` seconds (None: the retry policy's ``max_elapsed_s``). Raises ``ValueError``
        on a channel without a named session, ``rifl.core.SessionClosed`` if the server knows
        none of that name, and ``CallError`` if it could not be asked.
        """
        closing = Closing(self._client, timeout)
        ask = self._client.channel.unary_unary(closing.METHOD)
        pause = threading.Event()
        while True:
            try:
                metadata = entries_for(self._client.settings.metadata, closing.METHOD)
                ask(closing.request, timeout=closing.remaining_s(), metadata=metadata)
            except grpc.RpcError as error:
                pause.wait(closing.retry_after_s(error))  # type: ignore[arg-type]
            else:
                self._client.session_ended()
                return
