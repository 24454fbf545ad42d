"""Counting afterwards, in the bank's own books: effects, duplicates, what was lost."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from examples.demo.callers import Answer
from examples.demo.payments import OPENING_CENTS, Payment

__all__ = ["Audit", "audit"]


@dataclass(frozen=True, kw_only=True)
class Audit:
    """One run, counted."""

    calls: int
    # Payments made: lines on the statement.
    effects: int
    # Lines beyond the first of a payment.
    duplicates: int
    # Payments whose caller was told success and that are not on the statement.
    lost: int
    # Receipts that name the line of another payment, or none.
    wrong_receipts: int
    # Payments whose caller was never told.
    unknown: int
    # Answers that came from a completion record.
    replayed: int
    # Everything on the accounts, and what it should be: each payment once (one
    # whose caller was never told: once if it is on the statement, else not).
    balance_cents: int
    expected_cents: int
    wrong_accounts: int

    @property
    def exact(self) -> bool:
        """Whether each payment that anyone was told of is there once."""
        return not (self.duplicates or self.lost or self.wrong_receipts or self.wrong_accounts)


def audit(books: Path, payments: Sequence[Payment], answers: Mapping[str, Answer]) -> Audit:
    """Compare the books with what the callers asked for and were told."""
    with contextlib.closing(sqlite3.connect(books)) as connection:
        statement = dict(connection.execute("SELECT entry, reference FROM statement"))
        accounts = dict(connection.execute("SELECT name, cents FROM account"))
    on_statement = set(statement.values())
    told = {reference for reference, answer in answers.items() if answer.entry is not None}

    expected = dict(OPENING_CENTS)
    for payment in payments:
        if payment.reference in told or payment.reference in on_statement:
            expected[payment.to_account] += payment.cents
            if payment.from_account is not None:
                expected[payment.from_account] -= payment.cents

    return Audit(
        calls=len(payments),
        effects=len(statement),
        duplicates=len(statement) - len(on_statement),
        lost=len(told - on_statement),
        wrong_receipts=sum(
            statement.get(answers[reference].entry) != reference for reference in told
        ),
        unknown=len(payments) - len(told),
        replayed=sum(answer.replayed for answer in answers.values()),
        balance_cents=sum(accounts.values()),
        expected_cents=sum(expected.values()),
        wrong_accounts=sum(accounts.get(name) != cents for name, cents in expected.items()),
    )
