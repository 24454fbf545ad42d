"""The report of the demo: the fault schedule, a table of the runs, one JSON line."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from chaos.fault_plan import Fault, PlannedFault
from examples.demo.audit import Audit

__all__ = ["json_line", "print_schedule", "print_table"]

_ROWS = {
    "calls": "calls",
    "effects (lines on the statement)": "effects",
    "duplicates": "duplicates",
    "lost": "lost",
    "receipts for another payment": "wrong_receipts",
    "unknown, and reported as such": "unknown",
    "replayed": "replayed",
    "accounts with a wrong balance": "wrong_accounts",
}


def print_schedule(console: Console, seed: int, faults: Sequence[PlannedFault]) -> None:
    """Say what will happen and when, so that a run can be looked into."""
    kills = sum(fault.fault is Fault.KILL for fault in faults)
    console.print(
        f"Seed {seed}: {len(faults)} faults, {kills} of them SIGKILLs; "
        "each strikes once so many calls have finished:"
    )
    console.print("  " + " · ".join(map(str, faults)), highlight=False, style="dim")


def print_table(console: Console, runs: Mapping[str, Audit]) -> None:
    """One column a run; what must be zero is red when it is not."""
    table = Table(title="The bank's books, counted afterwards")
    table.add_column("")
    for name in runs:
        table.add_column(name, justify="right")
    for label, field in _ROWS.items():
        table.add_row(label, *(_cell(field, getattr(audit, field)) for audit in runs.values()))
    table.add_section()
    table.add_row("balance of the bank", *(_money(a.balance_cents) for a in runs.values()))
    table.add_row("expected", *(_money(a.expected_cents) for a in runs.values()))
    table.add_row("too much", *(_money(a.balance_cents - a.expected_cents) for a in runs.values()))
    console.print(table)


def json_line(
    *, calls: int, seed: int, seconds: float, plain: Audit, rifl_plain: Audit, rifl: Audit
) -> str:
    """Everything counted, on one line; ``rifl_`` without more is the exact run."""
    counted: dict[str, object] = {"calls": calls, "seed": seed, "seconds": round(seconds, 1)}
    for prefix, audit in (("plain", plain), ("rifl_plain", rifl_plain), ("rifl", rifl)):
        for field in (*_ROWS.values(), "balance_cents", "expected_cents"):
            if field != "calls":
                counted[f"{prefix}_{field}"] = getattr(audit, field)
    return json.dumps(counted)


def _cell(field: str, count: int) -> str:
    must_be_zero = field in ("duplicates", "lost", "wrong_receipts", "wrong_accounts")
    if not must_be_zero:
        return f"{count:,}"
    return f"[bold red]{count:,}[/]" if count else "[green]0[/]"


def _money(cents: int) -> str:
    return f"{cents / 100:,.2f}"
