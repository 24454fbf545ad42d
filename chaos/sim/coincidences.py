"""What has to come together for a rule to be needed, added to what a seed drew.

Each is drawn from dice of its own, so that the schedules without it stay what they were.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from chaos.sim.faults import ALL, LEADER, Fault, PlannedFault, Point

if TYPE_CHECKING:
    from chaos.sim.schedule import PlannedCall, Setting

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
_Calls = tuple["PlannedCall", ...]
_Faults = list[PlannedFault]
_Draw = Callable[[Random, "Setting", _Calls, float], tuple[_Calls, _Faults]]


def add_coincidences(
    kind: str,
    seed: int,
    setting: Setting,
    calls: _Calls,
    faults: tuple[PlannedFault, ...],
    active_s: float,
) -> tuple[_Calls, tuple[PlannedFault, ...]]:
    """Add to the calls and faults of a schedule, whose calls are made within ``active_s``."""
    for name, share, draw in _DRAWN.get(kind, ()):
        dice = Random(f"{kind} {seed} {name}")  # noqa: S311 - repeatable, not secret
        if dice.random() < share:
            calls, added = draw(dice, setting, calls, active_s)
            faults = tuple(sorted((*faults, *added), key=lambda fault: fault.at))
    return calls, faults


def _overtaken_call(
    random: Random, setting: Setting, calls: _Calls, active_s: float
) -> tuple[_Calls, _Faults]:
    """Have callers ask what became of calls that arrive after the question."""
    at = 0.3 + random.random() * active_s * 0.8
    # What was sent to a server that cannot be reached comes at the end, in any order.
    slow = PlannedFault(at, Fault.PARTITION_TO, 1.2 + random.random(), 0, 0.1)
    changed = tuple(
        replace(call, deadline_s=0.2, resolves=True)
        if at <= call.at < at + 0.5 and not (call.batch or call.plain)
        else call
        for call in calls
    )
    return changed, [slow]


def _lapse_in_a_call(
    random: Random, setting: Setting, calls: _Calls, active_s: float
) -> tuple[_Calls, _Faults]:
    """Have a client's lease end while a call of it runs, on a replica that is not dead.

    Both are stopped for as long as that takes, and are back.
    """
    found = [
        call
        for call in calls
        if call.client < setting.clients
        and (call.op, call.behaviour) == ("add", "effect")
        and not (call.batch or call.plain or call.session)
    ]
    if not found:
        return calls, []
    call = random.choice(found)
    changed = replace(call, work_s=0.3, deadline_s=None)
    at, seconds = call.at + 0.02, 1.5 + setting.term_s * (1.2 + 0.3 * random.random())
    # Clients are counted from the last.
    target = setting.clients - 1 - call.client
    return tuple(changed if each is call else each for each in calls), [
        PlannedFault(at, Fault.CLIENT_STOP, seconds, target, 0.5),
        PlannedFault(at, Fault.STOP, seconds, ALL, 0.5, Point.HANDLER),
    ]


def _late_records(
    random: Random, setting: Setting, calls: _Calls, active_s: float
) -> tuple[_Calls, _Faults]:
    """Have an old leader answer a call whose records reach the next one's witnesses.

    It is cut off from the log, and another leads before the call's handler ends; what some
    clients send to witnesses comes after that.
    """
    found = [
        call
        for call in calls
        if call.client in _SOME_CLIENTS
        and setting.plain_clients <= call.client < setting.clients
        and call.client != setting.misled_client
        and (call.op, call.behaviour) == ("add", "effect")
        and not call.batch
        and call.at > 1.0
    ]
    if not found:
        return calls, []
    call = random.choice(found)
    changed = replace(call, work_s=0.7 + 0.2 * random.random(), deadline_s=None)
    # Its lease is over at the latest 0.4 s after the call has come.
    stall = PlannedFault(call.at - 0.6, Fault.STORE_STALL, 2.5 + random.random(), LEADER, 0.5)
    seconds = 0.7 + 0.2 * random.random()
    slow = [
        PlannedFault(
            call.at - 0.05, Fault.PARTITION_TO, seconds, _FIRST_WITNESS + each, 0.1, some=True
        )
        for each in range((setting.witnesses or 0) + setting.spare_witnesses)
    ]
    return tuple(changed if each is call else each for each in calls), [stall, *slow]


def _failing_request(
    random: Random, setting: Setting, calls: _Calls, active_s: float
) -> tuple[_Calls, _Faults]:
    """Have what an operator asks for fail in the middle."""
    at = 0.3 + random.random() * active_s
    operation = random.choice(tuple(FAILING))
    fault, point = random.choice(FAILING[operation])
    asked_at = random.choice((Point.ANSWERED_FIRST, Point.HANDLER, None))
    share = random.choice((0.5, 0.9))
    return calls, [
        PlannedFault(at, operation, 0.0, LEADER, share, asked_at),
        PlannedFault(at, fault, 0.1 + random.random(), LEADER, 0.9, point),
    ]


# By the kind of deployment: of which dice, in which share of the schedules.
_DRAWN: dict[str, tuple[tuple[str, float, _Draw], ...]] = {
    "memory": (("overtaken", 0.2, _overtaken_call),),
    "sqlite": (("overtaken", 0.1, _overtaken_call),),
    "replicas": (("lapse", 0.3, _lapse_in_a_call),),
    "curp": (("late records", 0.3, _late_records), ("failing", 0.4, _failing_request)),
}
