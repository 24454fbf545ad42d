"""Waits for appends, which one session of a process listens for, while anybody waits."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

import psycopg

from _rifl_ground.postgres.listener import Listener
from sharedlog._engines.postgres.connection import Connection

# A hint may be lost while the session is made anew, so a waiter looks by itself as well.
_LOOK_S = 1.0
_LOOK_UNHEARD_S = 0.01
_END_S = 2.0


class Waiting:
    """Wakes waiters when an append was committed, by ``NOTIFY``. Any thread.

    Hints only: what is true is what the tail says when it is asked for.
    """

    def __init__(self, connection: Connection, channel: str) -> None:
        self._connection = connection
        self._channel = channel
        self._listener: Listener | None = None
        # Taken and given back by C: a signal's exception may leave a condition's own taken.
        self._lock = threading.RLock()
        self._heard = threading.Condition(self._lock)
        self._count = 0
        self._listens = False

    def wait(self, look: Callable[[], int], after: int, timeout_s: float) -> int:
        """Return the tail once it is above ``after``, or when the time is over."""
        self._begin()
        end = time.monotonic() + timeout_s
        while True:
            with self._lock:
                count = self._count
            tail = look()
            left_s = end - time.monotonic()
            if tail > after or left_s <= 0:
                return tail
            with self._lock:
                pause_s = _LOOK_S if self._listens else _LOOK_UNHEARD_S
                if self._count == count and not self._connection.closing.is_set():
                    self._heard.wait(min(pause_s, left_s))
            if self._connection.closing.is_set():
                raise self._connection.owner.stopped("the log engine was closed")

    def close(self) -> None:
        """Wake everybody, before the connection closes its sessions. Idempotent."""
        self._connection.closing.set()
        self._hint()
        if self._listener is None:
            return
        if self._listens:
            # It hears this, and looks whether it is to go on.
            told = "SELECT pg_notify(%s, '')"
            with contextlib.suppress(psycopg.Error, OSError):
                self._connection.sessions.use(lambda each: each.execute(told, (self._channel,)))
        self._listener.join(_END_S)

    def _begin(self) -> None:
        with self._lock:
            if self._listener is None:
                self._listener = Listener(
                    self._connection.address,
                    self._channel,
                    self._connection.closing,
                    heard=lambda _: self._hint(),
                    # What was appended before that is looked for.
                    listening=lambda: self._hint(listens=True),
                    lost=self._lost,
                )
                self._listener.start()

    def _hint(self, *, listens: bool | None = None) -> None:
        with self._lock:
            self._count += 1
            self._listens = self._listens if listens is None else listens
            self._heard.notify_all()

    def _lost(self, error: Exception) -> None:
        self._connection.owner.events.debug("log_listener_lost", error=type(error).__name__)
        self._hint(listens=False)
