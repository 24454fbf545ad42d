"""Waiting for a condition, with a deadline and never blindly."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["DEADLINE_S", "deadlines", "until"]

DEADLINE_S = 60.0


def until(condition: Callable[[], Any], what: str, deadline_s: float = DEADLINE_S) -> Any:
    """Return the first true value of ``condition``; fail the test after the deadline."""
    end = time.monotonic() + deadline_s
    pause = threading.Event()
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= end:
            raise AssertionError(f"waited {deadline_s:g} s in vain: {what}")
        pause.wait(0.005)


def deadlines(first_s: float = 0.3) -> Iterator[float]:
    """Yield timeouts for a call whose handler has to run when its deadline passes.

    Each is twice as long as the one before: a machine that is too slow for one has time in the
    next. The test ends the loop when a call came so far, and fails if none does.
    """
    timeout_s = first_s
    while timeout_s < DEADLINE_S:
        yield timeout_s
        timeout_s *= 2
    raise AssertionError("no call came so far within its deadline")
