"""The search for a group's leader: when a client asks all replicas (DESIGN §7)."""

from __future__ import annotations

import math

_EVERY_S = 0.1
# Longer than a leader change takes; a caller that still misses the leader then says so again.
_LONGEST_S = 10.0


class LeaderSearch:
    """Decides when all replicas are asked, and whose answer ends the search.

    1. Replicas are asked in rounds, all at once. The next round begins 100 ms after the last
       one began, without waiting for all answers: a hung replica never answers.
    2. Rounds follow until a replica says of itself that it leads and takes calls, under no
       lower number than another one did, for at most ten seconds after a caller missed it.

    It decides where calls go; safety does not depend on it: each replica judges for itself. Not
    thread-safe. No clock: ``now`` is seconds of the caller's.
    """

    def __init__(self) -> None:
        self._wanted_until = -math.inf
        self._next_at = -math.inf
        self._highest = 0

    def missed(self, now: float) -> None:
        """Handle that the leader is not where calls were sent, or may not be."""
        self._wanted_until = now + _LONGEST_S

    def begins(self, now: float) -> bool:
        """Return whether a round begins now; if so, the shell must ask it."""
        if now >= self._wanted_until or now < self._next_at:
            return False
        self._next_at = now + _EVERY_S
        return True

    def rest_s(self, now: float) -> float | None:
        """Return in how many seconds to look again, None while no caller misses the leader."""
        return max(0.0, self._next_at - now) if now < self._wanted_until else None

    def told(self, number: int, *, serves: bool) -> bool:
        """Take a replica's answer; whether it is the leader that was looked for."""
        if not serves or number < self._highest:
            return False
        self._highest = number
        self._wanted_until = -math.inf
        return True
