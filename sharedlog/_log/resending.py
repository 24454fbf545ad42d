"""The sending of an append until it is known what became of it, within a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from sharedlog._core.errors import LogFull, LogStopped, LogUnavailable
from sharedlog._core.steps import Rule
from sharedlog._log.place import LONGEST_S, SHORTEST_S, Place

_T = TypeVar("_T")


class Unknown(LogUnavailable):
    """An attempt was not answered, and the timeout passed, or the log was closed or stopped.

    Never a user's: what was sent tells it as ``AppendUnknown``, what was read as ``last``, the
    last attempt's error.
    """

    def __init__(self, message: str, last: LogUnavailable) -> None:
        """``message``: why no more is tried."""
        super().__init__(message)
        self.last = last

    @property
    def stopped(self) -> bool:
        """Whether this handle cannot learn it any more."""
        return isinstance(self.last, LogStopped)


def until_known(
    place: Place,
    rule: Callable[[], Rule[_T]],
    *,
    unknown: bool = False,
    full: Callable[[], bool] = lambda: False,
) -> _T:
    """Run a rule that may be run again, until it is answered or refused.

    ``unknown``: an attempt was made before, and not answered. ``full``: called where there is no
    room to find out what became of that; whether it is known now that it did not happen.
    Raises ``Unknown`` if that is not known at the end of the log's time, or when the log is
    closed; ``LogUnavailable`` (of a closed log ``LogStopped``) with ``appended`` False if no
    attempt arrived. A full store is told at once.
    """
    end = time.monotonic() + place.timeout_s
    pause_s = SHORTEST_S
    while True:
        try:
            if place.closing.is_set():
                raise _closed()
            return place.attempt(rule())
        except LogUnavailable as error:
            if isinstance(error, LogFull) and (not unknown or full()):
                raise
            unknown = unknown or error.appended is not False
            stopped = isinstance(error, LogStopped)
            left_s = 0.0 if stopped or not error.passing else end - time.monotonic()
            if left_s <= 0:
                if not unknown:
                    raise
                why = (
                    f"{error}, before the log said what became of it"
                    if stopped or not error.passing
                    else f"the log did not say within {place.timeout_s:g} s ({error})"
                )
                raise Unknown(why, error) from error
            place.closing.wait(min(pause_s, left_s))
        pause_s = min(2 * pause_s, LONGEST_S)


def until_answered(place: Place, rule: Callable[[], Rule[_T]]) -> _T:
    """As ``until_known``, of a rule that appends no message: nothing of it is unknown."""
    try:
        return until_known(place, rule)
    except Unknown as error:
        last = error.last
    last.appended = False
    raise last


def not_sent(error: LogUnavailable) -> LogUnavailable:
    """Return the error of what was not sent because of an error that came before."""
    last = error.last if isinstance(error, Unknown) else error
    kind = LogStopped if isinstance(last, LogStopped) else LogUnavailable
    found = kind(f"nothing of this was sent: {error}")
    found.appended = False
    return found


def _closed() -> LogStopped:
    found = LogStopped("the log was closed")
    found.appended = False
    return found
