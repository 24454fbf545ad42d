"""The sending of an append until it is known what became of it, within a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from sharedlog._core.errors import LogFull, LogStopped, LogUnavailable
from sharedlog._core.steps import Rule
from sharedlog._log.place import Place

_T = TypeVar("_T")
_SHORTEST_S, _LONGEST_S = 0.01, 1.0


class Unknown(LogUnavailable):
    """The time is over, and an attempt was not answered."""


def until_known(place: Place, rule: Callable[[], Rule[_T]], *, unknown: bool = False) -> _T:
    """Run a rule that may be run again, until it is answered or refused.

    ``unknown``: an attempt was made before, and not answered.
    Raises ``Unknown`` where that is not known at the end of the log's time, or when the log is
    closed; ``LogUnavailable`` with ``appended`` False where no attempt arrived. A full store is
    told at once.
    """
    end = time.monotonic() + place.timeout_s
    pause_s = _SHORTEST_S
    while True:
        try:
            return place.run(rule())
        except LogUnavailable as error:
            if isinstance(error, LogFull) and not unknown:
                raise
            unknown = unknown or error.appended is not False
            left_s = 0.0 if isinstance(error, LogStopped) else end - time.monotonic()
            if left_s <= 0 or place.closing.wait(min(pause_s, left_s)):
                if unknown:
                    raise Unknown(str(error)) from error
                raise
        pause_s = min(2 * pause_s, _LONGEST_S)


def not_sent(error: LogUnavailable) -> LogUnavailable:
    """Return the error of what was not sent because of an error that came before."""
    found = LogUnavailable(f"nothing of this was sent: {error}")
    found.appended = False
    return found
