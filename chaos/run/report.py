"""The report of runs: a table, JSON, and a page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from chaos.run.page import page
from chaos.run.pauses import longest_pause, pauses
from chaos.run.run import Result

__all__ = ["facts", "print_table", "write"]

_COLUMNS = ("calls", "executed", "replayed", "not-executed", "unknown", "effects")


def print_table(console: Console, results: Sequence[Result]) -> None:
    """One row a run; below it what was wrong, and how to run it again."""
    table = Table(title="Real faults")
    table.add_column("scenario")
    for name in ("seed", "faults", *_COLUMNS, "pause", "took"):
        table.add_column(name, justify="right")
    table.add_column("")
    for result in results:
        table.add_row(
            result.scenario.name,
            str(result.seed),
            str(len(result.faults)),
            *(f"{result.counts.get(name, 0):,}" for name in _COLUMNS),
            f"{longest_pause(result.history):.1f} s",
            f"{result.seconds:.1f} s",
            "[green]held[/]" if result.good else "[bold red]BROKEN[/]",
        )
    console.print(table)
    for result in results:
        if result.complaints:
            console.print(f"{result.scenario.name}, seed {result.seed}:", highlight=False)
            console.print(result.complaints, style="dim", markup=False, highlight=False)
    # Last, where who reads only the end of it finds it.
    for result in results:
        if not result.good:
            again = f"python -m chaos.run {result.scenario.name} --seed {result.seed}"
            console.print(again, style="bold", highlight=False)
            for problem in result.problems:
                console.print(f"  {problem}", style="red", markup=False, highlight=False)


def facts(results: Sequence[Result]) -> dict[str, Any]:
    """Return what the JSON report says."""
    return {
        "good": all(result.good for result in results),
        "seconds": round(sum(result.seconds for result in results), 1),
        "runs": [
            {
                "scenario": result.scenario.name,
                "title": result.scenario.title,
                "seed": result.seed,
                "good": result.good,
                "seconds": round(result.seconds, 1),
                "counts": result.counts,
                "problems": result.problems,
                "faults": [
                    {
                        "fault": str(struck.fault),
                        "target": struck.target,
                        "began_s": round(struck.began, 3),
                        "ended_s": round(struck.ended, 3),
                    }
                    for struck in result.faults
                ],
                "pauses_s": [
                    [round(begin, 3), round(end, 3)] for begin, end in pauses(result.history)
                ],
            }
            for result in results
        ],
    }


def write(directory: Path, results: Sequence[Result]) -> None:
    """Write ``report.txt``, ``report.json``, ``index.html``, and every history.

    ``python -m chaos.check`` reads the histories again.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "report.txt").open("w") as file:
        print_table(Console(file=file, width=140), results)
    (directory / "report.json").write_text(json.dumps(facts(results), indent=1) + "\n")
    (directory / "index.html").write_text(page(results))
    for result in results:
        result.history.write(directory / f"{result.scenario.name}-{result.seed}.jsonl")
