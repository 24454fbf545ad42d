"""Model of the world: faults that wait at their points; each schedule has the next ones."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from chaos.sim.faults import ALL, Fault, PlannedFault, Point

__all__ = ["aimed_in_turn"]


def aimed_in_turn(
    random: Random,
    turns: Sequence[tuple[Fault, Point]],
    turn: int,
    count: int,
    active_s: float,
    stopped_s: Sequence[float] = (),
) -> list[PlannedFault]:
    """Draw ``count`` faults, spread over ``active_s`` seconds, those of the turn.

    ``stopped_s``: by which of these a stop lasts longer than another fault.
    """
    apart = len(turns) // count
    faults = []
    for each in range(count):
        fault, point = turns[(turn + each * apart) % len(turns)]
        at = 0.5 + active_s * (each + random.random()) / count
        seconds = random.choice((0.05, 0.3, 1.0)) * (0.5 + random.random())
        if fault is Fault.STOP and stopped_s:
            seconds += random.choice(stopped_s)
        faults.append(PlannedFault(at, fault, seconds, ALL, random.random(), point))
    return faults
