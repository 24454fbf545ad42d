"""The ledger that ``chaos.run.service`` writes, read afterwards."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

from chaos.check import History

__all__ = ["read_ledger"]


def read_ledger(path: Path, history: History) -> None:
    """Put every effect into the history, at its time, and what the accounts hold.

    The history's events have to be in order of time; they still are afterwards.
    """
    with contextlib.closing(sqlite3.connect(path)) as connection:
        rows = connection.execute(
            "SELECT at, call, account, version, total FROM effect ORDER BY entry"
        ).fetchall()
    finals: dict[str, tuple[int, int]] = {}
    for at, call, account, version, total in rows:
        history.effect(at, call, account, version)
        finals[account] = version, total
    # An effect's time is taken before its answer leaves: stable, it comes before the end.
    history.events.sort(key=lambda event: float(event["at"]))
    for account, (version, total) in finals.items():
        history.final(account, version, total)
