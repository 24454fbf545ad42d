"""Model of the world: the schedule of a run, drawn from its seed."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from chaos.sim.call_schedule import as_batches, by_keys, draw_calls, travel_together
from chaos.sim.coincidences import add_coincidences
from chaos.sim.consumer.schedule import draw_consumer
from chaos.sim.fault_schedule import draw_faults
from chaos.sim.faults import LEADER, Fault, PlannedFault, Point
from chaos.sim.in_turn import add_in_turn, has_turn
from chaos.sim.log.schedule import draw_log
from chaos.sim.planned import ACTIVE_S, PlannedCall, Schedule, Setting
from chaos.sim.player.schedule import draw_player
from chaos.sim.query.schedule import draw_query
from chaos.sim.shared_keys import share_keys
from chaos.sim.stream_schedule import add_streams
from chaos.sim.unclaimed_schedule import leave_unclaimed

__all__ = ["draw"]

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
# One schedule of a group in so many has replicas of two versions, and a call that kills.
_UPGRADED = 10
# One in so many has clients that skip their records, of such a share of their calls.
_SKIPPING, _SKIPPED = 13, 0.5


def draw(kind: str, seed: int) -> Schedule:
    """Draw the schedule of a seed; the same on every machine and in every process."""
    if kind == "log":
        return draw_log(seed)
    if kind == "consumer":
        return draw_consumer(seed)
    if kind == "query":
        return draw_query(seed)
    if kind == "player":
        return draw_player(seed)
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
    calls = draw_calls(kind, random, setting)
    closings: tuple[tuple[float, str], ...] = ()
    if kind == "spark":
        calls, closings = as_batches(calls, random, setting)
    faults = draw_faults(kind, random, setting)
    # Of their own dice, so that the schedules without them stay what they were.
    dice = Random(f"{kind} {seed} batches")  # noqa: S311 - repeatable, not secret
    if dice.random() < (_BATCHED_IN_A_GROUP if kind == "curp" else _BATCHED):
        calls = travel_together(calls, dice, _ALONE_IN_A_GROUP if kind == "curp" else _ALONE)
        faults = _aim_at_batches(faults, dice, LEADER if kind == "curp" else setting.servers)
        if kind == "curp":
            faults = _lose_a_batch(faults, dice, calls)
    if kind in _KEYED and not {fault.fault for fault in faults} & _FORGETTING:
        dice = Random(f"{kind} {seed} keys")  # noqa: S311 - repeatable, not secret
        if dice.random() < _BY_KEYS:
            calls = by_keys(calls, dice)
            if kind == "sqlite":
                faults = _jump_clocks(faults, Random(f"{kind} {seed} clocks"))  # noqa: S311
    if kind == "spark":
        dice = Random(f"{kind} {seed} first calls")  # noqa: S311 - repeatable, not secret
        calls, faults = _die_after_a_first_row(calls, faults, dice)
    if kind == "sqlite" and not any(call.plain for call in calls):
        dice = Random(f"{kind} {seed} restored")  # noqa: S311 - repeatable, not secret
        if dice.random() < _RESTORED or has_turn(seed):
            faults = _restore(faults, dice)
    if kind == "sqlite":
        faults = _catch_first_calls(faults, Random(f"{kind} {seed} first calls"))  # noqa: S311
    if kind == "memory":
        setting, faults = _set_apart(setting, faults, Random(f"{kind} {seed} apart"))  # noqa: S311
    calls, faults = add_streams(kind, seed, setting, calls, faults, ACTIVE_S)
    setting, calls, faults = share_keys(kind, seed, setting, calls, faults, ACTIVE_S)
    setting, calls = leave_unclaimed(kind, seed, setting, calls)
    if kind == "curp" and seed % _UPGRADED == _UPGRADED // 2:
        setting = replace(setting, upgrades=True)
        calls = _poison(calls, Random(f"{kind} {seed} poison"))  # noqa: S311 - repeatable
    if kind == "curp" and not seed % _SKIPPING:
        dice = Random(f"{kind} {seed} skipped")  # noqa: S311 - repeatable, not secret
        calls = tuple(replace(call, unrecorded=dice.random() < _SKIPPED) for call in calls)
    schedule = Schedule(kind, seed, setting, calls, faults, closings)
    return add_in_turn(add_coincidences(schedule, ACTIVE_S), ACTIVE_S)


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
    """Have a store go on with a backup that was made a while before."""
    at, seconds = random.uniform(1.0, 0.6 * ACTIVE_S), random.uniform(1.0, 6.0)
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
    at, seconds = random.choice((0.0, random.uniform(0.0, ACTIVE_S))), random.uniform(0.05, 0.5)
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
            random.uniform(0.5, ACTIVE_S),
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
            at, seconds = random.uniform(1.0, ACTIVE_S), random.choice((3600.0, -3600.0))
            restart_s = random.uniform(0.1, 0.5)
            jumps += [
                PlannedFault(at, Fault.WALL_JUMP, 0.0, 0, seconds, None),
                PlannedFault(at + random.uniform(0.5, 2.0), Fault.CRASH, restart_s, 0, 0.5, None),
                PlannedFault(at + 3.0, Fault.WALL_JUMP, 0.0, 0, -seconds, None),
            ]
    return tuple(sorted((*faults, *jumps), key=lambda fault: fault.at))


def _aim_at_batches(
    faults: tuple[PlannedFault, ...], random: Random, servers: int
) -> tuple[PlannedFault, ...]:
    """Have a server end, or stop, in the middle of batches; ``servers``: or LEADER."""
    aimed = []
    for point in (Point.BATCH_PART, Point.BATCH_RECORD):
        fault = random.choice((Fault.CRASH, Fault.CRASH, Fault.STOP, Fault.DRAIN))
        at = 0.3 + random.random() * ACTIVE_S * 0.7
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
