"""Model of the world: the schedule of a player's run, its targets and what goes wrong."""

from __future__ import annotations

from random import Random

from chaos.sim.faults import Fault, PlannedFault, Point
from chaos.sim.planned import PlannedCall, Schedule, Setting
from chaos.sim.turns import aimed_in_turn

__all__ = ["ACTIVE_S", "CALM", "FAULTS", "ONE_IN", "REQUIRED", "draw_player", "kills"]

ACTIVE_S = 20.0
_APPENDS = 200
# One schedule in so many has one target that hangs, and nothing else that goes wrong.
CALM = 8
# And one has messages that kill the process which is called with them, and clocks that jump.
_KILLS = 3
# One seed in so many is run where other kinds are run, too, and has faults in turn unless it is
# calm. No factor of ``CALM``.
ONE_IN = 23
# How many such faults a schedule has.
_IN_TURN = 6
FAULTS = (
    Fault.STORE_LOSS,
    Fault.STORE_STALL,
    Fault.DUPLICATE,
    Fault.DELAY,
    Fault.RESET,
    Fault.PARTITION,
    Fault.CRASH,
    Fault.STOP,
    Fault.DRAIN,
    Fault.FULL_DISK,
    Fault.RESTORE,
    Fault.WIPE,
    Fault.HANG,
    Fault.PAUSE,
    Fault.REPLAY,
    Fault.WALL_JUMP,
)
_OF_LOG = (Point.DUTY, Point.FOLLOWING, Point.HOLDING_ON, Point.BINDING, Point.TELLING)
_OF_LINK = (Point.ASKED_WHERE, Point.DELIVERY)
_OF_TARGET = (Point.HANDLER, Point.EFFECT, Point.COMMITTING, Point.INDEX)
_STATES = (
    Point.TARGET_S,
    Point.TARGET_ASKED,
    Point.TARGET_RF,
    Point.TARGET_FC,
    Point.TARGET_N,
)
_POINTS = (*_OF_LOG, Point.NAMED, *_OF_LINK, *_OF_LINK, *_OF_TARGET, *_OF_TARGET)
# Upon what each strikes, most often.
_AIMED: dict[Fault, tuple[Point | None, ...]] = {
    Fault.CRASH: _POINTS,
    Fault.STOP: _POINTS,
    Fault.PARTITION: (Point.HANDLER, Point.ASKED_WHERE),
    Fault.STORE_LOSS: (Point.NAMED, None, None),
    Fault.RESTORE: (Point.COMMITTING, Point.HANDLER, Point.INDEX),
    Fault.WIPE: (Point.COMMITTING, Point.HANDLER, Point.INDEX),
}
_RARELY = (Fault.RESTORE, Fault.WIPE, Fault.REPLAY)


def _cells(faults: tuple[Fault, ...], points: tuple[Point, ...]) -> frozenset[tuple[str, str]]:
    return frozenset((fault.value, point.value) for fault in faults for point in points)


# Where each fault has to strike.
REQUIRED = (
    _cells(
        (Fault.CRASH, Fault.STOP),
        (*_OF_LOG, Point.NAMED, *_OF_LINK, *_OF_TARGET, *_STATES),
    )
    | _cells((Fault.STORE_LOSS, Fault.STORE_STALL), (*_OF_LOG, Point.NAMED))
    | _cells((Fault.STORE_LOSS, Fault.FULL_DISK), (Point.COMMITTING, Point.INDEX))
    | _cells(
        (Fault.DELAY, Fault.PARTITION),
        (*_OF_LINK, Point.TOLD_WHERE, Point.DELIVERED),
    )
    | _cells((Fault.DUPLICATE, Fault.RESET), (Point.DELIVERY,))
    | _cells((Fault.DRAIN,), (Point.TARGET_N,))
    | _cells((Fault.RESTORE, Fault.WIPE), (Point.IDLE, Point.HANDLER, Point.COMMITTING))
    | _cells((Fault.HANG,), (Point.HANDLER,))
    | _cells((Fault.PAUSE, Fault.REPLAY, Fault.WALL_JUMP), (Point.IDLE,))
)
_AT_STORES = (Point.COMMITTING, Point.INDEX)
# Of those the ones that can be aimed: a state is of all points of a player, an answer of its
# question, and what is idle of none.
_TURNS = tuple(
    (fault, point)
    for faults, points in (
        ((Fault.CRASH, Fault.STOP), (*_OF_LOG, Point.NAMED, *_OF_LINK, *_OF_TARGET)),
        ((Fault.STORE_LOSS, Fault.STORE_STALL), (*_OF_LOG, Point.NAMED)),
        ((Fault.STORE_LOSS, Fault.FULL_DISK), _AT_STORES),
        ((Fault.DELAY, Fault.PARTITION), _OF_LINK),
        ((Fault.RESTORE, Fault.WIPE), (Point.HANDLER, Point.COMMITTING)),
    )
    for fault in faults
    for point in points
)
_METHODS = ("append", "append", "append", "transaction", "transaction", "joint")
_BEHAVIOURS = {
    "append": ("plain", "plain", "again"),
    "transaction": ("plain", "pipelined"),
    "joint": ("plain", "straggler"),
}


