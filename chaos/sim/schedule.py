"""The schedule of a run, drawn from its seed: settings, calls, faults."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import chain
from random import Random

from chaos.sim.coincidences import FAILING, add_coincidences
from chaos.sim.faults import ALL, LEADER, Fault, PlannedFault, Point
from chaos.sim.log.schedule import FAULTS as LOG_FAULTS
from chaos.sim.log.schedule import REQUIRED as LOG_REQUIRED
from chaos.sim.log.schedule import draw_log
from chaos.sim.planned import PlannedCall, Schedule, Setting
from chaos.sim.shared_keys import share_keys
from chaos.sim.stream_schedule import add_streams

__all__ = ["FAULTS", "KINDS", "REQUIRED", "draw"]

KINDS = ("memory", "sqlite", "replicas", "spark", "curp", "log")
_CALLS = 200
# Rows of a query; those that are sent again come to these.
_ROWS = 110
_ACTIVE_S = 30.0
_BATCHES = 6
# How many schedules have calls that travel together, and how many of these calls travel
# alone: of a group's, what is in no batch is what may be answered first.
_BATCHED, _BATCHED_IN_A_GROUP = 0.4, 0.25
_ALONE, _ALONE_IN_A_GROUP = 0.2, 0.6
# And calls by a key in a header: where their records outlive the server's process. In some of
# these the clocks of the store jump.
_BY_KEYS = 0.6
_JUMPING = 0.4
_KEYED = ("sqlite", "replicas")
_FORGETTING = {Fault.CRASH_DISK, Fault.WALL_JUMP}
# How many SQLite stores are restored from a backup, and how many servers in memory have another
# beside them behind the same address.
_RESTORED = 0.15
_APART = 0.25
# And how many die in the first handler of a client.
_FIRST_CALLS = 0.3
_NETWORK = (
    Fault.LOSS,
    Fault.DELAY,
    Fault.DUPLICATE,
    Fault.RESET,
    Fault.PARTITION,
    Fault.PARTITION_TO,
    Fault.PARTITION_FROM,
)
_PROCESS = (
    Fault.CRASH,
    Fault.STOP,
    Fault.DRAIN,
    Fault.WALL_JUMP,
    Fault.ROTATE_SECRET,
    Fault.CLIENT_CRASH,
    Fault.CLIENT_STOP,
    Fault.CLIENT_LAPSE,
)
_DISK = (Fault.CRASH_DISK, Fault.SLOW_DISK, Fault.FULL_DISK, Fault.FAILED_FSYNC)
_STORE = (Fault.STORE_STALL, Fault.STORE_RESTART, Fault.STORE_LOSS)
_AIMED = (Fault.CRASH, Fault.CRASH_DISK, Fault.STOP, Fault.DRAIN)
# What an operator asks a leader for, and where the leader can die of it.
_OPERATOR = (Fault.WITNESS_CHANGE, Fault.TRANSFER, Fault.SNAPSHOT)
_AT_AN_OPERATION = {
    Fault.WITNESS_CHANGE: (
        Point.NUMBERED,
        Point.RELISTED,
        Point.ANSWERED_FIRST,
        Point.ANSWERED_FIRST,
    ),
    Fault.TRANSFER: (Point.HANDING_OVER,),
    Fault.SNAPSHOT: (Point.SAVED, Point.TRIMMED),
}
# Which faults each kind of deployment can meet.
FAULTS: dict[str, tuple[Fault, ...]] = {
    "memory": _NETWORK + _PROCESS,
    "sqlite": (*_NETWORK, *_PROCESS, *_DISK, Fault.RESTORE),
    "replicas": _NETWORK + _PROCESS + _STORE,
    # Without its disk a server gives a session's name to a new one: nothing is promised.
    "spark": _NETWORK + _PROCESS + _DISK[1:],
    "curp": (
        *_NETWORK,
        *_PROCESS,
        Fault.STORE_STALL,
        Fault.STORE_LOSS,
        Fault.WITNESS_CRASH,
        *_OPERATOR,
    ),
    "log": LOG_FAULTS,
}


_RUNNING = (Point.HANDLER, Point.WAITING, Point.IDLE)
_DURABLE = (*_RUNNING, Point.INTENT, Point.EFFECT, Point.RECORD)
_BY_A_GROUP = (
    Point.HANDLER,
    Point.EFFECT,
    Point.RECORD,
    Point.WAITING,
    Point.ANSWERED_FIRST,
    Point.ANSWERED_FIRST,
    Point.LOGGED,
)
# What would let a call that may run again do so after it was answered.
_OF_REPEATABLE = {
    "sqlite": (Fault.CRASH, (Point.REPEATABLE_ANSWERED, Point.REPEATABLE_RAN)),
    "spark": (Fault.CRASH, (Point.REPEATABLE_ANSWERED, Point.REPEATABLE_RAN)),
    "replicas": (Fault.STOP, (Point.REPEATABLE_RAN,)),
}
# What makes a leader's death worth more while it lasts.
_PRELUDES = (
    Fault.LOSS,
    Fault.DELAY,
    Fault.PARTITION,
    Fault.PARTITION_TO,
    Fault.PARTITION_FROM,
    Fault.STORE_STALL,
    Fault.STORE_LOSS,
    Fault.WITNESS_CRASH,
)


def _cells(faults: Iterable[Fault], points: Iterable[Point]) -> frozenset[tuple[str, str]]:
    return frozenset((fault.value, point.value) for fault in faults for point in points)


def _on_the_way(lease: Point, lease_answer: Point) -> frozenset[tuple[str, str]]:
    asked = (Point.CALL, lease, Point.RESOLVE)
    answered = (Point.ANSWER, lease_answer, Point.RESOLVE_ANSWER)
    return (
        _cells((Fault.LOSS, Fault.DELAY), (*asked, *answered))
        # Cut off in both directions, a request meets it before there is an answer.
        | _cells((Fault.DUPLICATE, Fault.PARTITION, Fault.PARTITION_TO), asked)
        | _cells((Fault.PARTITION_FROM,), answered)
        | _cells((Fault.RESET,), (Point.ANSWER,))
        | _cells((Fault.CLIENT_CRASH, Fault.CLIENT_STOP), (Point.UNANSWERED, Point.IDLE))
        | _cells((Fault.CLIENT_LAPSE,), (Point.UNANSWERED,))
        | _cells((Fault.WALL_JUMP, Fault.ROTATE_SECRET), (Point.IDLE,))
    )


_ON_THE_WAY = _on_the_way(Point.LEASE, Point.LEASE_ANSWER)
_OF_BATCHES = (
    _cells((Fault.LOSS, Fault.DELAY), (Point.BATCH, Point.BATCH_ANSWER))
    | _cells((Fault.DUPLICATE, Fault.PARTITION, Fault.PARTITION_TO), (Point.BATCH,))
    | _cells((Fault.PARTITION_FROM, Fault.RESET), (Point.BATCH_ANSWER,))
    | _cells((Fault.CRASH, Fault.STOP, Fault.DRAIN), (Point.BATCH_PART,))
)
_OF_DURABLE_BATCHES = _OF_BATCHES | _cells((Fault.CRASH, Fault.STOP), (Point.BATCH_RECORD,))
_OF_STREAMS = (
    _cells(
        (Fault.LOSS, Fault.DELAY),
        (Point.REQUEST_STREAM, Point.RESPONSE_STREAM, Point.RESPONSE_STREAM_MESSAGE),
    )
    | _cells((Fault.DUPLICATE, Fault.PARTITION), (Point.REQUEST_STREAM, Point.RESPONSE_STREAM))
    | _cells((Fault.PARTITION_TO,), (Point.REQUEST_STREAM,))
    | _cells((Fault.PARTITION_FROM,), (Point.RESPONSE_STREAM_MESSAGE,))
    | _cells((Fault.RESET,), (Point.REQUEST_STREAM_ANSWER, Point.RESPONSE_STREAM_MESSAGE))
    | _cells((Fault.CRASH, Fault.STOP, Fault.DRAIN), (Point.HALF_READ, Point.HALF_MADE))
    | _cells((Fault.RESET,), (Point.BROKEN_OFF,))
)
# Where each fault has to strike in a few thousand runs, or the runs prove less than
# they say.
REQUIRED: dict[str, frozenset[tuple[str, str]]] = {
    "memory": _ON_THE_WAY
    | _OF_BATCHES
    | _OF_STREAMS
    | _cells((Fault.CRASH, Fault.STOP, Fault.DRAIN), _RUNNING),
    "sqlite": _ON_THE_WAY
    | _OF_DURABLE_BATCHES
    | _OF_STREAMS
    | _cells((Fault.CRASH, Fault.CRASH_DISK, Fault.STOP, Fault.DRAIN), _DURABLE)
    | _cells((Fault.CRASH,), (Point.ANSWERED, Point.EXPIRED))
    | _cells((Fault.RESTORE,), (Point.IDLE, Point.HANDLER))
    | _cells((Fault.CRASH,), (Point.FIRST,))
    | _cells((Fault.CRASH,), (Point.REPEATABLE_RAN, Point.REPEATABLE_ANSWERED))
    | _cells((Fault.SLOW_DISK, Fault.FULL_DISK, Fault.FAILED_FSYNC), (Point.COMMITTING,)),
    "replicas": _ON_THE_WAY
    | _OF_DURABLE_BATCHES
    | _OF_STREAMS
    | _cells((Fault.CRASH, Fault.STOP, Fault.DRAIN), _DURABLE)
    | _cells((Fault.STOP,), (Point.REPEATABLE_RAN,))
    | _cells(_STORE, (Point.CLAIM_REQUEST, Point.FINISH_REQUEST, Point.BEAT_REQUEST)),
    "curp": _ON_THE_WAY
    | _OF_DURABLE_BATCHES
    | _cells((Fault.CRASH, Fault.STOP, Fault.DRAIN), (Point.HANDLER, Point.RECORD, Point.IDLE))
    | _cells((Fault.CRASH,), (Point.ANSWERED_FIRST, Point.LOGGED, Point.RECOVERING))
    | _cells(_OPERATOR, (Point.HANDLER, Point.RECORD, Point.ANSWERED_FIRST, Point.IDLE))
    | _cells((Fault.CRASH,), chain.from_iterable(_AT_AN_OPERATION.values()))
    | frozenset(
        (fault.value, point.value) for fault, point in chain.from_iterable(FAILING.values())
    )
    | _cells((Fault.SNAPSHOT,), (Point.FROM_SNAPSHOT, Point.BEHIND_SNAPSHOT))
    | _cells((Fault.WITNESS_CRASH,), (Point.ANSWERED_FIRST,))
    | _cells((Fault.STOP,), (Point.RENEWING, Point.RENEWED))
    | _cells((Fault.LOSS, Fault.PARTITION), (Point.RECORDED, Point.WITNESS, Point.GROUP))
    | _cells((Fault.LOSS, Fault.DUPLICATE, Fault.PARTITION), (Point.OPERATOR,))
    | _cells((Fault.LOSS, Fault.PARTITION_FROM), (Point.OPERATOR_ANSWER,))
    | _cells((Fault.STORE_LOSS,), (Point.APPEND, Point.OTHER_REQUEST))
    | _cells((Fault.STORE_STALL,), (Point.OTHER_REQUEST,))
    | _cells((Fault.WITNESS_CRASH,), (Point.HOLDING, Point.IDLE)),
    "spark": _on_the_way(Point.SESSION, Point.SESSION_ANSWER)
    | _OF_DURABLE_BATCHES
    | _OF_STREAMS
    | _cells((Fault.CRASH, Fault.STOP, Fault.DRAIN), _DURABLE)
    | _cells((Fault.SLOW_DISK, Fault.FULL_DISK, Fault.FAILED_FSYNC), (Point.COMMITTING,)),
    "log": LOG_REQUIRED,
}

# One schedule of a group in so many has replicas of two versions, and a call that kills.
_UPGRADED = 10
# One in so many has clients that skip their records, of such a share of their calls.
_SKIPPING, _SKIPPED = 13, 0.5


def draw(kind: str, seed: int) -> Schedule:
    """Draw the schedule of a seed; the same on every machine and in every process."""
    if kind == "log":
        return draw_log(seed)
    random = Random(f"{kind} {seed}")  # noqa: S311 - repeatable, not secret
    setting = Setting(
        servers=random.randint(2, 3) if kind in ("replicas", "curp") else 1,
        clients=random.randint(2, 5),
        term_s=random.choice((2.0, 4.0, 8.0)),
        window=random.choice((4, 16, 64, 512)),
        max_waiters=random.choice((0, 2, 8)),
        hedge_after_s=random.choice((None, None, 0.02, 0.5)),
        attempt_timeout_s=random.choice((None, 0.3, 2.0)),
        max_elapsed_s=random.choice((2.0, 8.0, 20.0)),
        unresolved_s=random.choice((1.0, 10.0, 60.0)),
        drift=random.choice((0.0, 0.0, 0.02, 0.1)),
        witnesses=random.randint(2, 3) if kind == "curp" else None,
        batch_entries=random.choice((1, 8, 64)),
        batch_delay_s=random.choice((0.0, 0.005, 0.1, 0.5)),
        max_unsynced=random.choice((2, 16, 1024)),
        plain_clients=random.choice((0, 1)) if kind == "curp" else 0,
        misled_client=random.choice((None, 1)) if kind == "curp" else None,
    )
    if kind == "curp":
        setting = replace(
            setting,
            spare_witnesses=random.choice((0, 1, 2)),
            snapshot_entries=random.choice((10, 40, 100, 10_000)),
            kept_behind=random.choice((0, 5, 40)),
        )
    calls = _draw_calls(kind, random, setting)
    closings: tuple[tuple[float, str], ...] = ()
    if kind == "spark":
        calls, closings = _as_batches(calls, random, setting)
    faults = _draw_faults(kind, random, setting)
    # Of their own dice, so that the schedules without them stay what they were.
    dice = Random(f"{kind} {seed} batches")  # noqa: S311 - repeatable, not secret
    if dice.random() < (_BATCHED_IN_A_GROUP if kind == "curp" else _BATCHED):
        calls = _travel_together(calls, dice, _ALONE_IN_A_GROUP if kind == "curp" else _ALONE)
        faults = _aim_at_batches(faults, dice, LEADER if kind == "curp" else setting.servers)
        if kind == "curp":
            faults = _lose_a_batch(faults, dice, calls)
    if kind in _KEYED and not {fault.fault for fault in faults} & _FORGETTING:
        dice = Random(f"{kind} {seed} keys")  # noqa: S311 - repeatable, not secret
        if dice.random() < _BY_KEYS:
            calls = _by_keys(calls, dice)
            if kind == "sqlite":
                faults = _jump_clocks(faults, Random(f"{kind} {seed} clocks"))  # noqa: S311
    if kind == "spark":
        dice = Random(f"{kind} {seed} first calls")  # noqa: S311 - repeatable, not secret
        calls, faults = _die_after_a_first_row(calls, faults, dice)
    if kind == "sqlite" and not any(call.plain for call in calls):
        faults = _restore(faults, Random(f"{kind} {seed} restored"))  # noqa: S311
    if kind == "sqlite":
        faults = _catch_first_calls(faults, Random(f"{kind} {seed} first calls"))  # noqa: S311
    if kind == "memory":
        setting, faults = _set_apart(setting, faults, Random(f"{kind} {seed} apart"))  # noqa: S311
    calls, faults = add_streams(kind, seed, setting, calls, faults, _ACTIVE_S)
    setting, calls, faults = share_keys(kind, seed, setting, calls, faults, _ACTIVE_S)
    if kind == "curp" and seed % _UPGRADED == _UPGRADED // 2:
        setting = replace(setting, upgrades=True)
        calls = _poison(calls, Random(f"{kind} {seed} poison"))  # noqa: S311 - repeatable
    if kind == "curp" and not seed % _SKIPPING:
        dice = Random(f"{kind} {seed} skipped")  # noqa: S311 - repeatable, not secret
        calls = tuple(replace(call, unrecorded=dice.random() < _SKIPPED) for call in calls)
    schedule = Schedule(kind, seed, setting, calls, faults, closings)
    return add_coincidences(schedule, _ACTIVE_S)


def _poison(calls: tuple[PlannedCall, ...], random: Random) -> tuple[PlannedCall, ...]:
    """Have one call kill every process that runs it."""
    candidates = [
        at
        for at, call in enumerate(calls)
        if call.method == "/sim.Accounts/Add" and call.behaviour == "effect" and not call.batch
    ]
    if not candidates:
        return calls
    at = random.choice(candidates[: len(candidates) // 2 + 1])
    poison = replace(calls[at], behaviour="poison", deadline_s=None)
    return (*calls[:at], poison, *calls[at + 1 :])


def _restore(faults: tuple[PlannedFault, ...], random: Random) -> tuple[PlannedFault, ...]:
    """Have some stores go on with a backup that was made a while before."""
    if random.random() >= _RESTORED:
        return faults
    at, seconds = random.uniform(1.0, 0.6 * _ACTIVE_S), random.uniform(1.0, 6.0)
    added = [PlannedFault(at, Fault.RESTORE, seconds, 0, 0.0, None)]
    # Meanwhile ids are granted that the backup knows nothing of, as it does again.
    added.append(PlannedFault(at + 0.1, Fault.CRASH, 0.05, 0, 0.5, None))
    for client in range(random.randint(1, 3)):
        when = at + random.uniform(0.2, 0.9) * seconds
        added.append(PlannedFault(when, Fault.CLIENT_CRASH, 0.05, client, 0.5, None))
    return tuple(sorted((*faults, *added), key=lambda fault: fault.at))


def _catch_first_calls(
    faults: tuple[PlannedFault, ...], random: Random
) -> tuple[PlannedFault, ...]:
    """Have some servers die in the first handler of a client."""
    if random.random() >= _FIRST_CALLS:
        return faults
    at, seconds = random.choice((0.0, random.uniform(0.0, _ACTIVE_S))), random.uniform(0.05, 0.5)
    fault = PlannedFault(at, Fault.CRASH, seconds, 0, 0.5, Point.FIRST)
    return tuple(sorted((*faults, fault), key=lambda fault: fault.at))


def _die_after_a_first_row(
    calls: tuple[PlannedCall, ...], faults: tuple[PlannedFault, ...], random: Random
) -> tuple[tuple[PlannedCall, ...], tuple[PlannedFault, ...]]:
    """Have some servers die when a session's first row has run, of which nothing is kept yet."""
    if random.random() >= _FIRST_CALLS:
        return calls, faults
    session = random.choice(sorted({call.session for call in calls}))
    first = min((call for call in calls if call.session == session), key=lambda call: call.at)
    rows = [call for call in calls if call.session == session and call.key == first.key]
    if any(call.batch for call in rows):
        return calls, faults
    # Their callers ask what became of it, rather than again and again.
    touched = {
        row: replace(
            row,
            method="/sim.Accounts/Touch",
            op="touch",
            account="t0",
            behaviour="effect",
            work_s=0.001,
            deadline_s=0.3,
            resolves=True,
            messages=0,
        )
        for row in rows
    }
    fault = PlannedFault(first.at - 0.001, Fault.CRASH, 0.5, 0, 0.5, Point.REPEATABLE_RAN)
    return (
        tuple(touched.get(call, call) for call in calls),
        tuple(sorted((*faults, fault), key=lambda fault: fault.at)),
    )


