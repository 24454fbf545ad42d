"""Model of the world: coincidences that a rule is there for, added to what a seed drew.

Each is drawn from dice of its own, so that the schedules without it stay what they were.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from chaos.sim.group_coincidences import (
    copies_behind_a_snapshot,
    failing_step,
    late_reads,
    late_records,
    late_starts,
    outlives_a_note,
    removed_behind_a_stall,
    unlogged_answers,
)
from chaos.sim.planned import Schedule
from chaos.sim.server_coincidences import (
    acknowledged_while_it_runs,
    claim_that_is_lost,
    expired_and_back,
    lapse_in_a_call,
    overtaken_call,
)

__all__ = ["add_coincidences"]

# One schedule of so many has late starts; all others are what they were.
_STARTED_LATE = 15
_Draw = Callable[[Random, Schedule, float], Schedule]


def add_coincidences(schedule: Schedule, active_s: float) -> Schedule:
    """Add one to what was drawn, or none; ``active_s``: calls and faults are within."""
    if schedule.kind == "curp" and schedule.seed % _STARTED_LATE == _STARTED_LATE - 2:
        dice = Random(f"curp {schedule.seed} late starts")  # noqa: S311 - repeatable, not secret
        return late_starts(dice, schedule, active_s)
    share, draws = _DRAWN.get(schedule.kind, (0.0, ()))
    dice = Random(f"{schedule.kind} {schedule.seed} coincidence")  # noqa: S311 - repeatable, not secret
    # Those that came later, in place of one of the others.
    later = Random(f"{schedule.kind} {schedule.seed} later coincidence")  # noqa: S311
    if (of_later := _DRAWN_LATER.get(schedule.kind)) and later.random() < _LATER:
        return later.choice(of_later)(later, schedule, active_s)
    last = Random(f"{schedule.kind} {schedule.seed} last coincidence")  # noqa: S311
    if (of_last := _DRAWN_LAST.get(schedule.kind)) and last.random() < _LATER:
        return last.choice(of_last)(last, schedule, active_s)
    if dice.random() >= share:
        return schedule
    return dice.choice(draws)(dice, schedule, active_s)


# By the kind of deployment: the share of schedules that have one of these.
_DRAWN: dict[str, tuple[float, tuple[_Draw, ...]]] = {
    "memory": (0.2, (overtaken_call,)),
    "sqlite": (0.4, (overtaken_call, expired_and_back, acknowledged_while_it_runs)),
    "replicas": (0.5, (lapse_in_a_call, lapse_in_a_call, claim_that_is_lost)),
    "curp": (
        0.9,
        (
            late_records,
            late_records,
            failing_step,
            failing_step,
            failing_step,
            late_reads,
            late_reads,
            unlogged_answers,
            copies_behind_a_snapshot,
        ),
    ),
}
# And of those of later, which take the place of one.
_LATER = 0.1
_DRAWN_LATER: dict[str, tuple[_Draw, ...]] = {"curp": (removed_behind_a_stall,)}
_DRAWN_LAST: dict[str, tuple[_Draw, ...]] = {"curp": (outlives_a_note,)}
