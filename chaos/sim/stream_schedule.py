"""Model of the world: calls with a stream on one side, and what strikes them half-way.

Drawn from dice of their own, so that the schedules without them stay what they were.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from chaos.sim.faults import ALL, Fault, PlannedFault, Point
from chaos.sim.in_turn import has_turn
from chaos.sim.service import REQUEST_STREAMS

if TYPE_CHECKING:
    from chaos.sim.planned import PlannedCall, Setting

__all__ = ["add_streams"]

# In which share of the schedules, and of their calls that may be one.
_SHARE = 0.25
_CALLS_SHARE = 0.2
# And in which share of those a stream is run again for who has a part of it.
_RUN_AGAIN = 0.7
# And in which several lose a message each, at one time.
_RETRIED_AT_ONCE = 0.8
_KINDS = ("memory", "sqlite", "replicas", "spark")
# So many calls are enough: a stream costs more than another call.
_ENOUGH = 200
_STREAMS_OF = {
    "/sim.Accounts/Add": ("/sim.Accounts/AddAll", "/sim.Accounts/AddTelling"),
    "/sim.Accounts/AddAtomic": ("/sim.Accounts/AddAllAtomic",),
    "/sim.Accounts/Touch": ("/sim.Accounts/TouchAll", "/sim.Accounts/TouchTelling"),
}
_Calls = tuple["PlannedCall", ...]
_Faults = tuple[PlannedFault, ...]


def add_streams(
    kind: str, seed: int, setting: Setting, calls: _Calls, faults: _Faults, active_s: float
) -> tuple[_Calls, _Faults]:
    """Have some calls of those that travel alone be made as streams, short and long."""
    if kind not in _KINDS:
        return calls, faults
    dice = Random(f"{kind} {seed} streams")  # noqa: S311 - repeatable, not secret
    if dice.random() >= _SHARE and not has_turn(seed):
        return calls, faults
    made: list[PlannedCall] = []
    # A row that several tasks send is the same call for all of them.
    chosen: dict[int, PlannedCall] = {
        call.number: call for call in calls if call.batch or call.plain
    }
    for call in calls[:_ENOUGH]:
        if call.number not in chosen:
            methods = _STREAMS_OF.get(call.method, ())
            stream = methods and dice.random() < _CALLS_SHARE
            made_of = _as_stream(call, dice.choice(methods), dice) if stream else call
            if stream and has_turn(seed):
                # So that there is a half of it.
                made_of = replace(
                    made_of, messages=max(2, made_of.messages), pace_s=max(0.002, made_of.pace_s)
                )
            chosen[call.number] = made_of
        first = chosen[call.number]
        made.append(replace(first, client=call.client, at=call.at) if first.messages else call)
    aimed = [_aimed(point, dice, setting, active_s) for point in (Point.HALF_READ, Point.HALF_MADE)]
    # What is half read breaks off, and its server goes on.
    broken = _aimed(Point.HALF_READ, dice, setting, active_s)
    aimed.append(replace(broken, fault=Fault.RESET, target=ALL))
    if kind in ("sqlite", "replicas") and dice.random() < _RUN_AGAIN:
        aimed += _run_again(made, dice)
    if kind != "spark" and dice.random() < _RETRIED_AT_ONCE:
        aimed += _retried_at_once(made, dice, setting)
    return tuple(made), tuple(sorted((*faults, *aimed), key=lambda fault: fault.at))


def _run_again(calls: list[PlannedCall], random: Random) -> list[PlannedFault]:
    """Have a response stream break off half-way, and be made once more for its caller."""
    found = [
        place
        for place, call in enumerate(calls)
        if call.op == "touch" and not (call.batch or call.plain)
    ]
    if not found:
        return []
    place = random.choice(found)
    call = calls[place]
    calls[place] = replace(
        call,
        method="/sim.Accounts/TouchTelling",
        behaviour="effect",
        deadline_s=None,
        messages=4,
        pace_s=0.2,
    )
    at = call.at + call.work_s + 0.21
    return [PlannedFault(at, Fault.CRASH, 0.2 * random.random(), ALL, 0.5, Point.HALF_MADE)]


def _retried_at_once(
    calls: list[PlannedCall], random: Random, setting: Setting
) -> list[PlannedFault]:
    """Have request streams lose a message, and be sent again before their servers know."""
    found = [
        place
        for place, call in enumerate(calls)
        if call.method.startswith("/sim.Accounts/Add")
        and "Atomic" not in call.method
        and call.client < setting.clients
        and not (call.batch or call.plain)
    ]
    if not found:
        return []
    first = random.randrange(len(found))
    at = calls[found[first]].at
    for place in found[first : first + 6]:
        calls[place] = replace(
            calls[place],
            at=at,
            method="/sim.Accounts/AddAll",
            behaviour=random.choice(("effect", "early")),
            deadline_s=None,
            messages=5,
            pace_s=0.0,
        )
    calls.sort(key=lambda call: call.at)
    target = random.randrange(setting.servers)
    return [PlannedFault(at - 0.001, Fault.LOSS, 0.01, target, 0.25)]


def _as_stream(call: PlannedCall, method: str, random: Random) -> PlannedCall:
    # Half a stream's effects would be none of these.
    behaviour = "effect" if call.behaviour == "unsure" else call.behaviour
    if method in REQUEST_STREAMS:
        if behaviour == "effect" and "Atomic" not in method and random.random() < 0.4:
            # Before it has read all.
            behaviour = "early"
        elif behaviour == "later":
            behaviour = "effect"
    return replace(
        call,
        method=method,
        behaviour=behaviour,
        messages=random.choice((1, 2, 2, 3, 4, 9)),
        pace_s=random.choice((0.0, 0.0, 0.002, 0.2)),
    )


def _aimed(point: Point, random: Random, setting: Setting, active_s: float) -> PlannedFault:
    """Have a server end, or stop, or lose its connections in the middle of a stream."""
    fault = random.choice((Fault.CRASH, Fault.CRASH, Fault.STOP, Fault.DRAIN, Fault.RESET))
    at = 0.3 + random.random() * active_s * 0.7
    seconds = random.choice((0.02, 0.2, 2.0)) * (0.2 + random.random())
    return PlannedFault(at, fault, seconds, random.randrange(setting.servers), 0.5, point)
