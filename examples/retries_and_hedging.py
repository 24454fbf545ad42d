"""The client: retries, what an error tells, and hedging that is safe.

A hedge is a second attempt sent while the first still runs. Everywhere else it
runs the handler twice; here both attempts carry one identity. Run it:
``python -m examples.retries_and_hedging``.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

import rifl
from chaos.faulty_path import FaultyPath
from examples.bank.v1 import bank_pb2, bank_pb2_grpc
from examples.checking import expect


class Arrivals(grpc.ServerInterceptor):
    """Counts what arrives: it is outside of rifl's interceptor."""

    def __init__(self) -> None:
        self.deposits = threading.Semaphore(0)

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Any],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Count deposits, however often they are sent."""
        if handler_call_details.method == "/bank.v1.Bank/Deposit":
            self.deposits.release()
        return continuation(handler_call_details)


class SlowBank(bank_pb2_grpc.BankServicer):
    """Answers a deposit only after it has arrived a second time."""

    def __init__(self, arrivals: Arrivals, path: FaultyPath) -> None:
        self._arrivals = arrivals
        self._path = path
        self.runs: list[str] = []

    def Deposit(
        self, request: bank_pb2.DepositRequest, context: grpc.ServicerContext
    ) -> bank_pb2.Receipt:
        """Pay in. What makes it arrive again depends on the reference."""
        self.runs.append(request.reference)
        self._arrivals.deposits.acquire()
        if request.reference == "refused":
            context.abort(grpc.StatusCode.NOT_FOUND, "no such account")
        if request.reference == "retried":
            self._path.reset()
        if not self._arrivals.deposits.acquire(timeout=20):
            context.abort(grpc.StatusCode.INTERNAL, "it did not arrive again")
        return bank_pb2.Receipt(entry=len(self.runs))


def main() -> None:
    """Make the same call arrive twice, by a retry and by a hedge; it runs once."""
    with contextlib.ExitStack() as stack:
        path = stack.enter_context(FaultyPath())
        arrivals = Arrivals()
        bank = SlowBank(arrivals, path)
        dedup = stack.enter_context(rifl.Deduplicator("memory:"))
        server = grpc.server(ThreadPoolExecutor(8), interceptors=[arrivals, dedup.interceptor()])
        bank_pb2_grpc.add_BankServicer_to_server(bank, server)
        dedup.add_to_server(server)
        path.lead_to(server.add_insecure_port("127.0.0.1:0"))
        server.start()
        stack.callback(lambda: server.stop(grace=None).wait())

        with rifl.connect(path.target) as channel:
            stub = bank_pb2_grpc.BankStub(channel)
            stub.Deposit(bank_pb2.DepositRequest(reference="retried"), timeout=30)
            expect("runs of the retried call", bank.runs.count("retried"), 1)

            # What a handler decides is final: an error is an answer too.
            try:
                stub.Deposit(bank_pb2.DepositRequest(reference="refused"), timeout=30)
            except grpc.RpcError as error:
                expect("code", error.code(), grpc.StatusCode.NOT_FOUND)
                expect("outcome", getattr(error, "outcome", None), rifl.Outcome.EXECUTED)
            else:
                raise SystemExit("FAILED  the refused call succeeded")

        with rifl.connect(path.target, hedge_after=0.05) as channel:
            stub = bank_pb2_grpc.BankStub(channel)
            stub.Deposit(bank_pb2.DepositRequest(reference="hedged"), timeout=30)
            expect("runs of the hedged call", bank.runs.count("hedged"), 1)


if __name__ == "__main__":
    main()
