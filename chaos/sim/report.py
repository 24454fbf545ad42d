"""Machinery: the report of many runs, as text."""

from __future__ import annotations

from collections.abc import Iterator

from chaos.sim.pool import Tally

__all__ = ["lines", "unhit"]


def lines(tally: Tally, wall_s: float) -> Iterator[str]:
    """Describe a tally."""
    kinds = ", ".join(f"{count} {kind}" for kind, count in tally.by_kind.items())
    yield f"{tally.runs} schedules ({kinds}): {tally.calls} calls, {tally.faults} faults"
    outcomes = ", ".join(f"{count} {name}" for name, count in sorted(tally.outcomes.items()))
    yield f"outcomes told: {outcomes}"
    yield (
        f"{tally.simulated_s:.0f} s simulated in {wall_s:.1f} s "
        f"({tally.simulated_s / max(wall_s, 1e-9):.0f} to one); {tally.events} events, "
        f"{tally.events / max(wall_s, 1e-9):.0f} a second; "
        f"{1000 * tally.cpu_s / max(tally.runs, 1):.1f} ms of processor a schedule"
    )
    for kind, coverage in tally.coverage.items():
        yield f"{kind}: faults by the point where they struck"
        by_fault: dict[str, list[str]] = {}
        for (fault, point), count in sorted(coverage.items()):
            by_fault.setdefault(fault, []).append(f"{point} {count}")
        for fault, points in by_fault.items():
            yield f"  {fault}: {', '.join(points)}"


def unhit(tally: Tally, wanted: dict[str, frozenset[tuple[str, str]]]) -> Iterator[str]:
    """Name every fault that never struck at a point where it has to."""
    for kind, cells in wanted.items():
        if kind not in tally.coverage:
            continue
        for fault, point in sorted(cells - set(tally.coverage[kind])):
            yield f"{kind}: {fault} never struck at {point}"
