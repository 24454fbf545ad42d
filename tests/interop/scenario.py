"""The scenario that clients in other languages play, and the check of it (protocol.md)."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc

import rifl
from chaos.faulty_path import FaultyPath
from examples.bank.exact_service import ExactBank
from examples.bank.ledger import Ledger, create_books
from examples.bank.v1 import bank_pb2, bank_pb2_grpc
from tests.helpers.servers import serve

__all__ = ["HEADERS", "LosingBank", "check", "served"]

HEADERS = Path(__file__).parents[2] / "proto" / "testdata" / "headers.json"
_OK, _INVALID, _NOT_FOUND, _DENIED, _PRECONDITION, _ABORTED = 0, 3, 5, 7, 9, 10
_LOST = ("lost-2", "lost-4", "lost-6", "lost-key")


class LosingBank(ExactBank):
    """Pays, and then nobody hears the answer, where the reference says lost; once each."""

    def __init__(self, ledger: Ledger, path: FaultyPath) -> None:
        super().__init__(ledger)
        self._path = path
        self.runs: Counter[str] = Counter()

    def Deposit(  # noqa: N802 - the proto names it
        self, request: bank_pb2.DepositRequest, context: grpc.ServicerContext
    ) -> bank_pb2.Receipt:
        """Pay in."""
        receipt = super().Deposit(request, context)
        self.runs[request.reference] += 1
        if request.reference.startswith("lost"):
            threading.Thread(target=self._path.drop_answers, args=(0.0,)).start()
            assert self._path.swallowing.wait(60)
        return receipt


@contextlib.contextmanager
def served(kind: str, directory: Path) -> Iterator[tuple[str, LosingBank, Ledger]]:
    """Serve the bank, its records and its books in one file, behind a path that breaks."""
    books = directory / "bank.db"
    create_books(books, [("alice", 0)])
    with (
        FaultyPath() as path,
        contextlib.closing(Ledger(books)) as ledger,
        rifl.Deduplicator(
            f"sqlite:///{books}",
            methods={"/bank.v1.Bank/Deposit": "atomic"},
            keys_from="anyone",
        ) as dedup,
    ):
        bank = LosingBank(ledger, path)

        def add(server: Any) -> None:
            bank_pb2_grpc.add_BankServicer_to_server(bank, server)

        with serve(kind, dedup=dedup, add=add) as server:
            path.lead_to(int(server.address.rpartition(":")[2]))
            yield path.target, bank, ledger


def check(kind: str, seen: dict[str, dict[str, Any]], bank: LosingBank, ledger: Ledger) -> None:
    """Compare what a client saw, and what the server did, with the protocol."""
    granted = seen["granted"]
    assert granted["heartbeat"] == (1 if kind == "sync" else 2)
    assert granted["deduplicated"] == ["*", "/bank.v1.Bank/Deposit"]
    assert granted["term_ms"] == 60_000
    assert 0 < granted["window"] <= 512
    assert seen["vectors"]["count"] >= 7

    for entry in range(1, 7):
        paid, lost = seen[f"paid-{entry}"], entry % 2 == 0
        assert (paid["code"], paid["answer"]) == (_OK, [entry, 500 * entry])
        assert paid["outcome"] == ("replayed" if lost else "")
        assert (paid["attempts"] > 1) is lost

    def told(step: str) -> tuple[int, str, str]:
        return seen[step]["code"], seen[step]["reason"], seen[step]["outcome"]

    replayed = (_OK, "", "replayed")
    assert [told("again"), told("kept"), told("keyed"), told("keyed-again")] == [replayed] * 4
    assert seen["again"]["answer"] == seen["kept"]["answer"] == [6, 3000]
    assert seen["keyed"]["answer"] == seen["keyed-again"]["answer"] == [7, 3500]
    assert seen["keyed"]["attempts"] > 1
    assert seen["balance"]["answer"][0] == 3000
    assert seen["renewed"] == {
        "step": "renewed",
        "client_id": True,
        "term_ms": 60_000,
        "refused": "",
    }
    assert told("other-payload") == (_INVALID, "PAYLOAD_MISMATCH", "not-executed")
    assert told("wrong-token") == (_DENIED, "NOT_YOURS", "not-executed")
    assert told("refused") == (_NOT_FOUND, "", "executed")
    assert told("stale") == told("freed") == (_PRECONDITION, "STALE_RPC", "unknown")
    assert seen["resolved"]["outcome"] == 3
    assert told("too-late") == (_ABORTED, "NOT_EXECUTED", "not-executed")
    assert told("closed") == (_PRECONDITION, "SESSION_CLOSED", "unknown")
    assert told("released") == (_PRECONDITION, "LEASE_EXPIRED", "unknown")

    assert told("plain-key") == (_OK, "", "executed")
    assert told("plain-key-again") == replayed
    assert seen["plain-key"]["answer"] == seen["plain-key-again"]["answer"] == [8, 4000]

    assert ledger.balance("alice") == 4000
    assert {reference: bank.runs[reference] for reference in _LOST} == dict.fromkeys(_LOST, 1)
    with ledger.transaction() as books:
        entries = books.execute("SELECT reference FROM statement ORDER BY entry").fetchall()
    assert [reference for (reference,) in entries] == [
        "paid-1",
        "lost-2",
        "paid-3",
        "lost-4",
        "paid-5",
        "lost-6",
        "lost-key",
        "invoice",
    ]
