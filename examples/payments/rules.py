"""The rules: what the log's messages say, who has which account, and what a payment costs.

One stream has all that concerns accounts: each message is in the substream of its account, so
that one executor decides for an account, in one order. A service gets its decisions by a stream of
its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from random import Random
from typing import Any, NamedTuple

import sharedlog

__all__ = [
    "ACCOUNTS",
    "BANK",
    "LARGE",
    "Account",
    "Payment",
    "account_of",
    "create",
    "decisions_of",
    "fee_of",
    "payment_of",
    "publishing",
]

ACCOUNTS, SUBSTREAMS = "accounts", 8
# The account that fees go to.
BANK = "bank"
# The other account is asked about a payment of more.
LARGE = 5_000
_WORDS = ("rent", "tea", "books", "lamp", "train", "garden", "music", "paint", "gift", "repair")


class Account(NamedTuple):
    """A new account, in cents. ``cap``: it takes no large payment beyond that."""

    name: str
    opening: int
    overdraft: int
    cap: int


class Payment(NamedTuple):
    """What is asked for; ``request`` is its name, by which it is done once."""

    request: str
    source: str
    destination: str
    cents: int
    memo: str


def account_of(number: int) -> Account:
    """Return an account; every third may be overdrawn."""
    overdraft = 5_000 if number % 3 == 0 else 0
    return Account(f"account {number}", 10_000, overdraft, 25_000)


def payment_of(number: int, accounts: int) -> Payment:
    """Return a payment between two of so many accounts; every tenth is large."""
    dice = Random(f"payment {number}")  # noqa: S311 - repeatable, not secret
    source, destination = dice.sample(range(accounts), 2)
    cents = dice.randrange(LARGE, 9_000) + 1 if number % 10 == 0 else dice.randrange(1, 2_000)
    memo = " ".join(dice.sample(_WORDS, 2))
    return Payment(f"payment {number}", f"account {source}", f"account {destination}", cents, memo)


def fee_of(cents: int) -> int:
    """Return the fee of a payment: half a percent, a cent at least."""
    return max(1, cents // 200)


def decisions_of(service: str) -> str:
    """Return the stream by which a service gets its decisions."""
    return f"decided-{service}"


def publishing(kind: str, said: Mapping[str, Any] | None = None, **more: Any) -> bytes:
    """Return a message's value; ``said``: by the message that it follows from."""
    return json.dumps({**(said or {}), **more, "kind": kind}).encode()


def create(log: sharedlog.Log, accounts: int, services: list[str]) -> list[Account]:
    """Make the streams, and open the accounts; what executors and views know is in the log."""
    log.stream(ACCOUNTS, substreams=SUBSTREAMS)
    for service in services:
        log.stream(decisions_of(service), substreams=1)
    opened = [*map(account_of, range(accounts)), Account(BANK, 0, 0, 0)]
    with log.producer().transaction() as transaction:
        for account in opened:
            value = publishing("opened", account._asdict())
            transaction.publish(ACCOUNTS, value, key=account.name)
    return opened
