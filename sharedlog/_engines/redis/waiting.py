"""Waits for appends to a log in Redis: one connection listens for all of them."""

from __future__ import annotations

import threading
import time

from sharedlog._core.errors import LogError, LogStopped
from sharedlog._engines.redis.connection import Connection

# How long it listens at once, so that a closed engine is noticed, and a server that is gone.
_BLOCK_S = 0.5
_LOOK_S = 1.0


class Waiting:
    """Wakes who waits when the stream gets an entry. Any thread.

    It asks for what follows the newest LSN that was seen (XREAD), so that nothing is missed
    between two looks, nor after a lost connection, as a subscription would. What it says is a
    hint all the same. Its thread begins with the first wait, and rests while nobody waits.
    """

    def __init__(self, redis: Connection) -> None:
        self._redis = redis
        # Taken and given back by C: a signal's exception may leave a condition's own taken.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._tail = 0
        self._waits = 0
        self._woken = 0
        self._thread: threading.Thread | None = None

    def saw(self, tail: int) -> None:
        """Take that the log ends there: what follows is waited for."""
        with self._lock:
            if tail > self._tail:
                self._tail = tail
                self._changed.notify_all()

    def wait(self, tail: int, timeout_s: float) -> None:
        """Wait until something may follow ``tail``, which was the log's a moment ago.

        At most a second: then it is time to look again.
        """
        end = time.monotonic() + min(timeout_s, _LOOK_S)
        with self._lock:
            self._tail = max(self._tail, tail)
            woken = self._woken
            self._waits += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="sharedlog", daemon=True)
                self._thread.start()
            self._changed.notify_all()
            try:
                self._changed.wait_for(
                    lambda: self._woken > woken or self._tail > tail or self._closing,
                    end - time.monotonic(),
                )
            finally:
                self._waits -= 1
        if self._closing:
            raise LogStopped("the log was closed")

    def close(self) -> None:
        """End all waits, once the connection is closing; idempotent."""
        with self._lock:
            self._changed.notify_all()

    @property
    def _closing(self) -> bool:
        return self._redis.server.closing.is_set()

    def _run(self) -> None:
        while True:
            with self._lock:
                self._changed.wait_for(lambda: self._waits > 0 or self._closing)
                tail = self._tail
            if self._closing:
                return
            try:
                told = self._redis.server.block(self._redis.entries, tail, _BLOCK_S)
            except LogError:
                # Whoever waits looks again, and is told what is wrong.
                self._redis.server.closing.wait(_BLOCK_S)
                continue
            if told:
                self._wake(tail)

    def _wake(self, tail: int) -> None:
        with self._lock:
            self._woken += 1
            self._changed.notify_all()
            # Until somebody has looked how far it goes now: else it would be told at once again.
            self._changed.wait_for(
                lambda: self._tail > tail or not self._waits or self._closing, _BLOCK_S
            )
