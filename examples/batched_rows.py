"""Many rows in one RPC, to a handler that knows nothing of it; each has its effect once.

The connection is reset in the middle, and the job is run again from its beginning, as
jobs are. Run it: ``python -m examples.batched_rows``.
"""

from __future__ import annotations

import contextlib
import secrets
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

import rifl
from chaos.faulty_path import FaultyPath
from examples.bank.ledger import Ledger, create_books
from examples.bank.v1 import bank_pb2, bank_pb2_grpc
from examples.checking import expect
from examples.wrap_server import UnluckyBank

DEPOSIT = "/bank.v1.Bank/Deposit"
_ROWS = 300


def rows() -> list[rifl.BatchItem]:
    """The table to be paid in: its key is the row's own, the same in every run."""
    found = []
    for number in range(_ROWS):
        account = "bob" if number == 7 else "alice"
        request = bank_pb2.DepositRequest(reference=f"row {number}", account=account, cents=1)
        found.append(rifl.BatchItem(request.SerializeToString(), key=b"row-%d" % number))
    return found


def main() -> None:
    """Pay the table in, twice, over a path that breaks."""
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

        # Kept where every process of the job can read it, and no other process can.
        secret = secrets.token_hex(32)
        for run in ("first", "second"):
            # A process that opens the name by its secret has the same client id, any time.
            with rifl.connect(path.target, session="statement-2031-05", secret=secret) as channel:
                results = channel.batch(DEPOSIT, rows(), timeout=60)
            codes = Counter(result.code.name for result in results)
            expect(f"{run} run, answers", codes, Counter(OK=_ROWS - 1, NOT_FOUND=1))
            expect(f"{run} run, the row that failed", results[7].details, "no account bob")
        outcomes = {result.outcome for result in results}
        expect("second run, outcomes", outcomes, {rifl.Outcome.REPLAYED})
        first = bank_pb2.Receipt.FromString(results[0].response or b"")
        expect("first receipt, as it was given first", first.balance_cents, 1)
        expect("times the handler paid", bank.runs, _ROWS - 1)
        expect("balance", ledger.balance("alice"), _ROWS - 1)


if __name__ == "__main__":
    main()
