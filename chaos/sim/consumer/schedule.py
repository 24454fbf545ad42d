"""Model of the world: the schedule of a consumer's run, and what goes wrong."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from chaos.sim.consumer.stage import Setup
from chaos.sim.faults import Fault, PlannedFault, Point
from chaos.sim.planned import PlannedCall, Schedule, Setting
from chaos.sim.turns import aimed_in_turn

__all__ = ["ACTIVE_S", "FAULTS", "ONE_IN", "REQUIRED", "STORES", "draw_consumer", "setup_of"]

ACTIVE_S = 12.0
_APPENDS = 200
STORES = ("redis", "sqlite", "postgres", "log")
# One seed in so many is run where other kinds are run, too, and has faults in turn. No factor of
# what a seed chooses by: one of four stores.
ONE_IN = 7
# How many such faults a schedule has.
_IN_TURN = 6
FAULTS = (
    Fault.STORE_LOSS,
    Fault.STORE_STALL,
    Fault.DUPLICATE,
    Fault.CRASH,
    Fault.STOP,
    Fault.DRAIN,
    Fault.FULL_DISK,
    Fault.WALL_JUMP,
    Fault.RESTORE,
    Fault.WIPE,
)
_OF_LOG = (
    Point.LOOKING,
    Point.MEMBER,
    Point.FENCING,
    Point.SHARING,
    Point.FOLLOWING,
    Point.HOLDING_ON,
    Point.NAMED,
    Point.PENDING,
    Point.MARKER,
    Point.GRANTING,
    Point.STATE,
)
_OF_STORE = (
    Point.STORE_TAKEN,
    Point.NOTE,
    Point.STORE_COMMIT,
    Point.INTENDED,
    Point.ANSWER_KEPT,
)
_OF_SERVICE = (Point.SESSION, Point.CALL)
_POINTS = (*_OF_LOG, Point.RETIRING, *_OF_STORE, *_OF_STORE, *_OF_SERVICE, Point.HANDLER)


def _cells(faults: tuple[Fault, ...], points: tuple[Point, ...]) -> frozenset[tuple[str, str]]:
    return frozenset((fault.value, point.value) for fault in faults for point in points)


# Where each fault has to strike.
REQUIRED = (
    _cells((Fault.CRASH, Fault.STOP), (*_OF_LOG, *_OF_STORE, *_OF_SERVICE, Point.HANDLER))
    | _cells((Fault.STOP,), (Point.TICKED,))
    | _cells((Fault.STORE_LOSS,), (*_OF_LOG, *_OF_STORE, *_OF_SERVICE))
    | _cells(
        (Fault.STORE_STALL,),
        (*(each for each in _OF_LOG if each is not Point.FENCING), Point.STORE_TAKEN, Point.NOTE),
    )
    | _cells((Fault.DUPLICATE,), (Point.NAMED, Point.FENCING, Point.PENDING, Point.MARKER))
    | _cells((Fault.FULL_DISK,), (Point.STORE_COMMIT, Point.STORE_TAKEN))
    | _cells((Fault.DRAIN, Fault.WALL_JUMP, Fault.RESTORE, Fault.WIPE), (Point.IDLE,))
)
# Of those the ones that can be aimed: all but what strikes no working process, and copies, made
# when a process asks. The log has a state of its own, and no store beside it.
_TURNS = {
    store: tuple(
        (fault, point)
        for fault in (Fault.CRASH, Fault.STOP, Fault.STORE_LOSS, Fault.STORE_STALL, Fault.FULL_DISK)
        for point in (*_OF_LOG, *_OF_STORE, *_OF_SERVICE, Point.HANDLER)
        if (fault.value, point.value) in REQUIRED
        and point not in (_OF_STORE if store == "log" else (Point.STATE,))
    )
    for store in STORES
}
_BETWEEN = (Point.FOLLOWING, Point.NAMED, Point.HOLDING_ON, Point.LOOKING)
# When nothing comes, after what does.
_QUIET_S = (2.0, 10.0, 18.0)
_RARELY = (Fault.RESTORE, Fault.WIPE)
_METHODS = ("append", "append", "append", "append", "transaction", "joint")
_BEHAVIOURS = {
    "append": ("plain", "plain", "again"),
    "transaction": ("plain", "pipelined"),
    "joint": ("plain", "straggler"),
}


def setup_of(schedule: Schedule) -> Setup:
    """Return what the consumer of a schedule is."""
    random = Random(f"consumer setup {schedule.seed}")  # noqa: S311 - repeatable, not secret
    store = STORES[schedule.seed % len(STORES)]
    restored = any(each.fault is Fault.RESTORE for each in schedule.faults)
    return Setup(
        store=store,
        processes=schedule.setting.servers,
        batch=random.choice((1, 3, 100)),
        attempts=random.choice((2, 5)),
        buries=random.random() < 0.7,
        calls=random.random() < 0.6,
        aside=random.random() < 0.6,
        timer=random.random() < 0.3,
        # Not what the log has; and not where the store is put back as it was before.
        resets=random.random() < 0.2 and store != "log" and not restored,
        # Where the store alone is put back, the log is elsewhere.
        joined=random.random() < 0.3 and store in ("sqlite", "postgres") and not restored,
        # A run is not much longer than the product's default.
        pass_s=random.choice((0.5, 0.5, 10.0)),
    )


def draw_consumer(seed: int) -> Schedule:
    """Draw the schedule of a seed."""
    random = Random(f"consumer {seed}")  # noqa: S311 - repeatable, not secret
    setting = Setting(
        clients=random.randint(1, 2),
        window=random.choice((1, 4, 16)),
        servers=random.randint(2, 4),
    )
    bursts = random.random() < 0.4
    calls = []
    for number in range(1, _APPENDS + 1):
        method = random.choice(_METHODS)
        at = random.random() * ACTIVE_S if number % 4 else ACTIVE_S * number / _APPENDS
        if bursts:
            # Many at once, and then nothing for a while.
            at = (at // 3.0) * 3.0 + (at % 3.0) * 0.1
        calls.append(
            PlannedCall(
                number,
                random.randrange(setting.clients),
                at + 0.3,
                method,
                "commit" if random.random() < 0.8 else "rollback",
                "",
                random.randint(1, 2) if method != "append" else 1,
                random.choice(_BEHAVIOURS[method]),
                0.0,
                None,
                resolves=False,
                messages=random.randint(1, 2),
            )
        )
    faults = [_draw_fault(random) for _ in range(random.randint(6, 18))]
    for _ in range(random.choice((0, 0, 1, 3))):
        # Processes that are taken for dead between two turns, with several shards.
        at, between = random.uniform(1.0, ACTIVE_S), random.choice(_BETWEEN)
        faults.append(PlannedFault(at, Fault.STOP, 4.0, random.randrange(60), 0.0, between))
    if random.random() < 0.15:
        at, seconds = random.uniform(1.0, 0.5 * ACTIVE_S), random.uniform(0.2, 5.0)
        faults.append(PlannedFault(at, Fault.RESTORE, seconds, 0, random.random()))
    elif random.random() < 0.5:
        for _ in range(random.randint(1, 4)):
            aim = random.choice((None, Point.CALL, Point.NOTE, Point.ANSWER_KEPT))
            at = random.uniform(1.0, ACTIVE_S)
            faults.append(PlannedFault(at, Fault.WIPE, 0.0, 0, random.random(), aim))
            if random.random() < 0.7:
                # Who has called dies with it.
                killed = random.choice((Point.CALL, Point.ANSWER_KEPT, Point.INTENDED))
                at = max(0.5, at - 0.1)
                faults.append(PlannedFault(at, Fault.CRASH, 0.05, 0, random.random(), killed))
    if not seed % ONE_IN:
        faults += _in_turn(seed)
    schedule = Schedule(
        "consumer",
        seed,
        setting,
        tuple(sorted(calls, key=lambda call: call.at)),
        tuple(sorted(faults, key=lambda fault: fault.at)),
    )
    setup = setup_of(schedule)
    if setup.store == "log" and setup.timer:
        schedule = replace(schedule, faults=(*schedule.faults, *_in_the_quiet(seed)))
    return schedule


def _in_the_quiet(seed: int) -> list[PlannedFault]:
    """Draw stops when nothing comes any more: only timers change a state, which is in the log.

    A process that is taken for dead between two turns reads on, where neither a message nor a
    timer of its own is due, by which it would learn of that.
    """
    random = Random(f"consumer in the quiet {seed}")  # noqa: S311 - repeatable, not secret
    times = (ACTIVE_S + each + random.random() for each in _QUIET_S)
    return [
        PlannedFault(at, Fault.STOP, 4.0 + random.random(), 0, 1.0, Point.TICKED) for at in times
    ]


def _in_turn(seed: int) -> list[PlannedFault]:
    """Draw faults that wait for a process at their points: with each schedule of a store the next.

    So some schedules of each store, one after the other, have had all that are required.
    """
    random = Random(f"consumer in turn {seed}")  # noqa: S311 - repeatable, not secret
    turns, turn = _TURNS[STORES[seed % len(STORES)]], seed // (ONE_IN * len(STORES))
    return aimed_in_turn(random, turns, turn, _IN_TURN, ACTIVE_S, (0.0, 1.5, 3.0))


def _draw_fault(random: Random) -> PlannedFault:
    usual = [each for each in FAULTS if each not in _RARELY]
    fault = random.choice((*usual, Fault.CRASH, Fault.CRASH, Fault.STOP, Fault.STOP))
    at = 0.5 + random.random() * ACTIVE_S
    seconds = random.choice((0.05, 0.3, 1.0, 3.0)) * (0.5 + random.random())
    aim = None
    if fault in (Fault.CRASH, Fault.STOP) and random.random() < 0.8:
        aim = random.choice(_POINTS)
        if fault is Fault.STOP:
            # Long enough to be taken for dead.
            seconds += random.choice((0.0, 1.5, 3.0))
    elif fault in (Fault.FULL_DISK, Fault.STORE_STALL) and random.random() < 0.3:
        # Behind what is pending, and before its store commits.
        aim = Point.PENDING
        seconds += random.choice((0.0, 1.5, 3.0))
    return PlannedFault(at, fault, seconds, random.randrange(60), random.random(), aim)
