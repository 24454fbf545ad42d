"""The report of the demo: the fault schedule, a table of the runs, one JSON line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Literal, NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from chaos.fault_plan import Fault, PlannedFault
from examples.demo.audit import Audit

__all__ = [
    "COLUMNS",
    "FIELDS",
    "Cell",
    "Row",
    "json_line",
    "print_schedule",
    "print_table",
    "rows_of",
]

COLUMNS = ("gRPC's retries", "rifl, unchanged", "rifl, atomic")
# What each line counts.
FIELDS = {
    "calls": "calls",
    "effects (lines on the statement)": "effects",
    "duplicates": "duplicates",
    "lost": "lost",
    "receipts for another payment": "wrong_receipts",
    "unknown, and reported as such": "unknown",
    "replayed": "replayed",
    "accounts with a wrong balance": "wrong_accounts",
}
_MUST_BE_ZERO = ("duplicates", "lost", "wrong_receipts", "wrong_accounts")
_STYLES = {"good": "green", "bad": "bold red", "": ""}


class Cell(NamedTuple):
    """A count, and whether it is what must be zero."""

    text: str
    verdict: Literal["good", "bad", ""] = ""


class Row(NamedTuple):
    """A line of the table: one cell a run."""

    label: str
    cells: tuple[Cell, ...]


def rows_of(runs: Sequence[Audit]) -> list[Row]:
    """Return the lines of the table: counts, then money."""
    counts = [
        Row(label, tuple(_cell(field, getattr(audit, field)) for audit in runs))
        for label, field in FIELDS.items()
    ]
    money = {
        "balance of the bank": [audit.balance_cents for audit in runs],
        "expected": [audit.expected_cents for audit in runs],
        "too much": [audit.balance_cents - audit.expected_cents for audit in runs],
    }
    return counts + [
        Row(label, tuple(Cell(f"{cents / 100:,.2f}") for cents in each))
        for label, each in money.items()
    ]


def print_schedule(console: Console, seed: int, faults: Sequence[PlannedFault]) -> None:
    """Say what will happen and when, so that a run can be looked into."""
    kills = sum(fault.fault is Fault.KILL for fault in faults)
    console.print(
        f"Seed {seed}: {len(faults)} faults, {kills} of them SIGKILLs; "
        "each strikes once so many calls have finished:"
    )
    console.print("  " + " · ".join(map(str, faults)), highlight=False, style="dim")


def print_table(console: Console, runs: Sequence[Audit]) -> None:
    """One column a run; what must be zero is red when it is not."""
    table = Table(title="The bank's books, counted afterwards")
    table.add_column("")
    for name in COLUMNS:
        table.add_column(name, justify="right")
    for number, row in enumerate(rows_of(runs)):
        if number == len(FIELDS):
            table.add_section()
        table.add_row(row.label, *(Text(text, _STYLES[how]) for text, how in row.cells))
    console.print(table)


def json_line(
    *, calls: int, seed: int, seconds: float, plain: Audit, rifl_plain: Audit, rifl: Audit
) -> str:
    """Everything counted, on one line; ``rifl_`` without more is the exact run."""
    counted: dict[str, object] = {"calls": calls, "seed": seed, "seconds": round(seconds, 1)}
    for prefix, audit in (("plain", plain), ("rifl_plain", rifl_plain), ("rifl", rifl)):
        for field in (*FIELDS.values(), "balance_cents", "expected_cents"):
            if field != "calls":
                counted[f"{prefix}_{field}"] = getattr(audit, field)
    return json.dumps(counted)


def _cell(field: str, count: int) -> Cell:
    if field not in _MUST_BE_ZERO:
        return Cell(f"{count:,}")
    return Cell(f"{count:,}", "bad" if count else "good")
