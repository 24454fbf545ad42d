"""Model of the world: the schedule of a log's run, what is appended and what goes wrong."""

from __future__ import annotations

from random import Random

from chaos.sim.faults import Fault, PlannedFault, Point
from chaos.sim.planned import PlannedCall, Schedule, Setting

__all__ = ["ACTIVE_S", "FAULTS", "REQUIRED", "draw_log"]

ACTIVE_S = 20.0
_APPENDS = 200
FAULTS = (
    Fault.STORE_LOSS,
    Fault.STORE_STALL,
    Fault.DUPLICATE,
    Fault.CRASH,
    Fault.STOP,
    Fault.RESTORE,
    Fault.RETIRE,
    Fault.TAKE_OVER,
    Fault.WALL_JUMP,
)
_WRITING = (Point.APPEND, Point.PENDING, Point.MARKER)
_OTHERS = (Point.FOLLOWING, Point.HOLDING_ON, Point.NAMED, Point.TRIMMING, Point.DUTY)
_POINTS = (*_WRITING, Point.RETIRING, Point.FENCING, Point.GRANTING, *_OTHERS)
_ANYWHERE = (Fault.STORE_LOSS, Fault.STORE_STALL, Fault.DUPLICATE, Fault.CRASH, Fault.STOP)
# Where each fault has to strike: at whatever any process asks of the log.
REQUIRED = frozenset(
    [(fault.value, point.value) for fault in _ANYWHERE for point in _POINTS]
    + [
        (fault.value, point.value)
        for fault in (Fault.RETIRE, Fault.TAKE_OVER)
        for point in _WRITING
    ]
    + [
        (fault.value, Point.APPEND_IN.value)
        for fault in (Fault.STORE_LOSS, Fault.STORE_STALL, Fault.CRASH)
    ]
    + [(fault.value, Point.IDLE.value) for fault in (Fault.RESTORE, Fault.WALL_JUMP)]
)
# What is asked for, as often as it stands here.
_METHODS = ("append", "append", "append", "transaction", "transaction", "joint")
_BEHAVIOURS = {
    "append": ("plain", "plain", "fenced", "fenced", "again", "lies"),
    "transaction": ("plain", "pipelined", "pipelined", "fenced"),
    "joint": ("plain", "straggler", "straggler", "rival", "rival"),
}


def draw_log(seed: int) -> Schedule:
    """Draw the schedule of a seed."""
    random = Random(f"log {seed}")  # noqa: S311 - repeatable, not secret
    setting = Setting(
        clients=random.randint(2, 4),
        window=random.choice((1, 2, 4, 16)),
        drift=random.choice((0.0, 0.02)),
    )
    calls = []
    for number in range(1, _APPENDS + 1):
        method = random.choice(_METHODS)
        calls.append(
            PlannedCall(
                number,
                random.randrange(setting.clients),
                # Some at once, so that windows fill.
                random.random() * ACTIVE_S if number % 4 else ACTIVE_S * number / _APPENDS,
                method,
                "commit" if random.random() < 0.75 else "rollback",
                "",
                random.randint(1, 3) if method != "append" else 1,
                random.choice(_BEHAVIOURS[method]),
                0.0,
                None,
                resolves=False,
                messages=random.randint(1, 4),
            )
        )
    faults = [_draw_fault(random) for _ in range(random.randint(12, 28))]
    if random.random() < 0.3:
        at, seconds = random.uniform(1.0, 0.7 * ACTIVE_S), random.uniform(0.3, 4.0)
        faults.append(PlannedFault(at, Fault.RESTORE, seconds, 0, random.random()))
    return Schedule(
        "log",
        seed,
        setting,
        tuple(sorted(calls, key=lambda call: call.at)),
        tuple(sorted(faults, key=lambda fault: fault.at)),
    )


def _draw_fault(random: Random) -> PlannedFault:
    fault = random.choice([each for each in FAULTS if each is not Fault.RESTORE])
    at = 0.2 + random.random() * ACTIVE_S
    seconds = random.choice((0.05, 0.3, 1.0)) * (0.5 + random.random())
    aim = None
    if fault in (Fault.CRASH, Fault.STOP) and random.random() < 0.8:
        aim = random.choice(_POINTS)
    if fault in (Fault.RETIRE, Fault.TAKE_OVER) and random.random() < 0.8:
        aim = random.choice(_WRITING)
    share = random.choice((0.1, 0.3, 0.6))
    return PlannedFault(at, fault, seconds, random.randrange(60), share, aim)
