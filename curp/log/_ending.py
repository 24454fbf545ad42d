"""Signals that end a command which holds something, where it can let go of it."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class EndedBySignal(Exception):
    """A signal came, and nothing is under way. ``code`` to exit with."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.code = 128 + number


@contextlib.contextmanager
def ended_by_signals() -> Iterator[Callable[[], None]]:
    """Have SIGINT and SIGTERM noted; what is yielded raises ``EndedBySignal`` once one came.

    A handler that raised would break off a commit, or be lost in whatever the interpreter
    runs just then, such as a callback of its garbage collector.
    """
    came: list[int] = []

    def check() -> None:
        if came:
            raise EndedBySignal(came[0])

    if threading.current_thread() is not threading.main_thread():
        yield check
        return
    before = {
        each: signal.signal(each, lambda number, frame: came.append(number)) for each in _SIGNALS
    }
    try:
        yield check
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
