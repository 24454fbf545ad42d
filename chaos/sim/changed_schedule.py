"""Model of the world: a schedule changed, with calls in the places of others, and faults."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from random import Random

from chaos.sim.faults import PlannedFault
from chaos.sim.planned import PlannedCall, Schedule

__all__ = ["changed", "some_add"]

# So many a schedule has.
_LEAST = 5


def changed(
    schedule: Schedule,
    calls: dict[int, PlannedCall],
    faults: Iterable[PlannedFault],
    alone: tuple[float, float] | None = None,
) -> Schedule:
    """Put calls in the places of others, by those, and add faults.

    ``alone``: from when until when no other faults begin, if enough of them are left.
    """
    added, before = list(faults), list(schedule.faults)
    if alone is not None:
        kept = [fault for fault in before if not alone[0] <= fault.at <= alone[1]]
        before = kept if len(kept) + len(added) >= _LEAST else before
    changed = [calls.get(at, call) for at, call in enumerate(schedule.calls)]
    return replace(
        schedule,
        calls=tuple(sorted(changed, key=lambda call: call.at)),
        faults=tuple(sorted((*before, *added), key=lambda fault: fault.at)),
    )


def some_add(
    random: Random, schedule: Schedule, wanted: Callable[[PlannedCall], bool]
) -> tuple[int, PlannedCall] | None:
    """Draw a call that travels alone and has an effect, of a client that makes many."""
    found = [
        (at, call)
        for at, call in enumerate(schedule.calls)
        if call.client < schedule.setting.clients
        and (call.op, call.behaviour) == ("add", "effect")
        and not (call.batch or call.plain or call.session or call.messages)
        and wanted(call)
    ]
    return random.choice(found) if found else None
