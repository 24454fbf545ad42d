"""Wrap an existing asyncio gRPC server, and call it from asyncio.

The connection is reset after the handler ran and before its answer left, so the
client has to ask again. Run it: ``python -m examples.wrap_aio_server``.
"""

from __future__ import annotations

import asyncio

import grpc
import grpc.aio

import rifl
import rifl.aio
from chaos.faulty_path import FaultyPath
from examples.bank.v1 import bank_pb2, bank_pb2_grpc
from examples.checking import expect


class UnluckyBank(bank_pb2_grpc.BankServicer):
    """A bank of one account, whose path to its clients breaks at the worst moment, once."""

    def __init__(self, path: FaultyPath) -> None:
        self._path = path
        self._cents = 0
        self.runs = 0

    async def Deposit(
        self,
        request: bank_pb2.DepositRequest,
        context: grpc.aio.ServicerContext[bank_pb2.DepositRequest, bank_pb2.Receipt],
    ) -> bank_pb2.Receipt:
        """Pay in; the first time, break the path before the answer."""
        self._cents += request.cents
        self.runs += 1
        if self.runs == 1:
            await asyncio.to_thread(self._path.reset)
        return bank_pb2.Receipt(entry=self.runs, balance_cents=self._cents)


async def demonstrate(path: FaultyPath) -> None:
    """Deposit once over a path that breaks, then twenty times at once."""
    bank = UnluckyBank(path)
    with rifl.Deduplicator("memory:") as dedup:
        server = grpc.aio.server(interceptors=[dedup.aio_interceptor()])
        bank_pb2_grpc.add_BankServicer_to_server(bank, server)
        dedup.add_to_server(server)
        path.lead_to(server.add_insecure_port("127.0.0.1:0"))
        await server.start()
        try:
            async with rifl.aio.connect(path.target) as channel:
                stub = bank_pb2_grpc.BankStub(channel)
                request = bank_pb2.DepositRequest(reference="rent", account="alice", cents=500)
                receipt = await stub.Deposit(request, timeout=30)
                expect("balance on the receipt", receipt.balance_cents, 500)
                expect("times the handler ran", bank.runs, 1)

                calls = [stub.Deposit(request, timeout=30) for _ in range(20)]
                receipts = await asyncio.gather(*calls)
                expect("highest balance", max(r.balance_cents for r in receipts), 21 * 500)
                expect("times the handler ran", bank.runs, 21)
        finally:
            await server.stop(grace=None)


def main() -> None:
    """Run the example."""
    with FaultyPath() as path:
        asyncio.run(demonstrate(path))


if __name__ == "__main__":
    main()
