"""The audit: every figure, from the raw tables, by code that shares nothing with the example.

It knows the tables, and that money goes from one account to another with a fee to the bank.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import redis

__all__ = ["Audit", "audit"]

_BANK = "bank"


@dataclass(frozen=True, kw_only=True)
class Audit:
    """What was counted; money in cents.

    ``overdrawn``: times that an account was below its limit. ``ledger_wrong``: requests whose
    entries are not what was decided, accounts whose balance is not the sum of its entries, and
    money that is held for nothing. ``told_wrong``: callers told otherwise than was decided.
    ``views_wrong``: accounts with another statement (as it was kept, or was made anew) or another
    balance in Redis, and words whose search finds others. ``reports_stale``: lacked what the
    caller had been told. ``longest_pause_s``: between two answers to callers.
    """

    requests: int
    decided: int
    approved: int
    declined: int
    money_before: int
    money_after: int
    overdrawn: int
    decided_twice: int
    ledger_wrong: int
    told_wrong: int
    views_wrong: int
    reports: int
    reports_stale: int
    naive_money_after: int
    naive_wrong_accounts: int
    longest_pause_s: float

    @property
    def wrong(self) -> int:
        """What must be nothing."""
        return (
            abs(self.money_after - self.money_before)
            + abs(self.requests - self.decided)
            + self.overdrawn
            + self.decided_twice
            + self.ledger_wrong
            + self.told_wrong
            + self.views_wrong
            + self.reports_stale
        )


def audit(directory: Path, bank: str, balances: str) -> Audit:
    """Count; ``bank``: the URL of the executors' database, ``balances``: that of their Redis."""
    callers = directory / "callers.db"
    asked = {row[0]: row[1:] for row in _rows(callers, "SELECT * FROM asked")}
    told = _rows(callers, "SELECT request, approved, fee, at_ns FROM told")
    reports = [seen for (seen,) in _rows(callers, "SELECT seen FROM report")]
    accounts = {row[0]: row[1:] for row in _read(bank, _ACCOUNTS)}
    entries = _read(bank, "SELECT account, request, kind, cents FROM entry ORDER BY number")
    decisions = _read(bank, "SELECT request, approved FROM decision ORDER BY number")
    decided = {request: bool(approved) for request, approved in decisions}
    opening = {name: row[0] for name, row in accounts.items()}
    sums, overdrawn = _followed(entries, opening, {name: row[1] for name, row in accounts.items()})
    naive = _naive(directory)
    expected = _naive_expected(directory, asked)
    times = sorted(at_ns for *_, at_ns in told)
    return Audit(
        requests=len(asked),
        decided=len(decided),
        approved=sum(decided.values()),
        declined=len(decided) - sum(decided.values()),
        money_before=sum(opening.values()),
        money_after=sum(row[2] for row in accounts.values()),
        overdrawn=overdrawn,
        decided_twice=len(decisions) - len(decided),
        ledger_wrong=_entries_wrong(asked, decided, entries)
        + sum(row[2] != sums[name] or any(row[3:]) for name, row in accounts.items()),
        told_wrong=_told_wrong(asked, decided, told),
        views_wrong=_views_wrong(directory, balances, opening, entries, sums)
        + _search_wrong(directory, asked, decided),
        reports=len(reports),
        reports_stale=reports.count(0),
        naive_money_after=sum(naive.values()),
        naive_wrong_accounts=sum(naive[name] != expected[name] for name in naive),
        longest_pause_s=max((after - before for before, after in pairwise(times)), default=0) / 1e9,
    )


_ACCOUNTS = "SELECT name, opening, overdraft, balance, held, coming FROM account"


def _followed(
    entries: list[Any], opening: Mapping[str, int], overdraft: Mapping[str, int]
) -> tuple[dict[str, int], int]:
    """Return what the entries amount to, and how often one left its account below its limit."""
    sums, below, last = dict(opening), 0, len(entries) - 1
    for place, (account, request, _, cents) in enumerate(entries):
        sums[account] = sums.get(account, 0) + cents
        # A payment and its charge are one.
        goes_on = place < last and entries[place + 1][:2] == (account, request)
        below += not goes_on and sums[account] < -overdraft.get(account, 0)
    return sums, below


