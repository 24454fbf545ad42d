"""Sessions that are lent to one statement at a time, and made anew without delay."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TypeVar

import psycopg
from psycopg import pq
from psycopg.rows import TupleRow

from _rifl_ground.places import places
from _rifl_ground.postgres.address import PostgresAddress
from _rifl_ground.postgres.connections import Pools

_T = TypeVar("_T")


class Sessions:
    """A bounded number of sessions. Any thread.

    Not a pool's: one that has lost its server waits longer and longer before it tries
    again, and a group would stand still for as long after the server is back. A caller
    here connects by itself, and at once.
    """

    def __init__(self, pools: Pools, address: PostgresAddress) -> None:
        self._pools = pools
        self._places = places(address.max_connections, address.timeout_s)
        # A signal's handler may ask within itself: each line leaves the list whole.
        self._lock = threading.RLock()
        self._idle: list[psycopg.Connection[TupleRow]] = []
        self._closed = False

    def use(self, act: Callable[[psycopg.Connection[TupleRow]], _T]) -> _T:
        """Act on a session in autocommit. Raises ``psycopg.OperationalError`` if none is free."""
        try:
            with self._places:
                session = self._take() or self._pools.connect()
                try:
                    return act(session)
                finally:
                    self._give_back(session)
        except queue.Empty:
            raise psycopg.OperationalError("no session is free") from None

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
