"""Model of the world: faults at points that few schedules come to, in turn: each seed has the next.

So some hundred seeds are enough for every fault to strike at every point where it has to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from chaos.sim.fault_coverage import NETWORK, OPERATOR, REQUIRED
from chaos.sim.faults import ALL, LEADER, Fault, PlannedFault, Point
from chaos.sim.group_coincidences import FAILING
from chaos.sim.planned import PlannedCall, Schedule
from chaos.sim.turns import aimed_in_turn

__all__ = ["add_in_turn", "has_turn"]

# One seed of so many; no few, so that most schedules are as random as they were.
_ONE_IN, _PLACE = 7, 5
_AIMED, _OF_GROUPS = 8, 6
_PROCESS = {each.value for each in (Fault.CRASH, Fault.CRASH_DISK, Fault.STOP, Fault.DRAIN)}
_CLIENTS = (Fault.CLIENT_STOP, Fault.CLIENT_CRASH)
# These wait for a schedule of their own.
_ELSEWHERE = {Point.IDLE.value, Point.FIRST.value, Point.EXPIRED.value}
_TURNS = {
    kind: tuple(
        (Fault(fault), Point(point))
        for fault, point in sorted(REQUIRED[kind])
        if fault in _PROCESS and point not in _ELSEWHERE
    )
    for kind in ("memory", "sqlite", "replicas", "spark")
}
# What an operator asks for, or a crash, and what fails it, or is on the way of the request.
_FAILURES: tuple[tuple[Fault, Fault | None, Point | None], ...] = (
    *((begun, fault, point) for begun, each in FAILING.items() for fault, point in each),
    *(
        (begun, fault, None)
        for begun in (Fault.WITNESS_CHANGE, Fault.TRANSFER)
        for fault in (Fault.LOSS, Fault.DUPLICATE, Fault.PARTITION, Fault.PARTITION_FROM)
    ),
    *((begun, None, Point.RECORD) for begun in OPERATOR),
    *((Fault.STOP, None, point) for point in (Point.RENEWING, Point.RENEWED)),
)


def has_turn(seed: int) -> bool:
    """Whether the schedule of a seed has faults in turn."""
    return seed % _ONE_IN == _PLACE


def add_in_turn(schedule: Schedule, active_s: float) -> Schedule:
    """Add the next faults to what was drawn, if it is the turn of the schedule's seed."""
    kind, seed = schedule.kind, schedule.seed
    if not has_turn(seed):
        return schedule
    # Of their own dice, so that what was drawn stays what it was.
    random = Random(f"{kind} {seed} in turn")  # noqa: S311 - repeatable, not secret
    turn = seed // _ONE_IN
    faults = _at_clients(schedule, random)
    if kind == "curp":
        faults += _in_groups(random, turn, active_s)
    else:
        if kind in ("memory", "sqlite"):
            # They share the seeds.
            turn //= 2
        faults += _on_the_way(schedule, random)
        turns = _TURNS[kind]
        if any(call.plain for call in schedule.calls):
            # Nothing is promised to these without the disk.
            turns = tuple(each for each in turns if each[0] is not Fault.CRASH_DISK)
        faults += aimed_in_turn(random, turns, turn, _AIMED, active_s)
    return replace(
        schedule, faults=tuple(sorted((*schedule.faults, *faults), key=lambda fault: fault.at))
    )


def _at_clients(schedule: Schedule, random: Random) -> list[PlannedFault]:
    """Have clients end, or stop, just when they have called."""
    last = schedule.setting.clients - 1
    return [
        PlannedFault(call.at + 0.002, fault, 0.2 * random.random(), last - call.client, 0.5)
        for fault in _CLIENTS
        if (call := random.choice(schedule.calls)).client <= last
    ]


def _on_the_way(schedule: Schedule, random: Random) -> list[PlannedFault]:
    """Have all that can go wrong on the way do so, one after the other, when streams are made."""
    faults = []
    for fault in NETWORK:
        call = random.choice(_streams(schedule.calls))
        at, seconds, share = call.at - 0.001, 0.3 + 0.5 * random.random(), 0.5
        aim = Point.HALF_MADE if fault is Fault.RESET else None
        faults += [
            PlannedFault(at, fault, seconds, server, share, aim)
            for server in range(schedule.setting.servers)
        ]
    return faults


def _streams(calls: Sequence[PlannedCall]) -> Sequence[PlannedCall]:
    """Return the calls with response streams, or with others if there is none."""
    return (
        [call for call in calls if call.method.endswith("Telling")]
        or [call for call in calls if call.messages]
        or calls
    )


def _in_groups(random: Random, turn: int, active_s: float) -> list[PlannedFault]:
    faults = []
    for each in range(_OF_GROUPS):
        apart = len(_FAILURES) // _OF_GROUPS
        begun, fault, point = _FAILURES[(turn + each * apart) % len(_FAILURES)]
        at = 0.5 + active_s * (each + random.random()) / _OF_GROUPS
        if fault is None:
            faults.append(PlannedFault(at, begun, 1.0 + random.random(), LEADER, 0.5, point))
            continue
        # On the way of it; or where it is carried out, by any server.
        target, seconds = (LEADER, 0.3) if point is None else (ALL, 0.1 + random.random())
        if fault is Fault.STOP:
            seconds += 1.0
        faults.append(PlannedFault(at - 0.001, fault, seconds, target, 0.7, point))
        # Once more in case no replica led.
        faults += [PlannedFault(when, begun, 0.5, LEADER, 0.9) for when in (at, at + 1.5)]
    return faults
