"""The plan of a demo's faults: drawn from a seed, counted in finished calls.

Counting calls and not seconds makes a plan mean the same on a slow machine.
"""

from __future__ import annotations

import enum
import random
from dataclasses import dataclass

__all__ = ["Fault", "PlannedFault", "plan_faults"]


class Fault(enum.Enum):
    """What breaks."""

    RESET = "reset the connections"
    DROP_ANSWERS = "drop answers, then reset"
    KILL = "SIGKILL the server"


@dataclass(frozen=True, kw_only=True)
class PlannedFault:
    """One fault, struck when ``after`` calls have finished."""

    after: int
    fault: Fault
    # How long answers are dropped; 0 for the others.
    seconds: float = 0.0

    def __str__(self) -> str:
        """Short enough for a schedule on one screen."""
        if self.fault is Fault.DROP_ANSWERS:
            return f"{self.after}: drop answers {self.seconds * 1000:.0f} ms"
        return f"{self.after}: {'KILL -9' if self.fault is Fault.KILL else 'reset'}"


def plan_faults(
    seed: int, *, calls: int, resets: int, drops: int, kills: int
) -> tuple[PlannedFault, ...]:
    """Spread the faults over a run of ``calls`` calls, in order of ``after``.

    The run is cut into as many equal parts as there are faults and each part gets
    one, so no fault hides behind another; the first and last twentieth stay
    quiet, so that everyone has finished a call before the first fault, and
    someone is still calling at the last.
    """
    chance = random.Random(seed)  # noqa: S311 - repeatable, not secret
    faults = [Fault.RESET] * resets + [Fault.DROP_ANSWERS] * drops + [Fault.KILL] * kills
    chance.shuffle(faults)
    first, last = calls // 20, calls - calls // 20
    part = (last - first) / max(1, len(faults))
    return tuple(
        PlannedFault(
            after=first + int(part * (index + chance.random())),
            fault=fault,
            seconds=chance.uniform(0.005, 0.03) if fault is Fault.DROP_ANSWERS else 0.0,
        )
        for index, fault in enumerate(faults)
    )