def _entries_wrong(
    asked: Mapping[str, Any], decided: Mapping[str, bool], entries: list[Any]
) -> int:
    """Count requests that moved other money than was decided; each entry has one."""
    found: dict[str, list[tuple[str, str, int]]] = defaultdict(list)
    for account, request, kind, cents in entries:
        found[request].append((account, kind, cents))
    wrong = len(found.keys() - asked.keys())
    for request, (source, destination, cents, _) in asked.items():
        moved = sorted(found.get(request, []))
        fee = sum(each for _, kind, each in moved if kind == "fee")
        whole = [
            (source, "outgoing", -cents),
            (source, "charge", -fee),
            (destination, "incoming", cents),
            (_BANK, "fee", fee),
        ]
        wrong += moved != (sorted(whole) if decided.get(request) else [])
    return wrong


def _told_wrong(asked: Mapping[str, Any], decided: Mapping[str, bool], told: list[Any]) -> int:
    heard = Counter(request for request, *_ in told)
    return sum(heard[request] != 1 for request in asked) + sum(
        decided.get(request) != bool(approved) for request, approved, *_ in told
    )


def _views_wrong(
    directory: Path,
    balances: str,
    opening: Mapping[str, int],
    entries: list[Any],
    sums: Mapping[str, int],
) -> int:
    lines: dict[str, Counter[Any]] = defaultdict(Counter)
    for account, cents in opening.items():
        lines[account]["", "opening", cents] += 1
    for account, request, kind, cents in entries:
        lines[account][request, kind, cents] += 1
    wrong = 0
    for name in ("statements.db", "anew.db"):
        stated: dict[str, Counter[Any]] = defaultdict(Counter)
        for account, *line in _rows(
            directory / name, "SELECT account, request, kind, cents FROM line"
        ):
            stated[account][tuple(line)] += 1
        wrong += sum(lines[each] != stated[each] for each in lines.keys() | stated.keys())
    client: Any
    with contextlib.closing(redis.Redis.from_url(balances)) as client:
        kept = {name.decode(): int(cents) for name, cents in client.hgetall("balances").items()}
    return wrong + sum(kept.get(name) != sums.get(name) for name in kept.keys() | sums.keys())


def _search_wrong(directory: Path, asked: Mapping[str, Any], decided: Mapping[str, bool]) -> int:
    expected: dict[str, list[str]] = defaultdict(list)
    for request, (*_, memo) in asked.items():
        for word in set(memo.split()):
            expected[word] += [request] if decided.get(request) else []
    wrong = 0
    with contextlib.closing(sqlite3.connect(directory / "search.db", timeout=30)) as view:
        for word, requests in expected.items():
            found = view.execute(
                "SELECT request FROM payment WHERE payment MATCH ?", (f"memo: {word}",)
            )
            wrong += sorted(name for (name,) in found) != sorted(requests)
    return wrong


def _naive(directory: Path) -> dict[str, int]:
    found: dict[str, int] = defaultdict(int)
    for half in (0, 1):
        for name, balance in _rows(
            directory / f"naive-{half}.db", "SELECT name, balance FROM account"
        ):
            found[name] += balance
    return found


def _naive_expected(directory: Path, asked: Mapping[str, Any]) -> dict[str, int]:
    """Return the balances if each payment that was answered had been made once."""
    found: dict[str, int] = defaultdict(int)
    for half in (0, 1):
        for name, opening in _rows(
            directory / f"naive-{half}.db", "SELECT name, opening FROM account"
        ):
            found[name] += opening
    answered = _rows(
        directory / "callers.db", "SELECT request, fee FROM naive_told WHERE approved = 1"
    )
    for request, fee in answered:
        source, destination, cents, _ = asked[request]
        found[source] -= cents + fee
        found[destination] += cents
        found[_BANK] += fee
    return found


def _read(bank: str, query: str) -> list[Any]:
    """Read the executors' database."""
    if bank.startswith("sqlite:///"):
        return _rows(Path(bank.removeprefix("sqlite:///")), query)
    import psycopg

    with psycopg.connect(bank) as connection:
        return connection.execute(query.encode()).fetchall()


def _rows(path: Path, query: str) -> list[Any]:
    with contextlib.closing(sqlite3.connect(path, timeout=30)) as connection:
        return connection.execute(query).fetchall()
