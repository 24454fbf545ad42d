"""Wrap an existing gRPC server: two lines, and a retry has its effect once.

The connection is reset after the handler ran and before its answer left, so the
client has to ask again. Run it: ``python -m examples.wrap_server``.
"""

from __future__ import annotations

import contextlib
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

import rifl
from chaos.faulty_path import FaultyPath
from examples.bank.ledger import Ledger, create_books
from examples.bank.service import Bank
from examples.bank.v1 import bank_pb2, bank_pb2_grpc
from examples.checking import expect


class UnluckyBank(Bank):
    """The bank, with a path to its clients that breaks at the worst moment, once."""

    def __init__(self, ledger: Ledger, path: FaultyPath) -> None:
        super().__init__(ledger)
        self._path = path
        self.runs = 0

    def Deposit(
        self, request: bank_pb2.DepositRequest, context: grpc.ServicerContext
    ) -> bank_pb2.Receipt:
        """Pay in; the first time, break the path before the answer."""
        receipt = super().Deposit(request, context)
        self.runs += 1
        if self.runs == 1:
            self._path.reset()
        return receipt


def main() -> None:
    """Deposit once over a path that breaks, and look at the balance."""
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        path = stack.enter_context(FaultyPath())
        create_books(directory / "bank.db", [("alice", 0)])
        ledger = stack.enter_context(contextlib.closing(Ledger(directory / "bank.db")))
        bank = UnluckyBank(ledger, path)

        dedup = stack.enter_context(rifl.Deduplicator(f"sqlite:///{directory / 'rifl.db'}"))
        server = grpc.server(ThreadPoolExecutor(8), interceptors=[dedup.interceptor()])
        bank_pb2_grpc.add_BankServicer_to_server(bank, server)
        dedup.add_to_server(server)
        path.lead_to(server.add_insecure_port("127.0.0.1:0"))
        server.start()
        stack.callback(lambda: server.stop(grace=None).wait())

        with rifl.connect(path.target) as channel:
            stub = bank_pb2_grpc.BankStub(channel)
            request = bank_pb2.DepositRequest(reference="rent", account="alice", cents=500)
            receipt = stub.Deposit(request, timeout=30)
            expect("balance on the receipt", receipt.balance_cents, 500)
            expect("times the handler ran", bank.runs, 1)
            balance = stub.Balance(bank_pb2.BalanceRequest(account="alice"), timeout=30)
            expect("balance of the account", balance.balance_cents, 500)


if __name__ == "__main__":
    main()
