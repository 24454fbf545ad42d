"""grpclib, which has neither our SDK nor gRPC's core, sends plain keys (docs/how-to/keys.md)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from grpclib.client import Channel, UnaryUnaryMethod
from grpclib.exceptions import GRPCError

from examples.bank.v1 import bank_pb2, bank_pb2_grpc
from rifl.testing import serve


class _Bank(bank_pb2_grpc.BankServicer):
    def __init__(self) -> None:
        self.runs: list[str] = []

    def Deposit(self, request: Any, context: Any) -> Any:  # noqa: N802 - the proto's
        self.runs.append(request.reference)
        return bank_pb2.Receipt(entry=len(self.runs))


async def test_a_repeated_key_has_one_effect_and_the_first_answer() -> None:
    """HTTP/2 and trailers as another implementation writes and reads them."""
    bank = _Bank()

    def add(server: Any) -> None:
        bank_pb2_grpc.add_BankServicer_to_server(bank, server)

    with serve(add, keys_from="anyone") as service:
        host, _, port = service.address.partition(":")
        async with Channel(host, int(port)) as channel:
            deposit = UnaryUnaryMethod(
                channel, "/bank.v1.Bank/Deposit", bank_pb2.DepositRequest, bank_pb2.Receipt
            )

            async def pay(reference: str, key: str) -> Any:
                request = bank_pb2.DepositRequest(reference=reference, cents=1)
                return await deposit(request, metadata={"idempotency-key": key}, timeout=20)

            service.faults.arm("drop-answer")
            with pytest.raises(GRPCError) as lost:
                await pay("one", "k1")
            assert lost.value.status.name == "UNAVAILABLE"
            assert (await pay("one", "k1")).entry == 1
            both = await asyncio.gather(pay("two", "k2"), pay("two", "k2"))
            assert [receipt.entry for receipt in both] == [2, 2]
            with pytest.raises(GRPCError) as refused:
                await pay("three", "k2")
            assert refused.value.status.name == "INVALID_ARGUMENT"
        assert bank.runs == ["one", "two"]
