"""How a leader lets go of its leadership when it is asked to (DESIGN §7, invariant 10).

A generator that its shell drives, as ``curp.core.recovery`` is. Whatever the shell raises
ends it: then the next leader waits for the lease, and recovers what is left.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from curp.core.recovery import Wait
from curp.core.steps import Sync

__all__ = ["CountRunning", "EndLease", "RefuseCalls", "StepDown", "hand_over"]

_DRAIN_S = 5.0
_LOOK_S = 0.01


class RefuseCalls(NamedTuple):
    """Take no more calls, and answer nothing first."""


class CountRunning(NamedTuple):
    """Send back how many calls run, or wait for their turn."""


class StepDown(NamedTuple):
    """Answer nothing any more, reads included."""


class EndLease(NamedTuple):
    """End the leadership's lease, so that nobody need wait for it."""


def hand_over(clock: Callable[[], float]) -> Generator[Any, Any, None]:
    """Let what runs end, for five seconds at most, have it synced, and let go.

    What was answered first is in the log, or on the witnesses as ever. The lease ends only
    when nothing is read here any more: from then on another one's writes would be missed.
    ``clock``: seconds.
    """
    yield RefuseCalls()
    until = clock() + _DRAIN_S
    while (yield CountRunning()) and clock() < until:
        yield Wait("the calls that run to end", _LOOK_S)
    yield Sync()
    yield StepDown()
    yield EndLease()
