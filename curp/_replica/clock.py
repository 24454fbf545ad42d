"""The clock of leases: seconds that also pass while the machine sleeps (invariant 10)."""

from __future__ import annotations

import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boottime() -> float:
    """Return seconds since the machine started, suspension included if the system tells it."""
    return time.clock_gettime(_CLOCK)
