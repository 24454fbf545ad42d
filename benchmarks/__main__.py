"""``python -m benchmarks``: rifl beside plain grpcio, in pairs, on this machine.

Server and client are processes of their own; see ``benchmarks.cases`` for what is
measured. The ratios within one run count: absolute numbers change from machine to
machine, and from minute to minute. Parts (``--only``, ``--callers``, ``--flavor``) merge
into one file of results.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.cases import Case, cases
from benchmarks.databases import Databases
from benchmarks.pairs import Pair, figure_of, run_pairs
from benchmarks.plots import write_plot
from benchmarks.results import RESULTS, Results
from benchmarks.sides import running
from benchmarks.tables import COLUMNS, figures_page, is_reached, row

_FLAVORS = ("sync", "aio")


def _name(case: Case, flavor: str) -> str:
    callers = f"{case.callers} caller{'s' * (case.callers > 1)}"
    return f"{flavor}, {callers}, {case.name}"


def _all() -> Iterator[tuple[str, Case]]:
    """Every figure: its flavor and case."""
    return ((flavor, case) for flavor in _FLAVORS for case in cases() if flavor in case.flavors)


def _pairs(
    case: Case, flavor: str, databases: Databases, arguments: argparse.Namespace
) -> list[Pair]:
    """Run the pairs of a case, some on each of several pairs of servers.

    Two servers that were started alike differ by up to a tenth for as long as they run.
    """
    load = (case.callers, arguments.seconds)
    found: list[Pair] = []
    for at in range(arguments.servers):
        some = len(range(at, arguments.pairs, arguments.servers))
        with (
            running(case.ours, flavor, databases) as ours,
            running(case.theirs, flavor, databases) as theirs,
        ):
            found += run_pairs(partial(ours, *load), partial(theirs, *load), some)
    return found


def _measure(arguments: argparse.Namespace, results: Results, console: Console) -> dict[str, bool]:
    names = [_name(case, flavor) for flavor, case in _all()]
    measured = {}
    with Databases() as databases:
        for flavor, case in _all():
            wanted = arguments.only in case.name and arguments.flavor in (flavor, "both")
            if not wanted or arguments.callers not in (None, case.callers):
                continue
            figure = figure_of(_pairs(case, flavor, databases, arguments))
            run = {"servers": arguments.servers, "seconds": arguments.seconds}
            kept = {**figure.as_json(), **run, "targets": case.targets._asdict()}
            name = _name(case, flavor)
            results.put("figures", name, kept, names)
            measured[name] = is_reached(kept)
            console.print(f"{name}: {figure.throughput.median:.2f}", style="dim")
    return measured


def _plots(folder: Path, results: Results) -> None:
    for flavor in _FLAVORS:
        some = {
            name: figure
            for name, figure in results.figures().items()
            if name.startswith(f"{flavor},")
        }
        if some:
            title = f"Throughput to what it is compared with, {flavor} (bar: median; line: 95 %)"
            write_plot(folder / f"performance-{flavor}.svg", title, some)


def main() -> None:
    """Measure, print a table, write every figure and the plots."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--servers", type=int, default=3, help="how often both are started anew")
    parser.add_argument("--seconds", type=float, default=0.25, help="length of one run")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--callers", type=int, help="cases with so many callers")
    parser.add_argument("--flavor", choices=[*_FLAVORS, "both"], default="both")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--plots", type=Path, help="a folder to draw the figures into")
    parser.add_argument("--list", action="store_true", help="only name the figures")
    arguments = parser.parse_args()
    console = Console(width=160)
    if arguments.list:
        for flavor, case in _all():
            console.print(_name(case, flavor))
        return
    results = Results(arguments.out)
    measured = _measure(arguments, results, console)
    table = Table(title="rifl to what it is compared with: medians of pairs (95 %)")
    for column in COLUMNS:
        table.add_column(column, justify="left" if column == "case" else "right")
    for name, figure in results.figures().items():
        if name in measured:
            table.add_row(*row(name, figure), style=None if measured[name] else "red")
    console.print(table)
    if arguments.plots is not None:
        _plots(arguments.plots, results)
        reference = arguments.plots / "reference" / "api"
        reference.mkdir(parents=True, exist_ok=True)
        page = figures_page(results.figures(), results.scale(), results.overload())
        (reference / "performance-figures.md").write_text(page)


if __name__ == "__main__":
    main()
