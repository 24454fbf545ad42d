"""The log of Spark's own processes, which is in the driver's log."""

from __future__ import annotations

import logging
import sys

# What this process has told of streams, whose writes are planned again with each micro-batch.
_told: set[int] = set()


def heard(name: str) -> logging.Logger:
    """Return a logger whose lines are in the driver's log, from the level info on.

    These processes are Spark's: no other code configures logging there, and what they write to
    standard error is in the driver's log.
    """
    log = logging.getLogger(name)
    if not log.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        log.addHandler(handler)
    log.setLevel(min(log.level or logging.INFO, logging.INFO))
    return log


def first_here(*what: object) -> bool:
    """Tell whether this process has not told this before."""
    key = hash(what)
    if key in _told:
        return False
    _told.add(key)
    return True
