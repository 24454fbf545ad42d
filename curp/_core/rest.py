"""That there is nothing to do for a while."""

from __future__ import annotations

from typing import NamedTuple

# The same point in time, reckoned twice.
ROUNDING_S = 1e-6


class Rest(NamedTuple):
    """Look again in so many seconds, or when woken; None: only when woken."""

    seconds: float | None
