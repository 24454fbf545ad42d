"""The steps that more than one rule of a replica asks its driver for (DESIGN §7)."""

from __future__ import annotations

from typing import NamedTuple

# Two reckonings of one point in time differ by less.
ROUNDING_S = 1e-6


class Rest(NamedTuple):
    """Look again in so many seconds, or when woken; None: only when woken."""

    seconds: float | None


class Sync(NamedTuple):
    """Wait until the log has everything up to ``lsn``; None: all that has a place by now.

    ``timeout_s``: after that many seconds the shell raises; None: it waits as long as the
    leadership lasts.
    """

    lsn: int | None = None
    timeout_s: float | None = None


class Pause(NamedTuple):
    """Wait so long; send back whether the leadership ended meanwhile."""

    seconds: float


class VisibleWait(NamedTuple):
    """Wait so long, and let the reason be seen."""

    reason: str
    seconds: float


class ReportFailure(NamedTuple):
    """Log, as this event, that something failed which is tried again later."""

    event: str
    error: Exception
