"""The log of refusals: which of them are worth an event, and how often (DESIGN §9)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from _rifl_ground.log import get_logger
from rifl.core._shared import errors
from rifl.core._shared.call import Call
from rifl.core._shared.errors import RiflError

_log = get_logger("rifl.server")
# These are somebody's mistake, and say so once in a while; the others are how the
# protocol goes on under load, faults and restarts.
_BUGS = frozenset(
    error.reason
    for error in (
        errors.BadHeader,
        errors.NotRecorded,
        errors.NotYours,
        errors.PayloadMismatch,
        errors.ResponseTooLarge,
        errors.StaleRpc,
        errors.StoreMismatch,
    )
)
_EVERY_S = 10.0


class RefusalLog:
    """Writes a warning for refusals that signal a bug, and a debug event for all.

    At most one warning in ten seconds for each reason, with the number of those
    left out, so that a peer that sends garbage cannot fill the disk. Thread-safe.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._last: dict[str, tuple[float, int]] = {}

    def refused(self, method: str, call: Call | None, error: RiflError) -> None:
        """Note one refusal."""
        identity: dict[str, Any] = {"method": method, "reason": error.reason}
        if call is not None:
            identity["rpc_id"] = str(call.rpc_id)
            identity["attempt"] = call.attempt
        _log.debug("refused", **identity)
        # A later attempt of an acknowledged call is a copy that came late: nobody waits for it.
        late = error.reason == errors.StaleRpc.reason and call is not None and call.attempt > 1
        if error.reason not in _BUGS or late:
            return
        now = self._clock()
        with self._lock:
            since, left_out = self._last.get(error.reason, (-_EVERY_S, 0))
            due = now - since >= _EVERY_S
            self._last[error.reason] = (now, 0) if due else (since, left_out + 1)
        if due:
            _log.warning("refused_a_mistake", **identity, error=str(error), left_out=left_out)
