"""``python -m benchmarks``: rifl beside plain grpcio, in pairs, on this machine.

Server and client are processes of their own; see ``benchmarks.cases`` for what is
measured. The ratios within one run count: absolute numbers change from machine to
machine, and from minute to minute.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.cases import Case, cases
from benchmarks.pairs import Figure, compare
from benchmarks.plots import write_plot
from benchmarks.sides import running

_COLUMNS = (
    "case", "throughput", "95 %", "target", "latency", "CPU client", "server", "calls/s", "more ms"
)  # fmt: skip


def _measure(case: Case, flavor: str, pairs: int, seconds: float) -> Figure:
    with running(case.ours, flavor) as ours, running(case.theirs, flavor) as theirs:
        return compare(
            f"{flavor}, {case.callers} callers, {case.name}",
            lambda: ours(case.callers, seconds),
            lambda: theirs(case.callers, seconds),
            pairs,
        )


def _fsync_ms() -> float:
    """The median of fsyncs of a page just written, in milliseconds."""
    took: list[float] = []
    with tempfile.NamedTemporaryFile() as file:
        for _ in range(200):
            file.write(b"x" * 4096)
            file.flush()
            begin = time.perf_counter()
            os.fsync(file.fileno())
            took.append(time.perf_counter() - begin)
    return statistics.median(took) * 1e3


def _machine() -> dict[str, Any]:
    return {
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "system": platform.release(),
        "python": platform.python_version(),
        "load": [round(load, 1) for load in os.getloadavg()],
        **{name: version(name) for name in ("grpcio", "protobuf", "bitarray", "rifl")},
    }


def _row(figure: dict[str, Any]) -> Iterable[str]:
    target = figure["target"]
    more_ms = figure["latency_ms"] - figure["baseline_latency_ms"]
    allowed = "" if figure["allowed_ms"] is None else f" of {figure['allowed_ms']:.2f}"
    return (
        figure["name"],
        f"{figure['throughput']:.2f}",
        f"{figure['low']:.2f}-{figure['high']:.2f}",
        "" if target is None else f"{target:.2f}",
        f"{figure['latency']:.2f}",
        f"{figure['client_cpu']:.2f}",
        f"{figure['server_cpu']:.2f}",
        f"{figure['calls_per_s']:.0f} / {figure['baseline_calls_per_s']:.0f}",
        f"{more_ms:.2f}{allowed}",
    )


def _markdown(figures: list[dict[str, Any]]) -> str:
    rows = [_COLUMNS, ["---"] * len(_COLUMNS), *map(_row, figures)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _plots(folder: Path, figures: list[dict[str, Any]]) -> None:
    for flavor in ("sync", "aio"):
        some = [figure for figure in figures if figure["name"].startswith(flavor)]
        if some:
            title = f"Throughput to plain grpcio, {flavor} (bar: median; line: 95 %; mark: target)"
            write_plot(folder / f"performance-{flavor}.svg", title, some)


def main() -> None:
    """Measure, print a table, write every figure and the plots."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.5, help="length of one run")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--callers", type=int, help="cases with so many callers")
    parser.add_argument("--flavor", choices=["sync", "aio", "both"], default="both")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results.json"))
    parser.add_argument("--plots", type=Path, help="a folder to draw the figures into")
    arguments = parser.parse_args()
    console = Console(width=140)
    fsync_ms = _fsync_ms()
    figures: list[dict[str, Any]] = []
    for case in cases():
        for flavor in ("sync", "aio"):
            skipped = arguments.only not in case.name or arguments.callers not in (
                None,
                case.callers,
            )
            if skipped or arguments.flavor not in (flavor, "both"):
                continue
            figure = _measure(case, flavor, arguments.pairs, arguments.seconds)
            allowed_ms = None if case.fsyncs is None else case.fsyncs * fsync_ms
            figures.append({**figure._asdict(), "target": case.target, "allowed_ms": allowed_ms})
            console.print(f"{figure.name}: {figure.throughput:.2f}", style="dim")
            # Kept as it grows: a long run that is interrupted is not lost.
            content = {"machine": _machine(), "fsync_ms": fsync_ms, "figures": figures}
            arguments.out.write_text(json.dumps(content, indent=2) + "\n")
    table = Table(title=f"rifl / plain grpcio, medians of pairs; one fsync: {fsync_ms:.2f} ms")
    for column in _COLUMNS:
        table.add_column(column, justify="left" if column == "case" else "right")
    for measured in figures:
        table.add_row(*_row(measured))
    console.print(table)
    if arguments.plots is not None:
        _plots(arguments.plots, figures)
        (arguments.plots / "performance-figures.md").write_text(_markdown(figures))


if __name__ == "__main__":
    main()
