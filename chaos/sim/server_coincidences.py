"""Model of the world: coincidences at servers that a rule is there for."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from chaos.sim.changed_schedule import changed, some_add
from chaos.sim.faults import ALL, Fault, PlannedFault, Point
from chaos.sim.planned import Schedule

__all__ = [
    "acknowledged_while_it_runs",
    "claim_that_is_lost",
    "expired_and_back",
    "lapse_in_a_call",
    "overtaken_call",
]


def overtaken_call(random: Random, schedule: Schedule, active_s: float) -> Schedule:
    """Have callers ask what became of calls that arrive after the question."""
    begins = 0.3 + random.random() * active_s * 0.8
    # What was sent to a server that cannot be reached comes at the end, in any order.
    slow = PlannedFault(begins, Fault.PARTITION_TO, 1.2 + random.random(), 0, 0.1)
    calls = {
        at: replace(call, deadline_s=0.2, resolves=True)
        for at, call in enumerate(schedule.calls)
        if begins <= call.at < begins + 0.5 and not (call.batch or call.plain)
    }
    return changed(schedule, calls, [slow])


def expired_and_back(random: Random, schedule: Schedule, active_s: float) -> Schedule:
    """Have a server die when it has told clients that they are over, and copies come later.

    What was sent to it meanwhile arrives when their leases are over; what a slow disk has not
    got by then is not known any more.
    """
    begins, lasts_s = 0.5 + random.random() * active_s * 0.6, 2.1
    until = begins + lasts_s
    calls = {
        at: replace(call, deadline_s=None)
        for at, call in enumerate(schedule.calls)
        if begins <= call.at < until and not (call.batch or call.plain)
    }
    faults = [
        PlannedFault(begins, Fault.PARTITION_TO, lasts_s, 0, 0.1),
        PlannedFault(begins, Fault.DUPLICATE, lasts_s, 0, 0.9),
        PlannedFault(begins, Fault.SLOW_DISK, lasts_s + 1.0, 0, 3.0),
        PlannedFault(begins, Fault.CRASH, 0.005, 0, 0.5, Point.EXPIRED),
    ]
    setting = replace(
        schedule.setting,
        term_s=2.0,
        max_elapsed_s=20.0,
        attempt_timeout_s=None,
        hedge_after_s=None,
    )
    made = changed(schedule, calls, faults, (begins - 1.0, until + 1.0))
    return replace(made, setting=setting)


def acknowledged_while_it_runs(random: Random, schedule: Schedule, active_s: float) -> Schedule:
    """Have a caller give a call up before it is answered, and say so, and the server die then.

    Copies of it come when the server is back. No other client calls until then.
    """
    found = some_add(random, schedule, lambda call: call.at < active_s * 0.7)
    if found is None:
        return schedule
    at, call = found
    later = some_add(random, schedule, lambda other: other.at > call.at)
    if later is None:
        return schedule
    after = call.at + 2.5
    calls = {
        place: replace(other, at=after + 0.5 * random.random())
        for place, other in enumerate(schedule.calls)
        if call.at <= other.at < after
    }
    calls[at] = replace(
        call,
        method="/sim.Accounts/Read",
        op="read",
        behaviour="read",
        work_s=1.6,
        deadline_s=0.05,
        resolves=False,
    )
    calls[later[0]] = replace(
        call, number=later[1].number, at=call.at + 1.3, work_s=1.0, deadline_s=None
    )
    faults = [PlannedFault(call.at - 0.001, Fault.DUPLICATE, 0.01, 0, 0.9) for _ in range(4)]
    faults.append(PlannedFault(call.at + 1.4, Fault.CRASH, 0.1, 0, 0.5, Point.ANSWERED))
    setting = replace(schedule.setting, unresolved_s=1.0, attempt_timeout_s=None)
    made = changed(schedule, calls, faults, (call.at - 0.5, after))
    return replace(made, setting=setting)


def claim_that_is_lost(random: Random, schedule: Schedule, active_s: float) -> Schedule:
    """Have a store answer one of two arrivals of a call, and their caller not wait for more."""
    begins = 0.5 + random.random() * active_s * 0.8
    calls = {
        at: replace(call, work_s=1.0, deadline_s=0.9)
        for at, call in enumerate(schedule.calls)
        if begins <= call.at < begins + 0.5 and not (call.batch or call.plain)
    }
    faults = [
        PlannedFault(begins, Fault.DUPLICATE, 0.5, index, 0.9)
        for index in range(schedule.setting.servers)
    ]
    faults += [
        PlannedFault(begins, Fault.STORE_LOSS, 1.5, index, 0.5)
        for index in range(schedule.setting.servers)
    ]
    return changed(schedule, calls, faults, (begins - 1.0, begins + 1.5))


def lapse_in_a_call(random: Random, schedule: Schedule, active_s: float) -> Schedule:
    """Have a client's lease end while a call of it runs, on a replica that is not dead.

    Both are stopped for as long as that takes, and are back.
    """
    setting = schedule.setting
    found = some_add(random, schedule, lambda call: True)
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
    return changed(schedule, {at: replace(call, work_s=0.3, deadline_s=None)}, stops)