def draw_player(seed: int) -> Schedule:
    """Draw the schedule of a seed."""
    random = Random(f"player {seed}")  # noqa: S311 - repeatable, not secret
    setting = Setting(
        clients=random.randint(1, 3),
        window=random.choice((1, 4, 16)),
        servers=2,
        # Nothing is wrong but that one target hangs, or some messages kill.
        apart=seed % CALM == 0 or kills(seed),
    )
    # Many are in flight when one kills.
    bursts = random.random() < 0.3 or kills(seed)
    calls = []
    for number in range(1, _APPENDS + 1):
        method = random.choice(_METHODS)
        at = random.random() * ACTIVE_S if number % 4 else ACTIVE_S * number / _APPENDS
        if bursts:
            # Many at once, and then nothing for a while.
            at = (at // 4.0) * 4.0 + (at % 4.0) * 0.1
        calls.append(
            PlannedCall(
                number,
                random.randrange(setting.clients),
                at + 0.3,
                method,
                "commit" if random.random() < 0.8 else "rollback",
                "",
                random.randint(1, 3) if method != "append" else 1,
                random.choice(_BEHAVIOURS[method]),
                0.0,
                None,
                resolves=False,
                messages=random.randint(1, 4),
            )
        )
    if kills(seed):
        faults = [
            PlannedFault(1.0 + 4.0 * each, Fault.WALL_JUMP, 1.0, each, 0.9) for each in range(5)
        ]
    elif setting.apart:
        target = random.randrange(3)
        faults = [PlannedFault(1.0 + 4.0 * each, Fault.HANG, 3.9, target, 0.5) for each in range(5)]
    else:
        faults = [_draw_fault(random) for _ in range(random.randint(8, 24))]
        if not seed % ONE_IN:
            faults += _in_turn(seed)
    return Schedule(
        "player",
        seed,
        setting,
        tuple(sorted(calls, key=lambda call: call.at)),
        tuple(sorted(faults, key=lambda fault: fault.at)),
    )


def kills(seed: int) -> bool:
    """Whether messages kill in the schedule of this seed, and nothing else goes wrong."""
    return seed % CALM == _KILLS and seed % ONE_IN > 0


def _in_turn(seed: int) -> list[PlannedFault]:
    """Draw faults that strike at their points: each such schedule has the next ones."""
    random = Random(f"player in turn {seed}")  # noqa: S311 - repeatable, not secret
    # Those that are calm have none.
    turn = seed // ONE_IN - seed // ONE_IN // CALM
    return aimed_in_turn(random, _TURNS, turn, _IN_TURN, ACTIVE_S)


def _draw_fault(random: Random) -> PlannedFault:
    usual = [each for each in FAULTS if each not in _RARELY]
    fault = (
        random.choice(_RARELY)
        if random.random() < 0.1
        else random.choice((*usual, Fault.CRASH, Fault.CRASH, Fault.STOP))
    )
    at = 0.5 + random.random() * ACTIVE_S
    seconds = random.choice((0.05, 0.3, 1.0, 4.0)) * (0.5 + random.random())
    aim = None
    if fault in _AIMED and random.random() < 0.8:
        aim = random.choice(_AIMED[fault])
    return PlannedFault(at, fault, seconds, random.randrange(60), random.random(), aim)
