"""The bank's gRPC service; nothing here knows of rifl."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator

import grpc

from examples.bank.ledger import InsufficientFunds, Ledger, UnknownAccount, deposit, transfer
from examples.bank.v1 import bank_pb2, bank_pb2_grpc

__all__ = ["Bank"]


class Bank(bank_pb2_grpc.BankServicer):
    """Each payment is one SQLite transaction."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def Deposit(
        self, request: bank_pb2.DepositRequest, context: grpc.ServicerContext
    ) -> bank_pb2.Receipt:
        """Pay into an account."""
        with self.payment(context) as transaction:
            return deposit(transaction, request)

    def Transfer(
        self, request: bank_pb2.TransferRequest, context: grpc.ServicerContext
    ) -> bank_pb2.Receipt:
        """Pay from one account into another."""
        with self.payment(context) as transaction:
            return transfer(transaction, request)

    def Balance(
        self, request: bank_pb2.BalanceRequest, context: grpc.ServicerContext
    ) -> bank_pb2.BalanceReply:
        """Tell what an account holds."""
        try:
            return bank_pb2.BalanceReply(balance_cents=self._ledger.balance(request.account))
        except UnknownAccount:
            context.abort(grpc.StatusCode.NOT_FOUND, f"no account {request.account}")

    def Statement(
        self, request: bank_pb2.StatementRequest, context: grpc.ServicerContext
    ) -> bank_pb2.StatementReply:
        """Tell the payments into an account, in order."""
        del context
        lines = self._ledger.statement(request.account, request.after, request.limit or 1000)
        return bank_pb2.StatementReply(references=lines)

    @contextlib.contextmanager
    def payment(self, context: grpc.ServicerContext) -> Iterator[sqlite3.Connection]:
        """One transaction; what the books refuse becomes a status."""
        try:
            with self._ledger.transaction() as transaction:
                yield transaction
        except UnknownAccount as error:
            context.abort(grpc.StatusCode.NOT_FOUND, f"no account {error}")
        except InsufficientFunds as error:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"too little on account {error}")
