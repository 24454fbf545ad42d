"""The portion that one caller may take of what callers share: a quarter, by default."""

from __future__ import annotations

# How many clients there may be, by default: each has a lease.
MAX_CLIENTS = 1_000_000
# How many callers it takes to fill what all share.
_CALLERS = 4


def portion(most: int, given: int | None = None) -> int:
    """Return how much of ``most`` one caller may take; ``given`` counts if it is not None."""
    return -(-most // _CALLERS) if given is None else given