def _set_apart(
    setting: Setting, faults: tuple[PlannedFault, ...], random: Random
) -> tuple[Setting, tuple[PlannedFault, ...]]:
    """Have some callers meet two servers with stores of their own, and a proxy before them."""
    if random.random() >= _APART:
        return setting, faults
    cloned = random.random() < 0.4
    # What a proxy would send to the other server while the first still works on it.
    resets = [
        PlannedFault(
            random.uniform(0.5, _ACTIVE_S),
            Fault.RESET,
            0.0,
            random.randrange(2),
            0.5,
            Point.HANDLER,
        )
        for _ in range(6)
    ]
    spread = [
        replace(fault, target=random.randrange(2)) if fault.target == 0 else fault
        for fault in faults
    ]
    faults = tuple(sorted((*spread, *resets), key=lambda fault: fault.at))
    return replace(setting, servers=2, apart=not cloned, cloned=cloned), faults


def _jump_clocks(faults: tuple[PlannedFault, ...], random: Random) -> tuple[PlannedFault, ...]:
    """Set the clock by more than keys are kept, and back, in some; the server begins in between."""
    jumps: list[PlannedFault] = []
    if random.random() < _JUMPING:
        for _ in range(random.randint(1, 3)):
            at, seconds = random.uniform(1.0, _ACTIVE_S), random.choice((3600.0, -3600.0))
            restart_s = random.uniform(0.1, 0.5)
            jumps += [
                PlannedFault(at, Fault.WALL_JUMP, 0.0, 0, seconds, None),
                PlannedFault(at + random.uniform(0.5, 2.0), Fault.CRASH, restart_s, 0, 0.5, None),
                PlannedFault(at + 3.0, Fault.WALL_JUMP, 0.0, 0, -seconds, None),
            ]
    return tuple(sorted((*faults, *jumps), key=lambda fault: fault.at))


