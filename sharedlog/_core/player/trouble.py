"""The trouble that a target was cut off for (DESIGN-LOG §15, P4, P7)."""

from __future__ import annotations

import enum
from typing import NamedTuple

from sharedlog._core.position import Position


class Cause(enum.Enum):
    """Why a target was cut off."""

    FULL = "its queue is full"
    GAP = "its index is elsewhere than it was asked"
    LATE = "it does not answer"
    BROKEN = "its connection broke"
    GARBAGE = "it answers what was not asked"
    FAILED = "a handler failed"
    REFUSED = "a message is refused"
    UNKNOWN = "the outcome of a message is unknown"
    FORKED = "its index is of another log"
    OTHER_STORE = "another store stands there than it was asked in"
    UNAVAILABLE = "it takes nothing at present"
    NOT_ALLOWED = "it does not let this player in"
    CONFIG = "its declaration cannot be used"
    RESTARTED = "the player begins anew"
    ORDERED = "an operator decided so"
    DIED = "its process ended"
    HUNG = "a handler hangs"


# Those that a target answers of a message, which does not run then, nor what is behind it.
ANSWERS = frozenset(
    (Cause.GAP, Cause.FAILED, Cause.REFUSED, Cause.UNKNOWN, Cause.FORKED, Cause.UNAVAILABLE)
)


class Trouble(NamedTuple):
    """What a target was cut off for, and the message that it is about, if one is known.

    ``alone``: that one was in flight by itself: nothing else can be the reason.
    """

    cause: Cause
    tag: str = ""
    place: Position | None = None
    code: int = 0
    details: str = ""
    alone: bool = False
