"""The log engine of a replica that starts: waited for while it cannot be asked (DESIGN §7)."""

from __future__ import annotations

import time
from collections.abc import Callable

from _rifl_ground.log import get_logger
from curp.log._commits import GroupLog
from curp.log._errors import LogError, may_pass
from curp.log._opening import open_engine

_log = get_logger("curp.replica")
_FIRST_PAUSE_S = 0.2
_LAST_PAUSE_S = 2.0


def open_at_start(
    url: str,
    name: str,
    wait_s: float,
    *,
    pause: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> GroupLog:
    """Open a log; while its engine cannot be asked, ask again, for so many seconds.

    Machines come back in any order after an outage, so what may pass is no reason to end.
    ``name`` is the replica's, for the event; ``pause`` waits for seconds, and raises where the
    replica shall not start any more. Raises the engine's last ``LogUnavailable``, and at
    once whatever is an answer: asked again, it would be the same.
    """
    until_s = clock() + wait_s
    pause_s, told = _FIRST_PAUSE_S, ""
    while True:
        try:
            return open_engine(url)
        except LogError as error:
            left_s = until_s - clock()
            if left_s <= 0 or not may_pass(error):
                raise
            reason = f"the log engine cannot be asked: {error}"
        if reason != told:
            told = reason
            _log.warning("waiting", replica=name, reason=reason)
        pause(min(pause_s, left_s))
        pause_s = min(2 * pause_s, _LAST_PAUSE_S)
