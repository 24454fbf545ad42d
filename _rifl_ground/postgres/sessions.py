"""Sessions that are lent to one statement at a time, and made anew without delay."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator

import psycopg
from psycopg import pq
from psycopg.rows import TupleRow

from _rifl_ground.postgres.address import PostgresAddress
from _rifl_ground.postgres.connections import Pools


class Sessions:
    """A bounded number of sessions. Any thread.

    Not a pool's: one that has lost its server waits longer and longer before it tries
    again, and a group would stand still for as long after the server is back. Whoever
    asks here connects by itself, and at once.
    """

    def __init__(self, pools: Pools, address: PostgresAddress) -> None:
        self._pools = pools
        self._timeout_s = address.timeout_s
        # One for each session that may be lent. Of C: a semaphore's own lock may stay taken where
        # a signal's exception comes.
        self._free: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(address.max_connections):
            self._free.put(None)
        # A signal's handler may ask within itself: each line leaves the list whole.
        self._lock = threading.RLock()
        self._idle: list[psycopg.Connection[TupleRow]] = []
        self._closed = False

    @contextlib.contextmanager
    def lend(self) -> Iterator[psycopg.Connection[TupleRow]]:
        """Lend a session in autocommit. Raises ``psycopg.OperationalError``."""
        try:
            self._free.get(timeout=self._timeout_s)
        except queue.Empty:
            raise psycopg.OperationalError("no session is free") from None
        try:
            session = self._take() or self._pools.connect()
            try:
                yield session
            finally:
                self._give_back(session)
        finally:
            self._free.put(None)

    def close(self) -> None:
        """Close what is idle now, and what is lent when it comes back. Idempotent."""
        self._closed = True
        self._drop_idle()

    def _take(self) -> psycopg.Connection[TupleRow] | None:
        with self._lock:
            return self._idle.pop() if self._idle else None

    def _give_back(self, session: psycopg.Connection[TupleRow]) -> None:
        if session.info.transaction_status is not pq.TransactionStatus.IDLE:
            # Lost, or its fate is not known; then the idle ones have most likely lost
            # their server, too.
            session.close()
            self._drop_idle()
            return
        with self._lock:
            if not self._closed:
                self._idle.append(session)
                return
        session.close()

    def _drop_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for session in idle:
            session.close()
