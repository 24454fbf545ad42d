"""Strikes: each fault of a scenario, with its time, drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from chaos.run.scenario import Range, Scenario

__all__ = ["Strike", "draw"]


@dataclass(frozen=True, kw_only=True)
class Strike:
    """One fault: ``at`` so many seconds after the load began, mended ``lasts`` later."""

    at: float
    lasts: float
    kind: str
    target: str
    stream: str
    toxicity: float
    attributes: Mapping[str, int]

    def __str__(self) -> str:
        """Say it in a line."""
        words = [self.kind, self.target]
        if self.stream != "both":
            words.append(self.stream)
        words += [f"{name}={value}" for name, value in self.attributes.items()]
        if self.toxicity < 1:
            words.append(f"of {self.toxicity:.0%}")
        return " ".join(words)


def draw(scenario: Scenario, seed: int) -> tuple[Strike, ...]:
    """Return the scenario's faults in the order in which they begin.

    The same for the same scenario and seed. What they hit is real, and is not.
    """
    chance = random.Random(f"{scenario.name} {seed}")  # noqa: S311 - repeatable, not secret

    def between(bounds: Range) -> float:
        return chance.uniform(*bounds)

    strikes = []
    for fault in scenario.faults:
        at = between(fault.at)
        for _ in range(fault.times):
            strikes.append(
                Strike(
                    at=at,
                    lasts=between(fault.lasts),
                    kind=fault.kind,
                    target=chance.choice(fault.targets),
                    stream=fault.stream,
                    toxicity=fault.toxicity,
                    attributes={
                        name: round(between(bounds)) for name, bounds in fault.attributes.items()
                    },
                )
            )
            at += between(fault.every)
    return tuple(sorted(strikes, key=lambda strike: strike.at))
