"""Signals that end a command which holds something, as an error would."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class EndedBySignal(KeyboardInterrupt):
    """A signal came: what drivers do about Ctrl-C, they do about each. ``code`` to exit with."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.code = 128 + number


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Have SIGINT and SIGTERM raise ``EndedBySignal`` in the main thread, the first of them only.

    So that what is held is let go of; a second one does not break that off.
    """

    def end(number: int, frame: FrameType | None) -> NoReturn:
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        raise EndedBySignal(number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {each: signal.signal(each, end) for each in _SIGNALS}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
