"""The bank as a server process: ``python -m examples.bank --books bank.db``.

Prints the address it listens on, and serves until its standard input closes, so
it never outlives the process that started it.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

import rifl
from examples.bank.exact_service import ExactBank
from examples.bank.ledger import Ledger
from examples.bank.service import Bank
from examples.bank.v1 import bank_pb2_grpc


def main() -> None:
    """Serve."""
    parser = argparse.ArgumentParser(prog="python -m examples.bank", description=__doc__)
    parser.add_argument("--books", type=Path, required=True, help="the bank's SQLite file")
    parser.add_argument("--listen", default="127.0.0.1:0")
    parser.add_argument(
        "--behind",
        choices=["grpc", "rifl", "rifl-atomic"],
        default="grpc",
        help="nothing; rifl around the unchanged service; rifl with records in its transactions",
    )
    options = parser.parse_args()

    with contextlib.ExitStack() as stack:
        ledger = stack.enter_context(contextlib.closing(Ledger(options.books)))
        if options.behind == "grpc":
            server = grpc.server(ThreadPoolExecutor(16))
            bank_pb2_grpc.add_BankServicer_to_server(Bank(ledger), server)
        elif options.behind == "rifl":
            # Its records need not be near the bank's books.
            store = options.books.with_suffix(".rifl.db")
            dedup = stack.enter_context(rifl.Deduplicator(f"sqlite:///{store}"))
            server = grpc.server(ThreadPoolExecutor(16), interceptors=[dedup.interceptor()])
            bank_pb2_grpc.add_BankServicer_to_server(Bank(ledger), server)
            dedup.add_to_server(server)
        else:
            dedup = stack.enter_context(
                rifl.Deduplicator(
                    f"sqlite:///{options.books}",
                    methods={
                        "/bank.v1.Bank/Deposit": "atomic",
                        "/bank.v1.Bank/Transfer": "atomic",
                    },
                )
            )
            server = grpc.server(ThreadPoolExecutor(16), interceptors=[dedup.interceptor()])
            bank_pb2_grpc.add_BankServicer_to_server(ExactBank(ledger), server)
            dedup.add_to_server(server)

        port = server.add_insecure_port(options.listen)
        server.start()
        print(f"listening {port}", flush=True)
        sys.stdin.read()
        server.stop(grace=1).wait()


if __name__ == "__main__":
    main()
