"""Machinery: a failing schedule made smaller, by fewer faults and fewer calls."""

from __future__ import annotations

from collections.abc import Callable

from chaos.sim.planned import Schedule
from chaos.sim.run import simulate

__all__ = ["shrink"]

# Schedules that are run at most.
_TRIES = 200


def shrink(schedule: Schedule) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the calls (by number) and faults (by place) that are enough to fail.

    Zeller's minimising delta debugging (2002), on faults first.
    """
    left = [_TRIES]

    def test(calls: tuple[int, ...], faults: tuple[int, ...]) -> bool:
        left[0] -= 1
        return left[0] >= 0 and bool(simulate(schedule.only(calls, faults)).problems)

    calls = tuple(call.number for call in schedule.calls)
    faults = _minimise(tuple(range(len(schedule.faults))), lambda some: test(calls, some))
    calls = _minimise(calls, lambda some: test(some, faults))
    return calls, faults


def _minimise(parts: tuple[int, ...], fails: Callable[[tuple[int, ...]], bool]) -> tuple[int, ...]:
    if fails(()):
        return ()
    pieces = 2
    while len(parts) > 1:
        size = -(-len(parts) // pieces)
        for start in range(0, len(parts), size):
            fewer = parts[:start] + parts[start + size :]
            if fewer and fails(fewer):
                parts = fewer
                pieces = max(pieces - 1, 2)
                break
        else:
            if size == 1:
                break
            pieces = min(2 * pieces, len(parts))
    return parts
