"""Model of the world: keys that two processes ask for, the second while the store is away.

Drawn from dice of their own, so that the schedules without them stay what they were.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from chaos.sim.faults import Fault, PlannedFault

if TYPE_CHECKING:
    from chaos.sim.planned import PlannedCall, Setting

__all__ = ["share_keys"]

_SHARE = 0.3
_KEYS = 6
_SESSION = "shared/keys"
# Until the first process has its answers; then the store is away for longer than the second
# tries by the SDK, or without it.
_ANSWERED_S = 1.5
_TRIES_S, _AWAY_S = 2.0, 5.0
_AWAY_FROM_PLAIN_S = 11.0
# No fewer faults than a schedule has to have.
_LEAST_FAULTS = 5
_Calls = tuple["PlannedCall", ...]
_Faults = tuple[PlannedFault, ...]


def share_keys(
    kind: str, seed: int, setting: Setting, calls: _Calls, faults: _Faults, active_s: float
) -> tuple[Setting, _Calls, _Faults]:
    """Have some keys that one process ran be asked for by another, whom no store can tell.

    The second process knows its session already, or has yet to open it, or has none and sends
    its keys in a header.
    """
    dice = Random(f"{kind} {seed} shared keys")  # noqa: S311 - repeatable, not secret
    found = [
        call
        for call in calls
        if (call.op, call.behaviour) == ("add", "effect")
        and not (call.batch or call.key or call.messages)
    ]
    if kind != "replicas" or dice.random() >= _SHARE or len(found) <= _KEYS:
        return setting, calls, faults
    chosen = dice.sample(found, _KEYS + 1)
    known, plain = dice.choice(((True, False), (False, False), (False, True)))
    away_s = _AWAY_FROM_PLAIN_S if plain else _AWAY_S
    begins = dice.uniform(2.0, active_s - away_s)
    away = begins + _ANSWERED_S
    made = [call for call in calls if call not in chosen]
    for number, call in enumerate(chosen[:_KEYS]):
        key = b"shared %d" % number
        session = "" if plain else _SESSION
        first = replace(
            call, client=0, session=session, key=key, plain=plain, work_s=0.01, deadline_s=None
        )
        # A deadline is what ends a call that waits for its session.
        deadline_s = None if known else 0.5 + dice.random()
        at = away + 0.1 + 0.2 * dice.random()
        made.append(replace(first, at=begins + 0.1 * number))
        made.append(replace(first, client=1, at=at, deadline_s=deadline_s, resolves=False))
    if known:
        opener = replace(chosen[-1], client=1, session=_SESSION, key=b"opens it", at=begins)
        made.append(replace(opener, deadline_s=None))
    else:
        made.append(chosen[-1])
    # A fault that strikes others then takes nothing from it, if enough of that is left.
    alone = [fault for fault in faults if not begins - 1.0 <= fault.at <= away + away_s]
    if len(alone) < _LEAST_FAULTS - 1:
        alone = list(faults)
    alone.append(PlannedFault(away, Fault.STORE_STALL, away_s, 0, 0.5))
    return (
        replace(setting, max_elapsed_s=_TRIES_S, hedge_after_s=None, attempt_timeout_s=None),
        tuple(sorted(made, key=lambda call: call.at)),
        tuple(sorted(alone, key=lambda fault: fault.at)),
    )
