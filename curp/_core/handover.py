"""The handing over of a leadership that is asked for (DESIGN §7, invariants 5 and 10).

A generator that its shell drives, as ``curp._core.recovery`` is. Whatever the shell raises
ends it: then the next leader waits for the lease, and recovers what is left.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from curp._core.steps import Sync, VisibleWait

_DRAIN_S = 5.0
_SYNC_S = 5.0
_LOOK_S = 0.01


class ChangesUnderWay(NamedTuple):
    """Begin no further change of the witness list; send back whether one is in progress."""


class RefuseCalls(NamedTuple):
    """Take no more calls, and answer nothing first."""


class CountRunning(NamedTuple):
    """Send back how many calls run, or wait for their turn."""


class StepDown(NamedTuple):
    """Answer nothing any more, reads included."""


class EndNumber(NamedTuple):
    """Begin the next number, if this leader's is current, with a list that serves no calls.

    So it is known that nothing is unsynced: the next leader need ask no witness, even where
    all of them were stopped and have forgotten what they held.
    """


class EndLease(NamedTuple):
    """End the leadership's lease, so that no replica must wait for it."""


def hand_over(clock: Callable[[], float]) -> Generator[Any, Any, None]:
    """Let what runs end, for five seconds at most, have it synced, and let go.

    What was answered first is in the log, or on the witnesses as ever; an engine that does
    not answer for five seconds ends the waiting, not the promise. The number ends only when
    everything that was answered under it is in the log, and nothing can be any more. The
    lease ends only when nothing is read here any more: from then on another one's writes
    would be missed. ``clock``: seconds.
    """
    until = clock() + _DRAIN_S
    # A change in progress ends by answering first again, under its own number.
    while (changing := (yield ChangesUnderWay())) and clock() < until:
        yield VisibleWait("a change of the witness list to end", _LOOK_S)
    yield RefuseCalls()
    while (yield CountRunning()) and clock() < until:
        yield VisibleWait("the calls that run to end", _LOOK_S)
    yield Sync(timeout_s=_SYNC_S)
    yield StepDown()
    if not changing:
        yield EndNumber()
    yield EndLease()
