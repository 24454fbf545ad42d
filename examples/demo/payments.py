"""The payments the demo makes: drawn from a seed, each with a reference of its own."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TypeAlias

from examples.bank.v1 import bank_pb2

__all__ = ["OPENING_CENTS", "Payment", "Request", "draw_payments"]

Request: TypeAlias = bank_pb2.DepositRequest | bank_pb2.TransferRequest

# So much on every account that no transfer is ever refused.
OPENING_CENTS: dict[str, int] = {f"account-{number:02}": 100_000_000 for number in range(20)}


@dataclass(frozen=True, kw_only=True)
class Payment:
    """One business-level call; its reference is all that counting relies on."""

    reference: str
    from_account: str | None
    to_account: str
    cents: int

    def request(self) -> Request:
        """What is sent: a transfer if money comes from an account, else a deposit."""
        if self.from_account is None:
            return bank_pb2.DepositRequest(
                reference=self.reference, account=self.to_account, cents=self.cents
            )
        return bank_pb2.TransferRequest(
            reference=self.reference,
            from_account=self.from_account,
            to_account=self.to_account,
            cents=self.cents,
        )


def draw_payments(seed: int, calls: int) -> list[Payment]:
    """Two deposits for every transfer, of 1 to 500 in money."""
    chance = random.Random(seed)  # noqa: S311 - repeatable, not secret
    payments = []
    for number in range(calls):
        to_account, from_account = chance.sample(sorted(OPENING_CENTS), 2)
        payments.append(
            Payment(
                reference=f"payment-{number:06}",
                from_account=from_account if chance.random() < 1 / 3 else None,
                to_account=to_account,
                cents=chance.randint(100, 50_000),
            )
        )
    return payments
