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
- ``metrics``, ``tracing``: observers; ``_log``: events for the application's log.
- ``testing``, ``spark``: for users' tests, and for Spark; ``_cli``: the ``rifl`` command,
  ``python -m rifl``.
"""

from rifl import aio, core
from rifl._client import (
    BatchItem,
    BatchResult,
    CallError,
    Channel,
    ClientInterceptor,
    Instrumentation,
    Resolution,
    RetryPolicy,
    Session,
    client_interceptor,
    connect,
    instrument,
    key,
)
from rifl._leases.service import add_lease_service
from rifl._server import Deduplicator, caller_gone, record, serve_until_signal, transaction
from rifl._stores import (
    DbApiTransaction,
    MissingExtra,
    RecordCodec,
    Settled,
    Settlement,
    StoreCorrupt,
    StoreError,
    StoreLocked,
    StoreLost,
    StoreNotDurable,
    StoreSchemaTooNew,
    StoreUnreachable,
    UnknownCall,
    UnsupportedStore,
    WrongDatabase,
    postgres_schema,
    settle_unknown,
    unknown_calls,
)
from rifl.core._serving.bounds import Bounds
from rifl.core._serving.policy import Kind, MethodPolicy, PolicyError
from rifl.core._shared.identity import RpcId
from rifl.core._shared.observer import Observer
from rifl.core._shared.outcome import Outcome

__all__ = [
    "BatchItem",
    "BatchResult",
    "Bounds",
    "CallError",
    "Channel",
    "ClientInterceptor",
    "DbApiTransaction",
    "Deduplicator",
    "Instrumentation",
    "Kind",
    "MethodPolicy",
    "MissingExtra",
    "Observer",
    "Outcome",
    "PolicyError",
    "RecordCodec",
    "Resolution",
    "RetryPolicy",
    "RpcId",
    "Session",
    "Settled",
    "Settlement",
    "StoreCorrupt",
    "StoreError",
    "StoreLocked",
    "StoreLost",
    "StoreNotDurable",
    "StoreSchemaTooNew",
    "StoreUnreachable",
    "UnknownCall",
    "UnsupportedStore",
    "WrongDatabase",
    "add_lease_service",
    "aio",
    "caller_gone",
    "client_interceptor",
    "connect",
    "core",
    "instrument",
    "key",
    "postgres_schema",
    "record",
    "serve_until_signal",
    "settle_unknown",
    "transaction",
    "unknown_calls",
]
