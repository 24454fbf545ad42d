"""The naive sender: one stub for a partition, one blocking call for a row."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

__all__ = ["naive_sender"]


def naive_sender(target: str, prefix: str = "naive-") -> Callable[[Iterable[Any]], None]:
    """Return a function for ``foreachPartition``; references get the prefix."""

    def send(rows: Iterable[Any]) -> None:
        import grpc

        from examples.bank.v1 import bank_pb2, bank_pb2_grpc

        with grpc.insecure_channel(target) as channel:
            stub = bank_pb2_grpc.BankStub(channel)
            for row in rows:
                request = bank_pb2.DepositRequest(
                    reference=f"{prefix}{row.reference}", account=row.account, cents=row.cents
                )
                stub.Deposit(request, timeout=60, wait_for_ready=True)

    return send
