"""The bank's service with one more line a payment: the answer recorded with the effect."""

from __future__ import annotations

import grpc

import rifl
from examples.bank.ledger import deposit, transfer
from examples.bank.service import Bank
from examples.bank.v1 import bank_pb2

__all__ = ["ExactBank"]


class ExactBank(Bank):
    """The same, with the answer recorded in the transaction that makes the payment."""

    def Deposit(
        self, request: bank_pb2.DepositRequest, context: grpc.ServicerContext
    ) -> bank_pb2.Receipt:
        """Pay into an account, exactly once through any crash."""
        with self.payment(context) as transaction:
            reply = deposit(transaction, request)
            rifl.record(context, reply, transaction)
            return reply

    def Transfer(
        self, request: bank_pb2.TransferRequest, context: grpc.ServicerContext
    ) -> bank_pb2.Receipt:
        """Pay from one account into another, exactly once through any crash."""
        with self.payment(context) as transaction:
            reply = transfer(transaction, request)
            rifl.record(context, reply, transaction)
            return reply
