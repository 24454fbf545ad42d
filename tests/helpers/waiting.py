"""Waiting for a condition, with a deadline and never blindly."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

__all__ = ["DEADLINE_S", "until"]

DEADLINE_S = 20.0


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
