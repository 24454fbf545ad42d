"""Timers: one thread that calls back at given times, while there is any to wait for."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable

from _rifl_ground.log import get_logger

_log = get_logger("rifl.client")


class Timer:
    """A callback that is due; ``cancel`` it from any thread."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """Forget the callback; it may be running already."""
        self.callback = None


class Timers:
    """Timers of one client, for calls that nobody's thread waits in.

    The daemon thread starts with the first timer and ends with the last one, so
    nothing is left behind by a client that is dropped. Any thread. A callback
    must not block; what it raises is logged.
    """

    def __init__(self) -> None:
        # Taken and given back by C: a signal's exception may leave a condition's own taken.
        self._lock = threading.RLock()
        self._condition = threading.Condition(self._lock)
        self._heap: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._running = False

    def call_at(self, at: float, callback: Callable[[], None]) -> Timer:
        """Call back when ``time.monotonic()`` reaches ``at``."""
        timer = Timer(callback)
        with self._lock:
            heapq.heappush(self._heap, (at, next(self._order), timer))
            if not self._running:
                threading.Thread(target=self._run, name="rifl-timers", daemon=True).start()
                # It waits for this lock. An interrupt before that leaves one too many.
                self._running = True
            elif self._heap[0][2] is timer:
                self._condition.notify()
        return timer

    def _run(self) -> None:
        while True:
            with self._lock:
                while self._heap and self._heap[0][2].callback is None:
                    heapq.heappop(self._heap)
                if not self._heap:
                    self._running = False
                    return
                remaining = self._heap[0][0] - time.monotonic()
                if remaining > 0:
                    self._condition.wait(remaining)
                    continue
                callback = heapq.heappop(self._heap)[2].callback
            if callback is not None:
                try:
                    callback()
                except Exception:  # noqa: BLE001 - one callback must not end the others
                    _log.exception("timer_raised")
