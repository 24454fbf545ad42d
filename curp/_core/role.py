"""The role of a replica: it follows, takes over, leads and steps down (DESIGN §7).

A generator that its shell drives, as ``curp._core.recovery`` is. What it knows may never have
reached the log (invariant 4), or may be too old to go on from: whatever ends a leadership, and
most of what ends following, has it begin over from the snapshot and the log.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from curp._core.handover import EndLease
from curp._core.housekeeping import ExpireKeys
from curp._core.recovery import Recovered
from curp._core.steps import VisibleWait
from curp.log._errors import (
    LeadershipOver,
    LeaseHeld,
    LogError,
    LogStopped,
    TrimmedLog,
    may_pass,
)
from rifl.core._shared.errors import RiflError

RETRY_S = 0.1
# Between two looks whether what cannot be applied can be.
_HELD_S = 0.5
_HANDLERS_S = 0.01


class Role:
    """What a replica does, as ``curp.v1.GroupStatusReply`` names it."""

    LEADER = "leader"
    STANDBY = "standby"
    RECOVERING = "recovering"
    STOPPED = "stopped"


class CannotApply(Exception):
    """The next entry of the log is not to be applied here for now; ``str()`` says why.

    The replica waits in front of it, and cannot lead.
    """


class BeginOver(Exception):
    """What this replica knows is not the log's any more; ``str()`` says why."""


class RoleEnding(enum.Enum):
    """What a replica does next."""

    # What it knows may never have reached the log (invariant 4), or is too old to go on
    # from: it begins over from the snapshot and the log.
    BEGIN_OVER = "begin-over"
    # The engine cannot be asked now; then it begins over, too.
    WAIT = "wait"
    # To go on would make an error final, or the error is not known.
    STOP = "stop"


def ending_of(error: Exception) -> RoleEnding:
    """Judge an error that no caller handled.

    ``TailMismatch`` and ``CorruptLog`` stop it: a tail that is not where it was left means
    that the engine forgot what it had acknowledged.
    """
    if isinstance(error, LeadershipOver | TrimmedLog | CannotApply | BeginOver):
        return RoleEnding.BEGIN_OVER
    return RoleEnding.WAIT if may_pass(error) else RoleEnding.STOP


class Begin(NamedTuple):
    """See who leads, and where the log ends, before any of it is read."""


class CountHandlers(NamedTuple):
    """Send back how many handlers of earlier leaderships may still run."""


class TellSurvival(NamedTuple):
    """Say of the leaderships that are over that this process outlived them (invariant 12)."""


class Rebuild(NamedTuple):
    """Begin over from the newest snapshot, or from nothing."""


class ApplyMore(NamedTuple):
    """Apply what is in the log; send back whether there was anything."""


class AwaitEntry(NamedTuple):
    """Wait for another entry, no longer than the leader's lease; send back if there is one."""


class MayTakeOver(NamedTuple):
    """Send back whether it is this replica's turn to lead; ``behind``: it has not all entries."""

    behind: bool


class NameLeader(NamedTuple):
    """Let refusals name the leader."""


class TakeLeadership(NamedTuple):
    """Take a new number, and keep its lease from now on; send back the number."""


class Recover(NamedTuple):
    """Carry ``curp._core.recovery.recover`` out, under that number; send back what it gives."""

    number: int


class TakeCalls(NamedTuple):
    """Take calls."""

    number: int
    found: Recovered


class AwaitEnd(NamedTuple):
    """Wait until the leadership is over or must be given up; send back why, if it is over."""


class HandOver(NamedTuple):
    """Carry ``curp._core.handover.hand_over`` out."""


class GiveUp(NamedTuple):
    """Let others try to lead first: no witness can be asked here."""

    number: int


class EndLeadership(NamedTuple):
    """End everything of the leadership but its lease; send back why it was over, if it was.

    ``knows``: nothing was begun under the number, so that the state is still the log's.
    """

    knows: bool


class RoleEnded(NamedTuple):
    """Following or leading ended with an error; ``ending`` says what comes next."""

    error: Exception
    ending: RoleEnding


def follow_and_lead(closing: Callable[[], bool]) -> Generator[Any, Any, None]:
    """Be a replica, until it is closed, or must stop.

    ``closing``: whether it is being closed; then every wait ends. A crash anywhere leaves what
    the log and the witnesses have, and a lease that others wait for.
    """
    while not closing():
        try:
            yield Begin()
            while (yield CountHandlers()) and not closing():
                yield VisibleWait("handlers of an earlier leadership to end", _HANDLERS_S)
            # Though it may not be able to begin over.
            yield TellSurvival()
            yield Rebuild()
            while not closing():
                yield from _follow(closing)
                if not closing():
                    yield from _lead()
        except Exception as error:  # noqa: BLE001 - judged
            if isinstance(error, LogStopped) and closing():
                # Its engine was closed: no caller waited any longer.
                return
            ending = ending_of(error)
            yield RoleEnded(error, ending)
            if ending is RoleEnding.STOP:
                return
            if ending is RoleEnding.WAIT:
                yield _engine_wait(error)
            elif isinstance(error, CannotApply):
                yield VisibleWait(str(error), _HELD_S)


def _follow(closing: Callable[[], bool]) -> Generator[Any, Any, None]:
    """Apply what others append, until no replica leads and it is this one's turn."""
    while not closing():
        try:
            behind = yield ApplyMore()
            if not behind:
                behind = yield AwaitEntry()
            # Late is safe: counted from when the entry was read here.
            yield ExpireKeys()
            yield TellSurvival()
            if (yield MayTakeOver(behind)):
                return
        except LogError as error:
            if not may_pass(error):
                raise
            # What was applied stands.
            yield _engine_wait(error)
        except CannotApply as error:
            # It does not come to a turn at leading, and tells callers who leads.
            yield NameLeader()
            yield VisibleWait(str(error), _HELD_S)


def _lead() -> Generator[Any, Any, None]:
    """Take over, serve until deposed or asked to end, and step down.

    Ends with an error always, since the state has to be made anew; it returns
    only if nothing was begun: the state is still what the log made it.
    """
    try:
        number: int = yield TakeLeadership()
    except LeaseHeld:
        # Another replica was faster.
        return
    except LogError as error:
        if not may_pass(error):
            raise
        # It may have been taken, and nothing was done under it: others wait for its lease.
        yield _engine_wait(error)
        return
    gave_up = False
    raised: Exception | None = None
    try:
        found: Recovered | None = yield Recover(number)
        if found is None:
            yield GiveUp(number)
            gave_up = True
        else:
            yield TakeCalls(number, found)
            if (yield AwaitEnd()) is None:
                yield HandOver()
    except Exception as error:  # noqa: BLE001 - raised when the leadership has ended
        raised = error
    why: Exception | None = yield EndLeadership(knows=gave_up)
    if why is None:
        # Asked to end, or it failed here: no replica must wait for the lease. Before that, and so
        # before another replica counts what it left noted, it says that it lives.
        yield from _if_it_can(TellSurvival())
        yield from _if_it_can(EndLease())
    if isinstance(raised, RiflError):
        # The leadership ended under what was being done.
        raise why or LeadershipOver(str(raised)) from raised
    if raised is not None:
        raise raised
    if why is not None or not gave_up:
        raise why or LeadershipOver("the leadership was given up")


def _if_it_can(step: TellSurvival | EndLease) -> Generator[Any, Any, None]:
    try:
        yield step
    except LogError:
        return


def _engine_wait(error: Exception) -> VisibleWait:
    return VisibleWait(f"the log engine: {error}", RETRY_S)
