"""The deduplicated bank that the recipes call, behind a path that breaks."""

from __future__ import annotations

import contextlib
import secrets
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import grpc

import rifl
from chaos.faulty_path import FaultyPath
from examples.bank.ledger import Ledger, create_books
from examples.bank.v1 import bank_pb2_grpc
from examples.wrap_server import UnluckyBank

__all__ = ["Served", "unlucky_bank"]


@dataclass(frozen=True)
class Served:
    """A bank that serves in this process, and loses its first answer."""

    bank: UnluckyBank
    ledger: Ledger
    target: str

    def environment(self) -> dict[str, str]:
        """Return what a process that calls the bank finds in its environment."""
        # Every process opens the same session, by the same secret: rifl.connect reads it there.
        return {"BANK_TARGET": self.target, "RIFL_SESSION_SECRET": secrets.token_hex(32)}


@contextlib.contextmanager
def unlucky_bank() -> Iterator[Served]:
    """Serve a bank where Alice has nothing yet."""
    with contextlib.ExitStack() as stack:
        books = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "bank.db"
        path = stack.enter_context(FaultyPath())
        create_books(books, [("alice", 0)])
        ledger = stack.enter_context(contextlib.closing(Ledger(books)))
        bank = UnluckyBank(ledger, path)
        dedup = stack.enter_context(rifl.Deduplicator("memory:"))
        server = grpc.server(ThreadPoolExecutor(8), interceptors=[dedup.interceptor()])
        bank_pb2_grpc.add_BankServicer_to_server(bank, server)
        dedup.add_to_server(server)
        path.lead_to(server.add_insecure_port("127.0.0.1:0"))
        server.start()
        stack.callback(lambda: server.stop(grace=None).wait())
        yield Served(bank, ledger, path.target)
