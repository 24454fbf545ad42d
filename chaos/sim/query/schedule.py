"""Model of the world: the schedule of queries, which rows come when and what goes wrong."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from chaos.sim.faults import Fault, PlannedFault, Point
from chaos.sim.planned import PlannedCall, Schedule, Setting
from chaos.sim.turns import aimed_in_turn

__all__ = ["ACTIVE_S", "FAULTS", "ONE_IN", "REQUIRED", "draw_query"]

ACTIVE_S = 9.0
# One seed in so many is run where other kinds are run, too, and has faults in turn.
ONE_IN = 3
# How many such faults a schedule has.
_IN_TURN = 4
_ROWS = 200
FAULTS = (
    Fault.STORE_LOSS,
    Fault.STORE_STALL,
    Fault.DUPLICATE,
    Fault.CRASH,
    Fault.STOP,
    Fault.WALL_JUMP,
    Fault.TASK_FAILED,
    Fault.SPECULATION,
    Fault.COPY,
)
_OF_TASKS = (Point.JOINING, Point.GRANTING, Point.PENDING, Point.FOLLOWING)
_OF_BATCHES = (*_OF_TASKS, Point.PLANNING, Point.CLOSING)
_AIMED = {
    # The driver dies: wherever it or what it began is.
    Fault.CRASH: (*_OF_BATCHES, Point.CLOSING, Point.CLOSING, Point.HOLDING_ON, Point.ABANDONING),
    Fault.STOP: (*_OF_BATCHES, Point.CLOSING, Point.DUTY),
    Fault.TASK_FAILED: _OF_TASKS,
    Fault.SPECULATION: _OF_TASKS,
    Fault.COPY: _OF_BATCHES,
}
# Where each fault has to strike.
REQUIRED = frozenset(
    [
        (fault.value, point.value)
        for fault in (Fault.CRASH, Fault.STORE_LOSS, Fault.STORE_STALL)
        for point in (*_OF_BATCHES, Point.HOLDING_ON)
    ]
    + [(Fault.CRASH.value, Point.ABANDONING.value), (Fault.STORE_LOSS.value, Point.SIGNING.value)]
    + [(Fault.STOP.value, point.value) for point in (*_OF_BATCHES, Point.DUTY)]
    + [
        (fault.value, point.value)
        for fault in (Fault.TASK_FAILED, Fault.SPECULATION)
        for point in _OF_TASKS
    ]
    + [
        (Fault.DUPLICATE.value, point.value)
        for point in _OF_BATCHES
        if point is not Point.FOLLOWING
    ]
    + [(Fault.COPY.value, point.value) for point in _OF_BATCHES]
    + [(Fault.WALL_JUMP.value, Point.IDLE.value)]
)
# Of those the ones that can be aimed: copies are made when an actor asks.
_TURNS = tuple(
    (Fault(fault), Point(point))
    for fault, point in sorted(REQUIRED)
    if fault not in (Fault.DUPLICATE.value, Fault.WALL_JUMP.value)
)


def draw_query(seed: int) -> Schedule:
    """Draw the schedule of a seed."""
    random = Random(f"query {seed}")  # noqa: S311 - repeatable, not secret
    calls = [
        _call(number, ACTIVE_S * random.random(), "publish", 1) for number in range(1, _ROWS + 1)
    ]
    for number in range(_ROWS + 1, _ROWS + 1 + random.randint(1, 3)):
        method = random.choice(("job", "write"))
        calls.append(_call(number, ACTIVE_S * random.random(), method, random.randint(1, 12)))
    faults = [_draw_fault(random) for _ in range(random.randint(8, 20))]
    if random.random() < 0.5:
        # What one of two copies commits the other one may take for its own.
        faults += [_fault(random, Fault.COPY) for _ in range(random.randint(1, 2))]
    if not seed % ONE_IN:
        dice = Random(f"query in turn {seed}")  # noqa: S311 - repeatable, not secret
        faults += aimed_in_turn(dice, _TURNS, seed // ONE_IN, _IN_TURN, ACTIVE_S)
    # Of some jobs an operator has the names forgotten, once they are done.
    calls = [
        replace(each, method="forgotten")
        if each.method == "job" and random.random() < 0.5
        else each
        for each in calls
    ]
    return Schedule(
        "query",
        seed,
        Setting(clients=2),
        tuple(sorted(calls, key=lambda call: call.at)),
        tuple(sorted(faults, key=lambda fault: fault.at)),
    )


def _call(number: int, at: float, method: str, messages: int) -> PlannedCall:
    return PlannedCall(
        number, 0, at, method, "", "", 1, "", 0.0, None, resolves=False, messages=messages
    )


def _draw_fault(random: Random) -> PlannedFault:
    return _fault(random, random.choice([each for each in FAULTS if each is not Fault.COPY]))


def _fault(random: Random, fault: Fault) -> PlannedFault:
    at = 0.2 + random.random() * ACTIVE_S
    seconds = random.choice((0.05, 0.3, 1.0, 4.0)) * (0.5 + random.random())
    if fault is Fault.STORE_STALL:
        seconds = min(seconds, 1.5)
    points = _AIMED.get(fault)
    aim = random.choice(points) if points and random.random() < 0.9 else None
    return PlannedFault(at, fault, seconds, random.randrange(60), random.random(), aim)
