"""A service on SQLAlchemy whose effects and answers are one transaction.

The handler has ``rifl.transaction`` in place of ``session.begin()``, and ``rifl.record``. The
connection breaks right after the commit, and the retry is answered from the record. Needs
SQLAlchemy (extra ``rifl-grpc[examples]``). Run it: ``python -m examples.sqlalchemy_service``.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
from sqlalchemy import Engine, ForeignKey, create_engine, func, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import rifl
from chaos.faulty_path import FaultyPath
from examples.bank.v1 import bank_pb2, bank_pb2_grpc
from examples.checking import expect


class Base(DeclarativeBase):
    """The tables of the bank."""


class Account(Base):
    """A customer's money."""

    __tablename__ = "account"
    name: Mapped[str] = mapped_column(primary_key=True)
    cents: Mapped[int]


class Entry(Base):
    """One line of the statement."""

    __tablename__ = "statement"
    number: Mapped[int] = mapped_column(primary_key=True)
    account: Mapped[str] = mapped_column(ForeignKey("account.name"))
    reference: Mapped[str]
    cents: Mapped[int]


class Bank(bank_pb2_grpc.BankServicer):
    """Each payment is one transaction; its path to its clients breaks once."""

    def __init__(self, engine: Engine, path: FaultyPath) -> None:
        self._engine = engine
        self._path = path
        self.runs: Counter[str] = Counter()

    def Deposit(
        self, request: bank_pb2.DepositRequest, context: grpc.ServicerContext
    ) -> bank_pb2.Receipt:
        """Pay in, exactly once through any crash."""
        self.runs[request.reference] += 1
        with Session(self._engine) as session, rifl.transaction(context, session):
            # The first statement writes: SQLite's transactions begin with a write.
            entry = Entry(account=request.account, reference=request.reference, cents=request.cents)
            session.add(entry)
            session.flush()
            account = session.get_one(Account, request.account)
            account.cents += request.cents
            receipt = bank_pb2.Receipt(entry=entry.number, balance_cents=account.cents)
            rifl.record(context, receipt, session)
            if request.cents <= 0:
                # It rolls back, the record with it: this call has not happened.
                raise ValueError("a deposit is positive")
        if request.reference == "rent":
            self._path.reset()
        return receipt


def main() -> None:
    """Deposit over a path that breaks; then fail after the record was written."""
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        path = stack.enter_context(FaultyPath())
        engine = create_engine(f"sqlite:///{directory / 'bank.db'}")
        stack.callback(engine.dispose)
        Base.metadata.create_all(engine)
        with Session(engine) as session, session.begin():
            session.add(Account(name="alice", cents=0))

        bank = Bank(engine, path)
        dedup = stack.enter_context(
            rifl.Deduplicator(
                f"sqlite:///{directory / 'bank.db'}", methods={"/bank.v1.Bank/Deposit": "atomic"}
            )
        )
        server = grpc.server(ThreadPoolExecutor(8), interceptors=[dedup.interceptor()])
        bank_pb2_grpc.add_BankServicer_to_server(bank, server)
        dedup.add_to_server(server)
        path.lead_to(server.add_insecure_port("127.0.0.1:0"))
        server.start()
        stack.callback(lambda: server.stop(grace=None).wait())

        with rifl.connect(path.target) as channel:
            stub = bank_pb2_grpc.BankStub(channel)
            rent = bank_pb2.DepositRequest(reference="rent", account="alice", cents=500)
            receipt = stub.Deposit(rent, timeout=30)
            expect("balance on the receipt", receipt.balance_cents, 500)
            expect("times the handler ran", bank.runs["rent"], 1)
            nothing = bank_pb2.DepositRequest(reference="nothing", account="alice", cents=-1)
            try:
                stub.Deposit(nothing, timeout=30)
            except grpc.RpcError as error:
                outcome = getattr(error, "outcome", None)
                expect("outcome of what rolled back", outcome, rifl.Outcome.NOT_EXECUTED)
            else:
                raise SystemExit("FAILED  a handler that raised was answered")

        with Session(engine) as session:
            entries = session.scalar(select(func.count()).select_from(Entry))
            expect("lines on the statement", entries, 1)
            expect("balance", session.get_one(Account, "alice").cents, 500)


if __name__ == "__main__":
    main()
