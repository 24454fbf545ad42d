"""Warnings that a peer could cause without end: one in a while for each key."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from _rifl_ground.refusals import caller_text

_EVERY_S = 10.0


class SeldomLog:
    """Writes at most one warning in ten seconds for each key, with the number of those left out.

    Thread-safe. Keys are reasons: a peer must not be able to make new ones.
    """

    def __init__(self, log: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._lock = threading.RLock()
        self._last: dict[str, tuple[float, int]] = {}

    def warn(self, event: str, key: str, **fields: Any) -> None:
        """Write an event, if its key is due."""
        now = self._clock()
        with self._lock:
            since, left_out = self._last.get(key, (-_EVERY_S, 0))
            due = now - since >= _EVERY_S
            self._last[key] = (now, 0) if due else (since, left_out + 1)
        if due:
            self._log.warning(event, **fields, left_out=left_out)

    def cause(self, error: Exception, **fields: Any) -> None:
        """Write the whole text of a refusal of which its caller is told less."""
        cause = error.__cause__
        if caller_text(error) == str(error) and cause is None:
            return
        reason = getattr(error, "reason", type(error).__name__)
        fields = {"reason": reason, **fields, "error": str(error)}
        self.warn(
            "refused_for_a_cause", reason, **fields, cause=None if cause is None else repr(cause)
        )
