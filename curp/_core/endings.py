"""What becomes of a replica whose following or leading ended with an error (DESIGN §7)."""

from __future__ import annotations

import enum

from curp.log._errors import Deposed, TrimmedLog, may_pass


class CannotApply(Exception):
    """The next entry of the log is not to be applied here for now; ``str()`` says why.

    The replica waits in front of it, and cannot lead.
    """


class BeginOver(Exception):
    """What this replica knows is not the log's any more; ``str()`` says why."""


class Ending(enum.Enum):
    """What a replica does next."""

    # What it knows may never have reached the log (invariant 4), or is too old to go on
    # from: it begins over from the snapshot and the log.
    BEGIN_OVER = "begin-over"
    # The engine cannot be asked now; then it begins over, too.
    WAIT = "wait"
    # Going on would make final what is wrong, or nobody knows what is.
    STOP = "stop"


def ending_of(error: Exception) -> Ending:
    """Judge an error that nobody handled.

    ``TailMismatch`` and ``CorruptLog`` stop it: a tail that is not where it was left means
    that the engine forgot what it had acknowledged.
    """
    if isinstance(error, Deposed | TrimmedLog | CannotApply | BeginOver):
        return Ending.BEGIN_OVER
    return Ending.WAIT if may_pass(error) else Ending.STOP
