"""One line in the handler, and a SIGKILL at the worst moment costs nothing.

The server process dies right after the transaction that holds both the payment
and its completion record; started again, it answers the retry from the record.
Run it: ``python -m examples.atomic_record``.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

import rifl
from chaos.faulty_path import FaultyPath
from examples.bank.ledger import Ledger, create_books, deposit
from examples.bank.service import Bank
from examples.bank.v1 import bank_pb2, bank_pb2_grpc
from examples.checking import expect
from examples.server_process import ServerProcess


class DyingBank(Bank):
    """Commits the payment with its record, and dies of a reference called "fatal"."""

    def Deposit(
        self, request: bank_pb2.DepositRequest, context: grpc.ServicerContext
    ) -> bank_pb2.Receipt:
        """Pay in, exactly once."""
        with self.payment(context) as transaction:
            receipt = deposit(transaction, request)
            rifl.record(context, receipt, transaction)
        if request.reference == "fatal":
            os.kill(os.getpid(), signal.SIGKILL)
        return receipt


def serve(books: Path) -> None:
    """The server process."""
    with (
        contextlib.closing(Ledger(books)) as ledger,
        rifl.Deduplicator(
            f"sqlite:///{books}", methods={"/bank.v1.Bank/Deposit": "atomic"}
        ) as dedup,
    ):
        server = grpc.server(ThreadPoolExecutor(8), interceptors=[dedup.interceptor()])
        bank_pb2_grpc.add_BankServicer_to_server(DyingBank(ledger), server)
        dedup.add_to_server(server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        print(f"listening {port}", flush=True)
        sys.stdin.read()
        server.stop(grace=1).wait()


def main() -> None:
    """Make a payment that kills the server, and find it made once."""
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        books = directory / "bank.db"
        create_books(books, [("alice", 0)])
        path = stack.enter_context(FaultyPath())
        process = stack.enter_context(ServerProcess("examples.atomic_record", "serve", str(books)))
        path.lead_to(process.start())

        with rifl.connect(path.target) as channel:
            stub = bank_pb2_grpc.BankStub(channel)
            stub.Deposit(_deposit("first"), timeout=30)
            fatal = stub.Deposit.future(_deposit("fatal"), timeout=30)
            process.wait_until_dead()
            path.lead_to(process.start())
            receipt = fatal.result()
            expect("statement entry of the payment", receipt.entry, 2)
            expect("balance on the receipt", receipt.balance_cents, 1000)
            balance = stub.Balance(bank_pb2.BalanceRequest(account="alice"), timeout=30)
            expect("balance of the account", balance.balance_cents, 1000)


def _deposit(reference: str) -> bank_pb2.DepositRequest:
    return bank_pb2.DepositRequest(reference=reference, account="alice", cents=500)


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(Path(sys.argv[2]))
    else:
        main()
