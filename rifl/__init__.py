"""Exactly-once RPC for Python gRPC: a call has its effect once, and one answer.

Server::

    dedup = rifl.Deduplicator("sqlite:///service.db")
    server = grpc.server(pool, interceptors=[dedup.interceptor()])
    dedup.add_to_server(server)

Client::

    with rifl.connect("localhost:50051") as channel:
        stub = YourServiceStub(channel)

For asyncio see ``rifl.aio``; the rules are in ``rifl.core``.
"""

from rifl import aio
from rifl.client import (
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
from rifl.core.identity import RpcId
from rifl.core.observer import Observer
from rifl.core.outcome import Outcome
from rifl.core.policy import Kind, MethodPolicy, PolicyError
from rifl.server import Deduplicator, caller_gone, record, serve_until_signal, transaction
from rifl.stores import DbApiTransaction

__all__ = [
    "BatchItem",
    "BatchResult",
    "CallError",
    "Channel",
    "ClientInterceptor",
    "DbApiTransaction",
    "Deduplicator",
    "Instrumentation",
    "Kind",
    "MethodPolicy",
    "Observer",
    "Outcome",
    "PolicyError",
    "Resolution",
    "RetryPolicy",
    "RpcId",
    "Session",
    "aio",
    "caller_gone",
    "client_interceptor",
    "connect",
    "instrument",
    "key",
    "record",
    "serve_until_signal",
    "transaction",
]
