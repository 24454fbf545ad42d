"""What has to come together for a rule to be needed, added to what a seed drew.

Each is drawn from dice of its own, so that the schedules without it stay what they were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from chaos.sim.faults import ALL, LEADER, Fault, PlannedFault, Point

if TYPE_CHECKING:
    from chaos.sim.schedule import PlannedCall, Schedule

__all__ = ["FAILING", "add_coincidences"]

# Where witnesses are hosts of the network.
_FIRST_WITNESS = 100
# Whom a fault meets that is for some clients, of those that make many calls.
_SOME_CLIENTS = (1, 3)
# What fails an operator's request that is under way, and where.
FAILING = {
    Fault.WITNESS_CHANGE: (
        (Fault.STORE_STALL, Point.NUMBERED),
        (Fault.STORE_LOSS, Point.NUMBERED),
        (Fault.WITNESS_CRASH, Point.NUMBERED),
        (Fault.WITNESS_CRASH, Point.RELISTED),
    ),
    Fault.TRANSFER: ((Fault.STORE_STALL, Point.HANDING_OVER),),
    Fault.SNAPSHOT: ((Fault.STORE_STALL, Point.SAVED), (Fault.STORE_LOSS, Point.SAVED)),
}
_ON_THE_WAY = (Fault.LOSS, Fault.LOSS, Fault.DUPLICATE, Fault.PARTITION, Fault.PARTITION_FROM)
# Seconds that a slow clock counts in one: its leader's lease is over 0.22 s late, without
# its margin.
_SLOW = 0.82
_READS_AND_WRITES = 36
_Draw = Callable[[Random, "Schedule", float], "Schedule"]


def add_coincidences(schedule: Schedule, active_s: float) -> Schedule:
    """Add to what was drawn; ``active_s``: calls are made and faults strike within."""
    for name, share, draw in _DRAWN.get(schedule.kind, ()):
        dice = Random(f"{schedule.kind} {schedule.seed} {name}")  # noqa: S311 - repeatable, not secret
        if dice.random() < share:
            schedule = draw(dice, schedule, active_s)
    return schedule


def _changed(
    schedule: Schedule, calls: dict[int, PlannedCall], faults: Iterable[PlannedFault]
) -> Schedule:
    """Put calls in the places of others, by those, and add faults."""
    kept = [calls.get(at, call) for at, call in enumerate(schedule.calls)]
    return replace(
        schedule,
        calls=tuple(sorted(kept, key=lambda call: call.at)),
        faults=tuple(sorted((*schedule.faults, *faults), key=lambda fault: fault.at)),
    )


def _some_add(
    random: Random, schedule: Schedule, wanted: Callable[[PlannedCall], bool]
) -> tuple[int, PlannedCall] | None:
    """Draw a call that travels alone and has an effect, of a client that makes many."""
    found = [
        (at, call)
        for at, call in enumerate(schedule.calls)
        if call.client < schedule.setting.clients
        and (call.op, call.behaviour) == ("add", "effect")
        and not (call.batch or call.plain or call.session)
        and wanted(call)
    ]
    return random.choice(found) if found else None


def _overtaken_call(random: Random, schedule: Schedule, active_s: float) -> Schedule:
    """Have callers ask what became of calls that arrive after the question."""
    begins = 0.3 + random.random() * active_s * 0.8
    # What was sent to a server that cannot be reached comes at the end, in any order.
    slow = PlannedFault(begins, Fault.PARTITION_TO, 1.2 + random.random(), 0, 0.1)
    calls = {
        at: replace(call, deadline_s=0.2, resolves=True)
        for at, call in enumerate(schedule.calls)
        if begins <= call.at < begins + 0.5 and not (call.batch or call.plain)
    }
    return _changed(schedule, calls, [slow])


def _lapse_in_a_call(random: Random, schedule: Schedule, active_s: float) -> Schedule:
    """Have a client's lease end while a call of it runs, on a replica that is not dead.

    Both are stopped for as long as that takes, and are back.
    """
    setting = schedule.setting
    found = _some_add(random, schedule, lambda call: True)
    if found is None:
        return schedule
    at, call = found
    begins, seconds = call.at + 0.02, 1.5 + setting.term_s * (1.2 + 0.3 * random.random())
    # Clients are counted from the last.
    target = setting.clients - 1 - call.client
    stops = [
        PlannedFault(begins, Fault.CLIENT_STOP, seconds, target, 0.5),
        PlannedFault(begins, Fault.STOP, seconds, ALL, 0.5, Point.HANDLER),
    ]
    return _changed(schedule, {at: replace(call, work_s=0.3, deadline_s=None)}, stops)


def _late_records(random: Random, schedule: Schedule, active_s: float) -> Schedule:
    """Have an old leader answer a call whose records reach the next one's witnesses.

    It is cut off from the log, and another leads before the call's handler ends; what some
    clients send to witnesses comes after that.
    """
    setting = schedule.setting
    found = _some_add(
        random,
        schedule,
        lambda call: (
            call.client in _SOME_CLIENTS
            and call.client >= setting.plain_clients
            and call.client != setting.misled_client
            and call.at > 1.0
        ),
    )
    if found is None:
        return schedule
    at, call = found
    changed = replace(call, work_s=0.7 + 0.2 * random.random(), deadline_s=None)
    # Its lease is over at the latest 0.4 s after the call has come.
    stall = PlannedFault(call.at - 0.6, Fault.STORE_STALL, 2.5 + random.random(), LEADER, 0.5)
    begins, seconds, fault = call.at - 0.05, 0.7 + 0.2 * random.random(), Fault.PARTITION_TO
    slow = [
        PlannedFault(begins, fault, seconds, _FIRST_WITNESS + each, 0.1, some=True)
        for each in range((setting.witnesses or 0) + setting.spare_witnesses)
    ]
    return _changed(schedule, {at: changed}, [stall, *slow])


def _failing_request(random: Random, schedule: Schedule, active_s: float) -> Schedule:
    """Have what an operator asks for fail in the middle, or its request, or the answer."""
    at = 0.3 + random.random() * active_s
    operation = random.choice(tuple(FAILING))
    fault, point = random.choice(FAILING[operation])
    asked_at = random.choice((Point.ANSWERED_FIRST, Point.HANDLER, None))
    asked = PlannedFault(at, operation, 0.0, LEADER, random.choice((0.5, 0.9)), asked_at)
    failed = PlannedFault(at, fault, 0.1 + random.random(), LEADER, 0.9, point)
    if asked_at is None and operation is not Fault.SNAPSHOT:
        # That one is asked for on the replica itself.
        failed = PlannedFault(at - 0.001, random.choice(_ON_THE_WAY), 0.3, LEADER, 0.6)
    return _changed(schedule, {}, [asked, failed])


def _late_reads(random: Random, schedule: Schedule, active_s: float) -> Schedule:
    """Have clients read from a leader that another follows, while others write to that one.

    It hands over; or it was stopped, asked for a renewal or just granted one by a clock that
    is slow, and finds when it goes on what was sent to it meanwhile.
    """
    begins = 1.0 + random.random() * active_s * 0.8
    aim = random.choice((Point.RENEWED, Point.RENEWING, None))
    rate = _SLOW if aim is Point.RENEWED else 1.0
    if aim is None:
        until = begins + 0.4
        faults = [PlannedFault(begins, Fault.TRANSFER, 0.0, LEADER, 0.1)]
    else:
        late = aim is Point.RENEWED
        seconds = 1.15 + 0.06 * random.random() if late else 1.3 + 0.5 * random.random()
        until = begins + seconds
        faults = [PlannedFault(begins, Fault.STOP, seconds, LEADER, 0.5, aim)]
    fault, lasts_s = Fault.PARTITION_TO, until + 0.5 - begins
    faults.append(PlannedFault(begins, fault, lasts_s, LEADER, 0.9, some=True))
    place = random.randrange(len(schedule.calls) - _READS_AND_WRITES)
    calls = {}
    for at in range(place, place + _READS_AND_WRITES):
        call = schedule.calls[at]
        if call.batch or call.plain:
            continue
        reads = random.random() < 0.5
        calls[at] = replace(
            call,
            client=0 if reads else 1,
            at=until - 0.2 + 0.4 * random.random(),
            method="/sim.Accounts/Read" if reads else "/sim.Accounts/Add",
            op="read" if reads else "add",
            account="a0",
            behaviour="read" if reads else "effect",
            work_s=0.001,
            deadline_s=None,
        )
    setting = replace(schedule.setting, server_rate=rate)
    return replace(_changed(schedule, calls, faults), setting=setting)


# By the kind of deployment: of which dice, in which share of the schedules.
_DRAWN: dict[str, tuple[tuple[str, float, _Draw], ...]] = {
    "memory": (("overtaken", 0.2, _overtaken_call),),
    "sqlite": (("overtaken", 0.1, _overtaken_call),),
    "replicas": (("lapse", 0.3, _lapse_in_a_call),),
    "curp": (
        ("late records", 0.3, _late_records),
        ("failing", 0.4, _failing_request),
        ("late reads", 0.45, _late_reads),
    ),
}
