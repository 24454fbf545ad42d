"""Clients whose row another session of the database has locked, in a store that many share."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_REST_S = 0.5
# How long a claim may wait in the database, and some more.
_PROBE_S = 2.0
_REMEMBERED = 4096


class Stalls:
    """Lets one claim of a stalled client try at a time, and not too often. Thread-safe.

    Each that tries waits in the database, on a connection that other clients need.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        # For each client whose row is locked: until when no request asks for it.
        self._until: dict[int, float] = {}

    def __bool__(self) -> bool:
        """Whether any client is stalled."""
        return bool(self._until)

    def may_try(self, client_id: int) -> bool:
        """Whether a claim of this client may be sent now."""
        with self._lock:
            until = self._until.get(client_id)
            if until is None:
                return True
            if self._clock() < until:
                return False
            self._until[client_id] = self._clock() + _PROBE_S
            return True

    def stalled(self, client_id: int) -> None:
        """Note that a claim found the client's row locked."""
        with self._lock:
            if len(self._until) >= _REMEMBERED:
                self._until.clear()
            self._until[client_id] = self._clock() + _REST_S

    def moved(self, client_id: int) -> None:
        """Note that a claim was decided."""
        if self._until:
            with self._lock:
                self._until.pop(client_id, None)
