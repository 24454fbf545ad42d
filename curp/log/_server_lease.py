"""What is left of a lease that ends by a server's clock, which may jump (invariant 10)."""

from __future__ import annotations

import time
from collections.abc import Callable

from curp.log._boot_clock import LeaseDate

# Of a server's clock against this machine's: what a slow reply may look like.
_JUMP_S = 0.25


class ServerLease:
    """Keeps a clock that jumps forward from ending a lease early. For one engine.

    Its holder counts from when it asked, by a clock of its own that does not jump. So
    once the server's clock is seen to jump between two looks, the lease at hand gets
    a full term from then: late is safe, early is not. A jump back only makes a lease
    longer; one that nobody was there to see cannot be noticed.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: tuple[float, float] | None = None
        self._doubted: LeaseDate | None = None
        self._since = 0.0

    def remaining_s(self, lease: LeaseDate, server_now: float) -> float:
        """Return the seconds left, as of the server's time just read."""
        now = self._clock()
        if self._last is not None:
            server_then, then = self._last
            if server_now - server_then > now - then + _JUMP_S:
                self._doubted, self._since = lease, now
        self._last = (server_now, now)
        left_s = lease.expires_at - server_now
        if lease == self._doubted:
            left_s = max(left_s, self._since + lease.term_s - now)
        return left_s
