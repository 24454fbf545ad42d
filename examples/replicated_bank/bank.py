"""The bank's service over books in memory; nothing here knows of groups."""

from __future__ import annotations

import threading

import grpc

from examples.bank.v1 import bank_pb2, bank_pb2_grpc

__all__ = ["MemoryBank"]


class MemoryBank(bank_pb2_grpc.BankServicer):
    """Accounts that hold nothing at first; each with a statement of its own.

    A payment's line is numbered on the account it is paid into: one number for the
    whole bank would make every payment wait for every other.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._books = bank_pb2.Books()

    def Deposit(
        self, request: bank_pb2.DepositRequest, context: grpc.ServicerContext
    ) -> bank_pb2.Receipt:
        """Pay into an account."""
        del context
        with self._lock:
            return self._pay_in(request.reference, request.account, request.cents)

    def Transfer(
        self, request: bank_pb2.TransferRequest, context: grpc.ServicerContext
    ) -> bank_pb2.Receipt:
        """Pay from one account into another."""
        with self._lock:
            giver = self._books.accounts[request.from_account]
            if giver.cents < request.cents:
                context.abort(
                    grpc.StatusCode.FAILED_PRECONDITION,
                    f"too little on account {request.from_account}",
                )
            giver.cents -= request.cents
            return self._pay_in(request.reference, request.to_account, request.cents)

    def Balance(
        self, request: bank_pb2.BalanceRequest, context: grpc.ServicerContext
    ) -> bank_pb2.BalanceReply:
        """Tell what an account holds."""
        del context
        with self._lock:
            account = self._find(request.account)
            return bank_pb2.BalanceReply(balance_cents=account.cents, entry=len(account.references))

    def Statement(
        self, request: bank_pb2.StatementRequest, context: grpc.ServicerContext
    ) -> bank_pb2.StatementReply:
        """Tell the payments into an account, in order."""
        del context
        with self._lock:
            lines = self._find(request.account).references[request.after :]
        return bank_pb2.StatementReply(references=lines[: request.limit or 1000])

    def reset(self) -> None:
        """Begin anew, as a replica does before it reads the log from its beginning."""
        with self._lock:
            self._books.Clear()

    def snapshot(self) -> bytes:
        """Return the books, for replicas that come later."""
        with self._lock:
            return self._books.SerializeToString()

    def restore(self, snapshot: bytes) -> None:
        """Take the books from a snapshot."""
        with self._lock:
            self._books.ParseFromString(snapshot)

    def _find(self, name: str) -> bank_pb2.Books.Account:
        # A map of protobuf's makes what is looked for; a read changes nothing.
        if name not in self._books.accounts:
            return bank_pb2.Books.Account()
        return self._books.accounts[name]

    def _pay_in(self, reference: str, name: str, cents: int) -> bank_pb2.Receipt:
        account = self._books.accounts[name]
        account.cents += cents
        account.references.append(reference)
        return bank_pb2.Receipt(entry=len(account.references), balance_cents=account.cents)
