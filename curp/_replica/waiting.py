"""What a replica waits for, where everybody can see it."""

from __future__ import annotations

import threading

from rifl._log import get_logger

_log = get_logger("curp.replica")
RETRY_S = 0.1


class Waiting:
    """Waits of the replica's thread, which end when the replica is closed.

    ``reason`` is what it waits for, or why it stopped; empty if neither.
    """

    def __init__(self, replica: str, closing: threading.Event) -> None:
        self._replica = replica
        self._closing = closing
        self.reason = ""

    @property
    def closing(self) -> bool:
        """Whether the replica is being closed."""
        return self._closing.is_set()

    def wait(self, reason: str, seconds: float = RETRY_S) -> None:
        """Wait so long, for that."""
        if reason != self.reason:
            self.reason = reason
            _log.warning("waiting", replica=self._replica, reason=reason)
        self._closing.wait(seconds)
