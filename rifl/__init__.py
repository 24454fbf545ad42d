"""Exactly-once RPC for Python gRPC: a call has its effect once, and one answer.

Server::

    dedup = rifl.Deduplicator("sqlite:///service.db")
    server = grpc.server(pool, interceptors=[dedup.interceptor()])
    dedup.add_to_server(server)

Client::

    with rifl.connect("localhost:50051") as channel:
        stub = YourServiceStub(channel)

- ``aio``: the same for asyncio; ``core``: the rules.
- ``_client``, ``_server``: the two sides of a call; ``_stores``: where its record is kept.
- ``_wire``, ``_grpc``: the bytes between them; ``_leases``: the lease service over gRPC.
- ``metrics``, ``tracing``: observers; ``_events``: the table of events.
- ``testing``, ``spark``: for users' tests, and for Spark; ``_cli``: the ``rifl`` command,
  ``python -m rifl``.
"""

from typing import TYPE_CHECKING

from _rifl_ground.exports import exported

if TYPE_CHECKING:
    from _rifl_ground.pings import SERVER_OPTIONS as SERVER_OPTIONS
    from _rifl_ground.refusals import Outcome as Outcome
    from rifl import aio as aio
    from rifl import core as core
    from rifl._client import BatchItem as BatchItem
    from rifl._client import BatchResult as BatchResult
    from rifl._client import CallError as CallError
    from rifl._client import Channel as Channel
    from rifl._client import ClientInterceptor as ClientInterceptor
    from rifl._client import Instrumentation as Instrumentation
    from rifl._client import Resolution as Resolution
    from rifl._client import RetryPolicy as RetryPolicy
    from rifl._client import Session as Session
    from rifl._client import client_interceptor as client_interceptor
    from rifl._client import connect as connect
    from rifl._client import instrument as instrument
    from rifl._client import key as key
    from rifl._client import may_retry as may_retry
    from rifl._leases.service import add_lease_service as add_lease_service
    from rifl._server import Deduplicator as Deduplicator
    from rifl._server import caller_gone as caller_gone
    from rifl._server import may_be_undone as may_be_undone
    from rifl._server import record as record
    from rifl._server import serve_until_signal as serve_until_signal
    from rifl._server import transaction as transaction
    from rifl._stores import DbApiTransaction as DbApiTransaction
    from rifl._stores import MissingExtra as MissingExtra
    from rifl._stores import RecordCodec as RecordCodec
    from rifl._stores import Settled as Settled
    from rifl._stores import Settlement as Settlement
    from rifl._stores import StoreCorrupt as StoreCorrupt
    from rifl._stores import StoreError as StoreError
    from rifl._stores import StoreLocked as StoreLocked
    from rifl._stores import StoreLost as StoreLost
    from rifl._stores import StoreNotDurable as StoreNotDurable
    from rifl._stores import StoreSchemaTooNew as StoreSchemaTooNew
    from rifl._stores import StoreUnreachable as StoreUnreachable
    from rifl._stores import TransactionEnded as TransactionEnded
    from rifl._stores import UnknownCall as UnknownCall
    from rifl._stores import UnsupportedStore as UnsupportedStore
    from rifl._stores import WrongDatabase as WrongDatabase
    from rifl._stores import postgres_schema as postgres_schema
    from rifl._stores import settle_unknown as settle_unknown
    from rifl._stores import unknown_calls as unknown_calls
    from rifl.core._serving.bounds import Bounds as Bounds
    from rifl.core._serving.policy import Kind as Kind
    from rifl.core._serving.policy import MethodPolicy as MethodPolicy
    from rifl.core._serving.policy import PolicyError as PolicyError
    from rifl.core._shared.identity import RpcId as RpcId
    from rifl.core._shared.observer import Observer as Observer
else:
    __all__, __getattr__, __dir__ = exported(
        __name__,
        {
            "_rifl_ground.pings": "SERVER_OPTIONS",
            "_rifl_ground.refusals": "Outcome",
            "rifl._client": (
                "BatchItem BatchResult CallError Channel ClientInterceptor Instrumentation "
                "Resolution RetryPolicy Session client_interceptor connect instrument key may_retry"
            ),
            "rifl._leases.service": "add_lease_service",
            "rifl._server": (
                "Deduplicator caller_gone may_be_undone record serve_until_signal transaction"
            ),
            "rifl._stores": (
                "DbApiTransaction MissingExtra RecordCodec Settled Settlement StoreCorrupt "
                "StoreError StoreLocked StoreLost StoreNotDurable StoreSchemaTooNew "
                "StoreUnreachable TransactionEnded UnknownCall UnsupportedStore WrongDatabase "
                "postgres_schema settle_unknown unknown_calls"
            ),
            "rifl.aio": "",
            "rifl.core": "",
            "rifl.core._serving.bounds": "Bounds",
            "rifl.core._serving.policy": "Kind MethodPolicy PolicyError",
            "rifl.core._shared.identity": "RpcId",
            "rifl.core._shared.observer": "Observer",
        },
    )
