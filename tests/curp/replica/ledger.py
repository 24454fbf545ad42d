"""A bank whose state is in the servicer, as anyone would write it."""

from __future__ import annotations

import json
from typing import Any

import grpc

import curp
from examples.bank.v1 import bank_pb2, bank_pb2_grpc

__all__ = ["CONFLICTS", "READ_ONLY", "AioBank", "Bank"]

CONFLICTS = {
    "/bank.v1.Bank/Deposit": "account",
    "/bank.v1.Bank/Transfer": ["from_account", "to_account"],
    "/bank.v1.Bank/Balance": "account",
}
READ_ONLY = ["/bank.v1.Bank/Balance"]


class Ledger:
    """Balances, and how often each reference was paid."""

    def __init__(self) -> None:
        self.balances: dict[str, int] = {}
        self.paid: dict[str, int] = {}
        self.entries: dict[str, int] = {}

    def deposit(self, request: Any, context: Any) -> bank_pb2.Receipt:
        account = request.account
        self.paid[request.reference] = self.paid.get(request.reference, 0) + 1
        self.balances[account] = self.balances.get(account, 0) + request.cents
        entry = self.entries[account] = self.entries.get(account, 0) + 1
        # A logged clock: the same in every replay.
        assert curp.now(context).year >= 2000 or context.peer() == "replay"
        return bank_pb2.Receipt(entry=entry, balance_cents=self.balances[account])

    def withdraw(self, account: str, cents: int) -> bool:
        if self.balances.get(account, 0) < cents:
            return False
        self.balances[account] -= cents
        return True

    def snapshot(self) -> bytes:
        return json.dumps([self.balances, self.paid, self.entries]).encode()

    def restore(self, data: bytes) -> None:
        self.balances, self.paid, self.entries = json.loads(data)


class Bank(bank_pb2_grpc.BankServicer, Ledger):
    """The sync servicer."""

    def Deposit(self, request: Any, context: Any) -> bank_pb2.Receipt:  # noqa: N802 - the proto's
        return self.deposit(request, context)

    def Transfer(self, request: Any, context: Any) -> bank_pb2.Receipt:  # noqa: N802 - the proto's
        if not self.withdraw(request.from_account, request.cents):
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not enough")
        deposit = bank_pb2.DepositRequest(
            reference=request.reference, account=request.to_account, cents=request.cents
        )
        return self.deposit(deposit, context)

    def Balance(self, request: Any, context: Any) -> bank_pb2.BalanceReply:  # noqa: N802 - the proto's
        return bank_pb2.BalanceReply(balance_cents=self.balances.get(request.account, 0))


class AioBank(bank_pb2_grpc.BankServicer, Ledger):
    """The same with coroutines."""

    async def Deposit(self, request: Any, context: Any) -> bank_pb2.Receipt:  # noqa: N802 - the proto's
        return self.deposit(request, context)

    async def Transfer(self, request: Any, context: Any) -> bank_pb2.Receipt:  # noqa: N802 - the proto's
        if not self.withdraw(request.from_account, request.cents):
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not enough")
        deposit = bank_pb2.DepositRequest(
            reference=request.reference, account=request.to_account, cents=request.cents
        )
        return self.deposit(deposit, context)

    async def Balance(self, request: Any, context: Any) -> bank_pb2.BalanceReply:  # noqa: N802 - the proto's
        return bank_pb2.BalanceReply(balance_cents=self.balances.get(request.account, 0))
