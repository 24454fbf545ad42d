"""Leases by the clocks that they end by, and what is left of one (invariant 10).

``BootClock`` is a machine's, shared by its processes, and counts its sleep; ``LeaseView``
reads leases by it. ``ServerLease`` reads those that end by a server's clock, which may jump.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from curp.log._engine import Leadership
from curp.log._errors import EngineUnavailable

# So much a server's clock may seem to jump against this machine's because a reply was slow.
_JUMP_S = 0.25


class BootClock(NamedTuple):
    """Seconds since the machine's boot, and which boot that was.

    Dates of two boots cannot be compared. ``boot`` also tells time namespaces apart,
    as containers may have, for these shift the clock.
    """

    now: Callable[[], float]
    boot: str

    @classmethod
    def of_this_machine(cls) -> BootClock:
        """Return the machine's own; Linux only, raises ``EngineUnavailable`` elsewhere."""
        try:
            boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
            namespace = os.readlink("/proc/self/ns/time")
            clock = time.CLOCK_BOOTTIME
        except (OSError, AttributeError) as error:
            raise EngineUnavailable(
                f"this machine does not tell its boots apart: {error}"
            ) from None
        return cls(lambda: time.clock_gettime(clock), f"{boot} {namespace}")


class LeaseDate(NamedTuple):
    """When a lease ends, as one process wrote it down for the others."""

    configuration: int
    boot: str
    expires_at: float
    term_s: float


class LeaseView:
    """What is left of leases that others wrote down; for one engine, under its lock.

    A lease of another boot gets a full term from when it is first seen here: its
    holder is most likely gone, and late is safe where early is not.
    """

    def __init__(self, clock: BootClock) -> None:
        self.clock = clock
        self._foreign: LeaseDate | None = None
        self._seen_at = 0.0

    def date(self, configuration: int, term_s: float) -> LeaseDate:
        """Return the date of a lease that runs for a term from now."""
        return LeaseDate(configuration, self.clock.boot, self.clock.now() + term_s, term_s)

    def remaining_s(self, lease: LeaseDate) -> float:
        """Return the seconds left, 0.0 or less once it is over."""
        now = self.clock.now()
        if lease.boot == self.clock.boot:
            return lease.expires_at - now
        if lease != self._foreign:
            self._foreign, self._seen_at = lease, now
        return self._seen_at + lease.term_s - now


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

    def leadership(
        self, lease: LeaseDate, whose: tuple[bytes, bytes], server_now: float
    ) -> Leadership | None:
        """Return the newest leadership, by its replica and address; None before the first."""
        if not lease.configuration:
            return None
        replica, address = whose
        left_s = self.remaining_s(lease, server_now)
        return Leadership(lease.configuration, replica.decode(), address.decode(), left_s)

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
