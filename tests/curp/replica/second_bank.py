"""The next version of the bank: its receipts have one more field."""

from __future__ import annotations

from typing import Any

from examples.bank.v1 import bank_pb2
from examples.replicated_bank.bank import MemoryBank

__all__ = ["SecondBank"]


class SecondBank(MemoryBank):
    """Pays as the first one does, and tells more."""

    def Deposit(self, request: Any, context: Any) -> bank_pb2.Receipt:  # noqa: N802 - the proto's
        return _with_more(super().Deposit(request, context))

    def Transfer(self, request: Any, context: Any) -> bank_pb2.Receipt:  # noqa: N802 - the proto's
        return _with_more(super().Transfer(request, context))


def _with_more(receipt: bank_pb2.Receipt) -> bank_pb2.Receipt:
    # Field 3, which clients of the first version do not know.
    more = bank_pb2.TransferRequest(to_account="EUR")
    receipt.MergeFromString(more.SerializeToString())
    return receipt