def _as_batches(
    calls: tuple[PlannedCall, ...], random: Random, setting: Setting
) -> tuple[tuple[PlannedCall, ...], tuple[tuple[float, str], ...]]:
    """Make rows of calls: batches in sessions, tasks that run again, zombies, late closes."""
    rows: list[PlannedCall] = []
    closings = []
    batch_s = _ACTIVE_S / _BATCHES
    commits = [batch_s * (batch + 1.2 + 0.5 * random.random()) for batch in range(_BATCHES)]
    for place, call in enumerate(calls):
        batch = min(place * _BATCHES // len(calls), _BATCHES - 1)
        row = replace(call, session=f"query/{batch}", key=b"row %d" % call.number)
        rows.append(row)
        chance = random.random()
        if chance < 0.25:
            # A speculative copy, or the same task on another executor, soon after.
            rows.append(_again(row, random, setting, row.at + random.random() * batch_s))
        elif chance < 0.35:
            # A zombie: its batch is committed, or closed, by then.
            late = commits[batch] + random.random() * 2 * batch_s
            rows.append(_again(row, random, setting, late))
    for batch in range(_BATCHES):
        if random.random() < 0.3:
            # The driver restarts before its commit is known: all of the batch again.
            again = [row for row in rows if row.session == f"query/{batch}"][:30]
            at = commits[batch] - 0.4 * batch_s * random.random()
            rows += [_again(row, random, setting, at) for row in again]
        if batch:
            # A commit closes the sessions of the batches before.
            closings.append((commits[batch], f"query/{batch - 1}"))
    while len(rows) < _CALLS:
        row = random.choice(rows)
        rows.append(_again(row, random, setting, row.at + random.random() * batch_s))
    return tuple(sorted(rows, key=lambda row: row.at)), tuple(closings)


def _travel_together(
    calls: tuple[PlannedCall, ...], random: Random, share_alone: float
) -> tuple[PlannedCall, ...]:
    """Have many calls of one client and method travel in one RPC, in any order."""
    open_batches: dict[tuple[int, str, str], tuple[int, int, float]] = {}
    numbers = 0
    members: dict[int, list[PlannedCall]] = {}
    alone: list[PlannedCall] = []
    for call in calls:
        if random.random() < share_alone:
            alone.append(call)
            continue
        shared = call.client, call.session, call.method
        number, room, until = open_batches.get(shared, (0, 0, 0.0))
        if not room or call.at > until:
            numbers += 1
            number, room = numbers, random.choice((1, 3, 6, 12, 40))
            until = call.at + random.choice((0.5, 3.0))
        open_batches[shared] = number, room - 1, until
        members.setdefault(number, []).append(call)
    for number, batch in members.items():
        at, deadline_s = batch[0].at, batch[0].deadline_s
        random.shuffle(batch)
        alone += [replace(call, at=at, deadline_s=deadline_s, batch=number) for call in batch]
    return tuple(sorted(alone, key=lambda call: call.at))


def _by_keys(calls: tuple[PlannedCall, ...], random: Random) -> tuple[PlannedCall, ...]:
    """Have some calls made by a key of their own, now and then by two callers."""
    made: list[PlannedCall] = []
    for call in calls:
        if call.batch or call.op == "read" or random.random() < 0.6:
            made.append(call)
            continue
        call = replace(call, key=b"key %d" % call.number, plain=True)
        made.append(call)
        if random.random() < 0.3:
            made.append(replace(call, at=call.at + 10.0 * random.random() ** 4))
    return tuple(sorted(made, key=lambda call: call.at))


def _aim_at_batches(
    faults: tuple[PlannedFault, ...], random: Random, servers: int
) -> tuple[PlannedFault, ...]:
    """Have a server end, or stop, in the middle of batches; ``servers``: or LEADER."""
    aimed = []
    for point in (Point.BATCH_PART, Point.BATCH_RECORD):
        fault = random.choice((Fault.CRASH, Fault.CRASH, Fault.STOP, Fault.DRAIN))
        at = 0.3 + random.random() * _ACTIVE_S * 0.7
        seconds = random.choice((0.02, 0.2, 2.0)) * (0.2 + random.random())
        target = servers if servers == LEADER else random.randrange(servers)
        aimed.append(PlannedFault(at, fault, seconds, target, 0.5, point))
    return tuple(sorted((*faults, *aimed), key=lambda fault: fault.at))


def _lose_a_batch(
    faults: tuple[PlannedFault, ...], random: Random, calls: tuple[PlannedCall, ...]
) -> tuple[PlannedFault, ...]:
    """Have a leader's answer to a batch, or a batch, be lost."""
    sent = random.choice([call.at for call in calls if call.batch])
    at = sent + random.choice((-0.01, 0.005))
    lost = PlannedFault(at, random.choice((Fault.LOSS, Fault.RESET)), 0.2, LEADER, 0.5)
    return tuple(sorted((*faults, lost), key=lambda fault: fault.at))


def _again(row: PlannedCall, random: Random, setting: Setting, at: float) -> PlannedCall:
    return replace(row, client=random.randrange(setting.clients), at=at)


def _draw_calls(kind: str, random: Random, setting: Setting) -> tuple[PlannedCall, ...]:
    calls = []
    at = 0.1
    # A client that only reads is content with a leader that can do no more than that.
    reader = setting.clients - 1 if kind == "curp" and random.random() < 0.5 else None
    count = _ROWS if kind == "spark" else _CALLS
    atomic = kind not in ("memory", "curp")
    accounts = random.randint(1, 6) if kind != "curp" else random.choice((1, 4, 12, 40))
    for number in range(1, count + 1):
        # Bursts and pauses: an idle client's lease is renewed by nothing but heartbeats.
        at += random.expovariate(count * 3 / _ACTIVE_S)
        if random.random() < 0.02:
            at += random.random() * _ACTIVE_S * 2 / (3 * 0.02 * count)
        client = random.randrange(setting.clients)
        if kind == "curp" and random.random() < 0.06:
            # Comes for this one call, and is never heard of again.
            client = setting.clients + number
        chance = random.random()
        if client == reader:
            chance = 0.0
        method, op, behaviour = "Add", "add", "effect"
        account = f"a{random.randrange(accounts)}"
        if chance < 0.2:
            method, op, behaviour = "Read", "read", "read"
        elif chance < 0.3 and kind != "curp":
            method, op = "Touch", "touch"
            account = f"t{random.randrange(2)}"
            if random.random() < 0.3:
                behaviour = "later"
            elif number % 2:
                behaviour = "unsure"
        elif chance < 0.5 and atomic:
            method = "AddAtomic"
        deadline_s = random.choice((None, None, 0.05, 1.0, 5.0))
        if op == "touch" and random.random() < 0.5:
            # Its caller asks what became of it, rather than again and again.
            deadline_s = 0.3
        if op == "add":
            fate = random.random()
            if fate < 0.05:
                behaviour = "abort"
            elif fate < 0.1 and method == "Add" and kind != "curp":
                behaviour = "raise"
            elif fate < 0.1 and method == "AddAtomic":
                behaviour = "forget"
        slow = random.random()
        work_s = random.expovariate(1 / 0.003)
        if slow < 0.1:
            # In a group all that conflict wait for it.
            longest = 4.0 if kind != "curp" else 1.0
            work_s = random.random() * (0.5 if slow < 0.08 else longest)
        calls.append(
            PlannedCall(
                number,
                client,
                at,
                f"/sim.Accounts/{method}",
                op,
                account,
                random.randint(1, 1_000_000),
                behaviour,
                work_s,
                deadline_s,
                random.random() < 0.7,
            )
        )
    return tuple(calls)


def _draw_faults(kind: str, random: Random, setting: Setting) -> tuple[PlannedFault, ...]:
    # A few kinds often, not all a little (Groce et al., swarm testing).
    drawn = [fault for fault in FAULTS[kind] if fault is not Fault.RESTORE]
    usual = random.sample(drawn, random.randint(3, 8))
    faults = []
    for _ in range(random.randint(5, 12)):
        fault = _draw_fault(kind, random, setting, random.choice(usual))
        faults.append(fault)
        if kind == "curp" and fault.fault in _PRELUDES and random.random() < 0.5:
            aim = fault.aim or random.choice(_BY_A_GROUP)
            # Both at one answer, or while the first lasts.
            at = fault.at if fault.aim else fault.at + fault.seconds * random.random()
            faults.append(_crash(random, at, LEADER, aim))
    if kind == "curp":
        faults += _draw_coincidences(random)
    elif random.random() < 0.5 and (repeatable := _OF_REPEATABLE.get(kind)) is not None:
        at = 0.3 + random.random() * _ACTIVE_S / 2
        seconds, target = 1.2 + 4.0 * random.random(), random.randrange(setting.servers)
        point = random.choice(repeatable[1])
        faults.append(PlannedFault(at, repeatable[0], seconds, target, 0.5, point))
    return tuple(sorted(faults, key=lambda fault: fault.at))


def _draw_coincidences(random: Random) -> list[PlannedFault]:
    """Draw what has to come together for a group's rules to be needed."""
    faults = []
    if random.random() < 0.8:
        # Cut off from the engine alone, a leader serves on, while another takes over.
        at = 0.3 + random.random() * _ACTIVE_S / 2
        seconds = 1.0 + 4.0 * random.random()
        faults.append(PlannedFault(at, Fault.STORE_STALL, seconds, LEADER, 0.5))
        if random.random() < 0.4:
            faults.append(_crash(random, at, ALL, Point.RECOVERING))
        if random.random() < 0.6:
            # Some clients find the next leader, the others stay with it.
            fault = Fault.PARTITION_TO
            faults.append(PlannedFault(at, fault, seconds, LEADER, 0.9, some=True))
    if random.random() < 0.4:
        # A witness forgets an answer, and before the log has it its leader dies.
        at = 0.3 + random.random() * _ACTIVE_S / 2
        target, share = random.randrange(3), random.choice((0.1, 0.9))
        aim = Point.ANSWERED_FIRST
        faults.append(PlannedFault(at, Fault.WITNESS_CRASH, 0.2, target, share, aim))
        faults.append(_crash(random, at, LEADER, aim))
    for operation in _OPERATOR:
        if random.random() < 0.5:
            faults += _draw_operation(random, operation)
    return faults


def _draw_operation(random: Random, operation: Fault) -> list[PlannedFault]:
    """Draw what is asked for while answers are not in the log, and what its leader dies of."""
    at = 0.3 + random.random() * _ACTIVE_S
    share = random.choice((0.1, 0.5, 0.9))
    aim = random.choice((Point.ANSWERED_FIRST, Point.HANDLER))
    faults = [PlannedFault(at, operation, 0.0, LEADER, share, aim)]
    if operation is Fault.TRANSFER and random.random() < 0.5:
        # Some clients find the next leader, the others stay with this one.
        seconds, fault = 1.0 + 2.0 * random.random(), Fault.PARTITION_TO
        faults.append(PlannedFault(at, fault, seconds, LEADER, 0.9, some=True))
    elif random.random() < 0.8:
        point = random.choice(_AT_AN_OPERATION[operation])
        if point is Point.ANSWERED_FIRST:
            # Of an answer under the new list.
            at += 0.02 + 0.5 * random.random()
        faults.append(_crash(random, at, LEADER, point))
    return faults


def _crash(random: Random, at: float, target: int, aim: Point) -> PlannedFault:
    seconds = random.choice((0.02, 0.2, 2.0)) * (0.2 + random.random())
    return PlannedFault(at, Fault.CRASH, seconds, target, 0.5, aim)


def _draw_fault(kind: str, random: Random, setting: Setting, fault: Fault) -> PlannedFault:
    at = 0.3 + random.random() * _ACTIVE_S
    seconds = random.choice((0.02, 0.2, 1.0, setting.term_s)) * (0.2 + random.random())
    if fault is Fault.CLIENT_LAPSE:
        # About as long as a lease: who is first, the sweep or the client?
        seconds = setting.term_s * (0.9 + 0.2 * random.random())
    if fault is Fault.STOP and kind == "replicas":
        # Long enough to be taken for dead.
        seconds += 1.2
    target = random.randrange(setting.clients)
    if not fault.value.startswith("client"):
        target = random.randrange(setting.servers)
        if setting.witnesses:
            if fault in _NETWORK and random.random() < 0.5:
                target = 100 + random.randrange(setting.witnesses + setting.spare_witnesses)
            elif fault not in _NETWORK and random.random() < 0.6:
                target = LEADER
            if fault in _OPERATOR:
                target = LEADER
            if fault in _STORE and random.random() < 0.3:
                target = ALL
    share = random.choice((0.1, 0.5, 0.9))
    if fault is Fault.WALL_JUMP:
        # A name that is closed is refused for a week by that clock.
        share = random.choice((-86_400.0 * 9, -3600.0, 3600.0, 3600.0 * 12))
    aim = None
    if fault in _OPERATOR and random.random() < 0.6:
        aim = random.choice(_BY_A_GROUP)
    if fault in _AIMED and random.random() < 0.8:
        aim = random.choice(_BY_A_GROUP if kind == "curp" else (*_DURABLE, Point.ANSWERED))
    if fault is Fault.WITNESS_CRASH and random.random() < 0.8:
        aim = Point.ANSWERED_FIRST
    return PlannedFault(at, fault, seconds, target, share, aim)
