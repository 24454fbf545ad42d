"""The event of calls that a server ended because their message did not come."""

from __future__ import annotations

import math
from collections.abc import Sequence

from _rifl_ground.log import get_logger
from rifl._grpc.waiting import WaitingCall

_log = get_logger("rifl.server")
_EVERY_S = 60.0


class EndedCalls:
    """Writes the event at most once a minute. Any thread."""

    def __init__(self) -> None:
        self._number = 0
        self._next = -math.inf

    def note(self, calls: Sequence[WaitingCall], now: float) -> None:
        """Count calls that were ended; hold no lock."""
        if not calls:
            return
        self._number += len(calls)
        if now >= self._next:
            self._next = now + _EVERY_S
            number, self._number = self._number, 0
            _log.warning("calls_without_message", calls=number, source=calls[-1].source)
