"""The figures as rows, for the terminal and for ``docs/reference/api``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

__all__ = ["COLUMNS", "figures_page", "is_reached", "markdown", "row"]

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
    """Return a table of all ratios of throughput, and one of latency: a case a row."""
    columns = dict.fromkeys(_parts(name)[0] for name in figures)
    tables = []
    for kind in ("throughput", "latency"):
        cells: dict[str, dict[str, str]] = {}
        for name, figure in figures.items():
            column, case = _parts(name)
            cells.setdefault(case, {})[column] = _spread(figure[kind])
        rows = [(kind, *columns), ("---",) * (len(columns) + 1)]
        rows += [
            (case, *(found.get(each, "") for each in columns)) for case, found in cells.items()
        ]
        tables.append("".join(f"| {' | '.join(row)} |\n" for row in rows))
    return "\n".join(tables)


def _parts(name: str) -> tuple[str, str]:
    """The flavor with its callers, and the case."""
    flavor, callers, case = name.split(", ", 2)
    return f"{flavor}, {callers}", case


def figures_page(figures: dict[str, Any], scale: dict[str, Any], overload: dict[str, Any]) -> str:
    """Return the page of all figures of ``benchmarks/results.json``."""
    return f"""# All figures

On this page you can look up each ratio that `make bench` measured: rifl to what a row names, else
to bare grpcio; the median of pairs, with its 95 % interval. The code writes it: `make reference`.

[Performance](../../explanation/performance.md) says when and on which machine.
`benchmarks/results.json` has processor time, calls a second and fsyncs, too.

{markdown(figures)}
## Scale

{_scale(scale)}
### Several servers

Calls a second of servers over one store, by the processor time above, each with a core of its own:
until the store's core is the limit. A Redis has one thread; the others go on with more cores.

{_several(scale)}
## Overload

Eight places a server for work of 40 ms, offered 80 % of what they can do (65 % of several servers),
with deadlines of 1 s (2 s where attempts have 0.2 s); then the trigger. *bare* is grpcio, *retries*
with its own retry policy, *places* is rifl with `max_running=8`. Goodput: calls a second that were
answered in time, before, during and in the five seconds after. Arrivals: attempts at the servers a
call, during the trigger. Too late: the part of the handlers' effects then that came behind the
call's deadline. Back: seconds from the trigger's end until nine of ten calls are answered in time.
Doubled: calls with more than one effect. `make bench-overload` measures it.

While tables are locked, or Redis is dead, rifl refuses calls, as the store's heartbeat fails, and
clients' budgets hold their retries back. Bare gRPC's calls of the last second wait, and are
answered after it. A stopped Redis is as long silent as rifl waits for a reply (`timeout_s`, 5 s):
if the heartbeat fails just before it goes on, calls of the last second are refused, too.

{_overload(overload)}"""


def _scale(figures: dict[str, Any]) -> str:
    lines = ["| case | found |", "|---|---|"]
    for name, figure in figures.items():
        about = {"target", "reached", "at", "revision", "load"}
        found = ", ".join(
            f"{kind.replace('_', ' ')} {value:,}" if isinstance(value, int | float) else str(value)
            for kind, value in figure.items()
            if kind not in about
        )
        lines.append(f"| {name} | {found} |")
    return "\n".join(lines) + "\n"


_SERVERS = (1, 2, 4)


def _several(figures: dict[str, Any]) -> str:
    columns = "".join(f" {count} |" for count in (*_SERVERS, "the store's limit"))
    lines = [f"| case |{columns}", "|---|" + "---|" * (len(_SERVERS) + 1)]
    for name, figure in figures.items():
        if {"server_cpu_us", "store_cpu_us"} <= figure.keys():
            limit = 1e6 / figure["store_cpu_us"]
            found = [min(count * 1e6 / figure["server_cpu_us"], limit) for count in _SERVERS]
            cells = " | ".join(f"{each:,.0f}" for each in (*found, limit))
            lines.append(f"| {name} | {cells} |")
    return "\n".join(lines) + "\n"


OVERLOAD_COLUMNS = (
    "before",
    "during",
    "after",
    "arrivals",
    "too late",
    "back",
    "doubled",
    "shares",
)


def overload_cell(value: Any) -> str:
    """Return a figure of ``benchmarks.overload`` as text; None is a time that never came."""
    if isinstance(value, list):
        return "" if len(value) < 2 else " ".join(f"{each:.2f}" for each in value)
    return "never" if value is None else str(value)


def _overload(cases: dict[str, Any]) -> str:
    columns = "".join(f" {each} |" for each in OVERLOAD_COLUMNS)
    lines = [f"| case | side |{columns}", "|---|---|" + "---|" * len(OVERLOAD_COLUMNS)]
    about = {"at", "revision", "load"}
    for name, case in cases.items():
        for side, found in case.items():
            if side not in about:
                cells = (overload_cell(found[each]) for each in OVERLOAD_COLUMNS)
                lines.append(f"| {name} | {side} | {' | '.join(cells)} |")
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
