"""Signals that end what a command does until one comes."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def until_signal(stopped: threading.Event | None = None) -> Iterator[threading.Event]:
    """Have SIGINT and SIGTERM set the event; afterwards they do what they did before."""
    stopped = stopped or threading.Event()
    before = {
        each: signal.signal(each, lambda *_: stopped.set())
        for each in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield stopped
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
