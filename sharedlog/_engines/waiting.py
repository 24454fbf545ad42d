"""The waiters for an append: woken by hints, and looking again without any (DESIGN-LOG §12, L5)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from sharedlog._core.errors import LogStopped

# A hint may be lost.
_LOOK_S = 1.0


class Waiters:
    """Those of one engine. Any thread.

    A hint says that there may be more than before; what is there is what a look finds.
    """

    def __init__(self) -> None:
        # Taken and given back by C: a signal's exception may leave a condition's own taken.
        self._lock = threading.RLock()
        self._heard = threading.Condition(self._lock)
        self._count = 0
        self._waiting = 0
        self._closed = False

    @property
    def anybody(self) -> bool:
        """Whether a thread waits."""
        return self._waiting > 0

    def hint(self) -> None:
        """Have all waiting threads look."""
        with self._lock:
            self._count += 1
            self._heard.notify_all()

    def close(self) -> None:
        """Have all waiting threads stop; idempotent."""
        with self._lock:
            self._closed = True
            self._heard.notify_all()

    def wait(self, look: Callable[[], int], after: int, timeout_s: float) -> int:
        """Return the tail that ``look`` finds once it is above ``after``, or after the time.

        If nothing was heard since a look, the end of the time is no reason for another one.
        """
        end = time.monotonic() + timeout_s
        with self._lock:
            self._waiting += 1
        try:
            while True:
                with self._lock:
                    count = self._count
                    if self._closed:
                        raise LogStopped("the log was closed")
                tail = look()
                left_s = end - time.monotonic()
                if tail > after or left_s <= 0:
                    return tail
                with self._lock:
                    if self._count == count and not self._closed:
                        self._heard.wait(min(_LOOK_S, left_s))
                    heard = self._closed or self._count != count
                if not heard and time.monotonic() >= end:
                    return tail
        finally:
            with self._lock:
                self._waiting -= 1
