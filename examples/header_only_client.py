"""A client without an SDK: one header, and gRPC's own retries become safe.

Any gRPC client in any language can do this: a key of the caller's own, sent as
``idempotency-key``, is the call's identity. Run it:
``python -m examples.header_only_client``.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

import rifl
from chaos.faulty_path import FaultyPath
from examples.bank.ledger import Ledger, create_books
from examples.bank.v1 import bank_pb2, bank_pb2_grpc
from examples.checking import expect
from examples.wrap_server import UnluckyBank

# What an operator would put into a service config; without the header, it pays twice.
RETRIES = {
    "methodConfig": [
        {
            "name": [{"service": "bank.v1.Bank"}],
            "retryPolicy": {
                "maxAttempts": 4,
                "initialBackoff": "0.05s",
                "maxBackoff": "1s",
                "backoffMultiplier": 2,
                "retryableStatusCodes": ["UNAVAILABLE"],
            },
        }
    ]
}


def main() -> None:
    """Pay over a path that breaks, then once more under the same key."""
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        path = stack.enter_context(FaultyPath())
        create_books(directory / "bank.db", [("alice", 0)])
        ledger = stack.enter_context(contextlib.closing(Ledger(directory / "bank.db")))
        bank = UnluckyBank(ledger, path)

        # Keys belong to authenticated peers unless a server opts in: a client that shares a
        # namespace could read the answers in it. On this machine, anyone may.
        dedup = stack.enter_context(
            rifl.Deduplicator(f"sqlite:///{directory / 'rifl.db'}", keys_from="anyone")
        )
        server = grpc.server(ThreadPoolExecutor(8), interceptors=[dedup.interceptor()])
        bank_pb2_grpc.add_BankServicer_to_server(bank, server)
        dedup.add_to_server(server)
        path.lead_to(server.add_insecure_port("127.0.0.1:0"))
        server.start()
        stack.callback(lambda: server.stop(grace=None).wait())

        options = [("grpc.service_config", json.dumps(RETRIES))]
        with grpc.insecure_channel(path.target, options) as channel:
            stub = bank_pb2_grpc.BankStub(channel)
            request = bank_pb2.DepositRequest(reference="rent", account="alice", cents=500)
            key = [("idempotency-key", "rent-2031-05")]
            receipt, call = stub.Deposit.with_call(request, timeout=30, metadata=key)
            expect("balance on the receipt", receipt.balance_cents, 500)
            expect("outcome", dict(call.trailing_metadata())["rifl-outcome"], "replayed")
            expect("times the handler ran", bank.runs, 1)

        # Another process, within the retention of a day, does not pay again either.
        with grpc.insecure_channel(path.target) as channel:
            stub = bank_pb2_grpc.BankStub(channel)
            again, call = stub.Deposit.with_call(request, timeout=30, metadata=key)
            expect("the same receipt", again, receipt)
            expect("outcome", dict(call.trailing_metadata())["rifl-outcome"], "replayed")

            other = bank_pb2.DepositRequest(reference="rent", account="alice", cents=900)
            try:
                stub.Deposit(other, timeout=30, metadata=key)
            except grpc.RpcError as error:
                expect("another payment under it", error.code(), grpc.StatusCode.INVALID_ARGUMENT)
            else:
                raise SystemExit("FAILED  a key was taken for two payments")
        expect("times the handler ran", bank.runs, 1)


if __name__ == "__main__":
    main()
