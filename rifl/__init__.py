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
- ``metrics``, ``tracing``: observers.
- ``testing``, ``spark``: for users' tests, and for Spark; ``_cli``: the ``rifl`` command,
  ``python -m rifl``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
    from rifl._server import (
        Deduplicator,
        caller_gone,
        may_be_undone,
        record,
        serve_until_signal,
        transaction,
    )
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
        TransactionEnded,
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
    "TransactionEnded",
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
    "may_be_undone",
    "postgres_schema",
    "record",
    "serve_until_signal",
    "settle_unknown",
    "transaction",
    "unknown_calls",
]

# Where each name is: whoever asks for it first has that part imported, and no other.
_HOMES = {
    "BatchItem": "rifl._client",
    "BatchResult": "rifl._client",
    "Bounds": "rifl.core._serving.bounds",
    "CallError": "rifl._client",
    "Channel": "rifl._client",
    "ClientInterceptor": "rifl._client",
    "DbApiTransaction": "rifl._stores",
    "Deduplicator": "rifl._server",
    "Instrumentation": "rifl._client",
    "Kind": "rifl.core._serving.policy",
    "MethodPolicy": "rifl.core._serving.policy",
    "MissingExtra": "rifl._stores",
    "Observer": "rifl.core._shared.observer",
    "Outcome": "rifl.core._shared.outcome",
    "PolicyError": "rifl.core._serving.policy",
    "RecordCodec": "rifl._stores",
    "Resolution": "rifl._client",
    "RetryPolicy": "rifl._client",
    "RpcId": "rifl.core._shared.identity",
    "Session": "rifl._client",
    "Settled": "rifl._stores",
    "Settlement": "rifl._stores",
    "StoreCorrupt": "rifl._stores",
    "StoreError": "rifl._stores",
    "StoreLocked": "rifl._stores",
    "StoreLost": "rifl._stores",
    "StoreNotDurable": "rifl._stores",
    "StoreSchemaTooNew": "rifl._stores",
    "StoreUnreachable": "rifl._stores",
    "TransactionEnded": "rifl._stores",
    "UnknownCall": "rifl._stores",
    "UnsupportedStore": "rifl._stores",
    "WrongDatabase": "rifl._stores",
    "add_lease_service": "rifl._leases.service",
    "aio": "rifl.aio",
    "caller_gone": "rifl._server",
    "client_interceptor": "rifl._client",
    "connect": "rifl._client",
    "core": "rifl.core",
    "instrument": "rifl._client",
    "key": "rifl._client",
    "may_be_undone": "rifl._server",
    "postgres_schema": "rifl._stores",
    "record": "rifl._server",
    "serve_until_signal": "rifl._server",
    "settle_unknown": "rifl._stores",
    "transaction": "rifl._server",
    "unknown_calls": "rifl._stores",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, there = home.partition(":")
    found = import_module(module)
    if module not in ("rifl.aio", "rifl.core"):
        found = getattr(found, there or name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
