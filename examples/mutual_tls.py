"""Mutual TLS: certificates authenticate both sides, sync and aio, and keys need no secret.

A session, and a plain ``idempotency-key``, belong to the caller that its certificate names. Needs
the extra ``rifl-grpc[examples]``, which draws certificates; yours come from your authority. Run it:
``python -m examples.mutual_tls``.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import trustme

import rifl
import rifl.aio
from examples.bank.v1 import bank_pb2, bank_pb2_grpc
from examples.checking import expect

REQUEST = bank_pb2.DepositRequest(reference="rent", account="alice", cents=500)


class Bank(bank_pb2_grpc.BankServicer):
    """Counts deposits."""

    def __init__(self) -> None:
        self.runs = 0

    def Deposit(self, request: bank_pb2.DepositRequest, context: Any) -> bank_pb2.Receipt:
        """Pay in."""
        self.runs += 1
        return bank_pb2.Receipt(entry=self.runs)


def server_credentials(authority: trustme.CA) -> grpc.ServerCredentials:
    """Return what the server shows, and whose certificates it asks for."""
    mine = authority.issue_cert("127.0.0.1")
    pair = (mine.private_key_pem.bytes(), mine.cert_chain_pems[0].bytes())
    return grpc.ssl_server_credentials([pair], authority.cert_pem.bytes(), require_client_auth=True)


def channel_credentials(authority: trustme.CA, name: str) -> grpc.ChannelCredentials:
    """Return what a service of that name shows."""
    mine = authority.issue_cert(name)
    return grpc.ssl_channel_credentials(
        authority.cert_pem.bytes(), mine.private_key_pem.bytes(), mine.cert_chain_pems[0].bytes()
    )


def main() -> None:
    """Pay in under one key, as two services; each is paid once."""
    authority, bank = trustme.CA(), Bank()
    with rifl.Deduplicator("memory:") as dedup:
        server = grpc.server(ThreadPoolExecutor(8), interceptors=[dedup.interceptor()])
        bank_pb2_grpc.add_BankServicer_to_server(bank, server)
        dedup.add_to_server(server)
        port = server.add_secure_port("127.0.0.1:0", server_credentials(authority))
        server.start()
        try:
            target, web = f"127.0.0.1:{port}", channel_credentials(authority, "web.internal")
            expect("entries of the web front", [pay(target, web) for _ in range(2)], [1, 1])
            expect("the same, aio", asyncio.run(aio_pay(target, web)), 1)
            jobs = channel_credentials(authority, "jobs.internal")
            expect("entry of the same session and key, of another service", pay(target, jobs), 2)
            expect("times the handler ran", bank.runs, 2)
        finally:
            server.stop(grace=None).wait()


def pay(target: str, credentials: grpc.ChannelCredentials) -> int:
    """Pay in under a key; return the entry in the books."""
    with rifl.connect(target, credentials, session="payments") as channel:
        stub = bank_pb2_grpc.BankStub(channel)
        return int(stub.Deposit(REQUEST, timeout=30, metadata=[rifl.key("rent")]).entry)


async def aio_pay(target: str, credentials: grpc.ChannelCredentials) -> int:
    """The same on an event loop."""
    async with rifl.aio.connect(target, credentials, session="payments") as channel:
        stub = bank_pb2_grpc.BankStub(channel)
        return int((await stub.Deposit(REQUEST, timeout=30, metadata=[rifl.key("rent")])).entry)


if __name__ == "__main__":
    main()
