"""The figures as rows, for the terminal and for ``docs/performance-figures.md``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

__all__ = ["COLUMNS", "is_reached", "markdown", "row", "scale_markdown"]

COLUMNS = (
    "case", "throughput", "latency", "CPU client", "CPU server", "calls/s", "ms more", "to reach"
)  # fmt: skip


def row(name: str, figure: dict[str, Any]) -> tuple[str, ...]:
    """Return a figure's cells: ratios with their 95 % intervals."""
    calls = f"{figure['calls_per_s']:.0f} / {figure['baseline_calls_per_s']:.0f}"
    more = f"{figure['more_ms']['median']:.2f}"
    if figure["targets"].get("fsyncs") is not None:
        more += f" = {_spread(figure['fsyncs'])} fsyncs"
    ratios = (_spread(figure[kind]) for kind in ("throughput", "latency", "client_cpu"))
    return (name, *ratios, f"{figure['server_cpu']['median']:.2f}", calls, more, _aims(figure))


def is_reached(figure: dict[str, Any]) -> bool:
    """Whether the medians reach every target that the figure has."""
    return all(reached for *_, reached in _targets(figure))


def markdown(figures: dict[str, Any]) -> str:
    """Return a table of all figures."""
    rows = [COLUMNS, ("---",) * len(COLUMNS), *(row(*item) for item in figures.items())]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in rows)


def scale_markdown(figures: dict[str, Any]) -> str:
    """Return a table of the scale figures."""
    lines = ["| case | found | to reach |", "|---|---|---|"]
    for name, figure in figures.items():
        about = {"target", "reached", "at", "revision", "load"}
        found = ", ".join(
            f"{kind.replace('_', ' ')} {value:,}" if isinstance(value, int | float) else str(value)
            for kind, value in figure.items()
            if kind not in about
        )
        missed = "" if figure.get("reached", True) else " (missed)"
        target = ", ".join(
            f"{kind.replace('_', ' ')} at most {value:g}{missed}"
            for kind, value in figure.get("target", {}).items()
        )
        lines.append(f"| {name} | {found} | {target} |")
    return "\n".join(lines) + "\n"


def _targets(figure: dict[str, Any]) -> Iterator[tuple[str, float, bool]]:
    for kind, target in figure["targets"].items():
        if target is not None:
            found = figure[kind]["median"]
            yield kind, target, found >= target if kind == "throughput" else found <= target


def _aims(figure: dict[str, Any]) -> str:
    words = {"client_cpu": "CPU client", "server_cpu": "CPU server"}
    return ", ".join(
        f"{words.get(kind, kind)} {target:g}{'' if reached else ' (missed)'}"
        for kind, target, reached in _targets(figure)
    )


def _spread(spread: dict[str, float]) -> str:
    return f"{spread['median']:.2f} ({spread['low']:.2f}-{spread['high']:.2f})"
