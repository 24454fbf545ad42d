"""A clock that stands still until it is moved."""

from __future__ import annotations

import threading


class FakeClock:
    """Monotonic seconds for ``Deduplicator(clock=...)``. Any thread.

    Leases and retentions end when you say so; deadlines of gRPC do not follow it.
    """

    # All of its time counts for retentions, in steps of any length: see ``core.LivedTime``.
    is_lived_through = True

    def __init__(self, now: float = 1_000.0) -> None:
        self._now = now
        self._lock = threading.Lock()

    def __call__(self) -> float:
        """Return the time."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Let time pass; raises ``ValueError`` for a negative amount of it."""
        if seconds < 0:
            raise ValueError("this clock is monotonic")
        with self._lock:
            self._now += seconds
