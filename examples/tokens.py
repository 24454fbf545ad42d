"""Servers that ask for a token, sync and aio, and three clients that they let in.

The client's own requests, such as for its id, need a token, too. An interceptor given to
``connect`` adds it to all requests. Where each call brings a token of its own, a function adds it
to the client's own requests. Run it: ``python -m examples.tokens``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import grpc.aio

import rifl
import rifl.aio
from examples.bank.v1 import bank_pb2, bank_pb2_grpc
from examples.checking import expect

REQUEST = bank_pb2.DepositRequest(reference="rent", account="alice", cents=500)
# Of a call: who asked this service for something. Real ones are signed.
ALICE = [("authorization", "Bearer alice")]


def service_token() -> str:
    """Return this service's token: new ones, in real life, as old ones expire."""
    return "Bearer shop"


class Bank(bank_pb2_grpc.BankServicer):
    """Counts deposits, and from whom they came."""

    def __init__(self) -> None:
        self.callers: list[str] = []

    def Deposit(self, request: bank_pb2.DepositRequest, context: Any) -> bank_pb2.Receipt:
        """Pay in."""
        self.callers.append(dict(context.invocation_metadata())["authorization"])
        return bank_pb2.Receipt(entry=len(self.callers))


def _has_a_token(details: grpc.HandlerCallDetails) -> bool:
    token = dict(details.invocation_metadata).get("authorization")
    return token in ("Bearer shop", "Bearer alice")


class Authentication(grpc.ServerInterceptor):
    """Lets requests in that have a token."""

    def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        """See gRPC."""
        if _has_a_token(handler_call_details):
            return continuation(handler_call_details)

        def refuse(request: Any, context: Any) -> None:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "no token")

        return grpc.unary_unary_rpc_method_handler(refuse)


class AioAuthentication(grpc.aio.ServerInterceptor):
    """The same on an event loop."""

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        """See gRPC."""
        if _has_a_token(handler_call_details):
            return await continuation(handler_call_details)

        async def refuse(request: Any, context: Any) -> None:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "no token")

        # Not of a stream: the client renews its lease by unary calls then.
        return grpc.unary_unary_rpc_method_handler(refuse)


class ServiceToken(grpc.UnaryUnaryClientInterceptor):
    """Adds the service's token to each request."""

    def intercept_unary_unary(
        self, continuation: Any, client_call_details: Any, request: Any
    ) -> Any:
        """See gRPC."""
        metadata = [*(client_call_details.metadata or ()), ("authorization", service_token())]
        return continuation(client_call_details._replace(metadata=metadata), request)


class AioServiceToken(grpc.aio.UnaryUnaryClientInterceptor, grpc.aio.StreamStreamClientInterceptor):
    """The same on an event loop, for the stream of heartbeats, too."""

    async def intercept_unary_unary(
        self, continuation: Any, client_call_details: Any, request: Any
    ) -> Any:
        """See gRPC."""
        return await continuation(_with_token(client_call_details), request)

    async def intercept_stream_stream(
        self, continuation: Any, client_call_details: Any, request_iterator: Any
    ) -> Any:
        """See gRPC."""
        return await continuation(_with_token(client_call_details), request_iterator)


def _with_token(details: Any) -> Any:
    entries = [*(details.metadata or ()), ("authorization", service_token())]
    return details._replace(metadata=grpc.aio.Metadata(*entries))


def own_requests(method: str) -> list[tuple[str, str]]:
    """Return what the client's own requests carry: of rifl, never of a call."""
    return [("authorization", service_token())]


async def aio_own_requests(method: str) -> list[tuple[str, str]]:
    """The same, with time to fetch a token."""
    await asyncio.sleep(0)
    return own_requests(method)


@contextlib.contextmanager
def serving(bank: Bank) -> Iterator[str]:
    """Serve on threads: authentication comes before rifl's interceptor."""
    with rifl.Deduplicator("memory:") as dedup:
        around = [Authentication(), dedup.interceptor()]
        server = grpc.server(ThreadPoolExecutor(8), interceptors=around)
        bank_pb2_grpc.add_BankServicer_to_server(bank, server)
        dedup.add_to_server(server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            server.stop(grace=None).wait()


def on_threads() -> None:
    """Call a server on threads by channels for threads."""
    bank = Bank()
    with serving(bank) as target:
        with rifl.connect(target, interceptors=[ServiceToken()]) as channel:
            bank_pb2_grpc.BankStub(channel).Deposit(REQUEST, timeout=30)
        with rifl.connect(target, metadata=own_requests) as channel:
            bank_pb2_grpc.BankStub(channel).Deposit(REQUEST, timeout=30, metadata=ALICE)
        expect("whose deposits", bank.callers, ["Bearer shop", "Bearer alice"])
        with rifl.connect(target) as channel:
            try:
                bank_pb2_grpc.BankStub(channel).Deposit(REQUEST, timeout=30, metadata=ALICE)
            except rifl.CallError as error:
                named = "/lease_server.v1.LeaseServer/Grant" in str(error)
                expect("a token of the call alone", (error.code().name, named), REFUSED)
        expect("times the handler ran", len(bank.callers), 2)


REFUSED = ("UNAUTHENTICATED", True)


async def on_a_loop() -> None:
    """Call a server on an event loop by channels of it."""
    bank = Bank()
    async with rifl.Deduplicator("memory:") as dedup:
        around = [AioAuthentication(), dedup.aio_interceptor()]
        server = grpc.aio.server(interceptors=around)
        dedup.add_to_server(server)
        bank_pb2_grpc.add_BankServicer_to_server(bank, server)
        target = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        try:
            async with rifl.aio.connect(target, interceptors=[AioServiceToken()]) as channel:
                await bank_pb2_grpc.BankStub(channel).Deposit(REQUEST, timeout=30)
            async with rifl.aio.connect(target, metadata=aio_own_requests) as channel:
                stub = bank_pb2_grpc.BankStub(channel)
                await stub.Deposit(REQUEST, timeout=30, metadata=ALICE)
            expect("whose deposits, aio", bank.callers, ["Bearer shop", "Bearer alice"])
            async with rifl.aio.connect(target) as channel:
                try:
                    stub = bank_pb2_grpc.BankStub(channel)
                    await stub.Deposit(REQUEST, timeout=30, metadata=ALICE)
                except rifl.CallError as error:
                    named = "/lease_server.v1.LeaseServer/Grant" in str(error)
                    expect("a token of the call alone, aio", (error.code().name, named), REFUSED)
            expect("times the handler ran, aio", len(bank.callers), 2)
        finally:
            await server.stop(grace=None)


def main() -> None:
    """Run the example."""
    on_threads()
    asyncio.run(on_a_loop())


if __name__ == "__main__":
    main()
