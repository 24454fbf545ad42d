"""Model of the world: schedules of replicas with a method that is never claimed (DESIGN §4).

Drawn from dice of their own, so that the schedules without them stay what they were.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from chaos.sim.planned import PlannedCall, Setting

__all__ = ["leave_unclaimed"]

# One schedule in so many; and of its calls that can be, such a share.
_EVERY, _SHARE = 7, 0.5
_BEHAVIOURS = ("effect", "effect", "effect", "unsure", "later", "raise", "abort")


def leave_unclaimed(
    kind: str, seed: int, setting: Setting, calls: tuple[PlannedCall, ...]
) -> tuple[Setting, tuple[PlannedCall, ...]]:
    """Have some sequenced calls, each in an RPC of its own, be of that method."""
    if kind != "replicas" or seed % _EVERY:
        return setting, calls
    dice = Random(f"{kind} {seed} unclaimed")  # noqa: S311 - repeatable, not secret
    made = [
        _never_claimed(call, dice) if _can_be(call) and dice.random() < _SHARE else call
        for call in calls
    ]
    return replace(setting, never_claimed=True), tuple(made)


def _can_be(call: PlannedCall) -> bool:
    return call.op != "read" and not (call.batch or call.key or call.messages)


def _never_claimed(call: PlannedCall, dice: Random) -> PlannedCall:
    # Some work for long enough for another attempt, or a question what became of it.
    work_s = dice.random() * 0.8 if dice.random() < 0.3 else call.work_s
    return replace(
        call,
        method="/sim.Accounts/TouchUnclaimed",
        op="touch",
        account=f"t{dice.randrange(2)}",
        behaviour=dice.choice(_BEHAVIOURS),
        work_s=work_s,
        deadline_s=0.3 if dice.random() < 0.4 else call.deadline_s,
        resolves=dice.random() < 0.8,
    )
