"""Machinery: the result of one schedule's run."""

from __future__ import annotations

from dataclasses import dataclass, field

from chaos.check.history import History
from chaos.sim.faults import Coverage

__all__ = ["Result"]


@dataclass(slots=True)
class Result:
    """What came of a run. ``problems`` is empty for one that kept every promise."""

    kind: str
    seed: int
    problems: list[str]
    calls: int = 0
    faults: int = 0
    events: int = 0
    simulated_s: float = 0.0
    cpu_s: float = 0.0
    coverage: Coverage = field(default_factory=Coverage)
    outcomes: dict[str, int] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    history: History | None = None
