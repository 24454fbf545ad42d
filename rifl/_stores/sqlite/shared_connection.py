"""The connection of shared transactions: one is begun, and committed for all (DESIGN §6)."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable
from typing import Any

from _rifl_ground.log import get_logger
from rifl._stores.sqlite.connection_proxy import SharedOwned
from rifl._stores.sqlite.file_guard import Guard
from rifl._stores.sqlite.write_queue import LONGEST_WAIT_S, SharedTransaction, WriteQueue
from rifl.core._shared.errors import StoreUnavailable

_log = get_logger("rifl.store")


class SharedConnection:
    """The part of ``SharedTransactions`` that has the file: one transaction after the other."""

    def __init__(
        self,
        connect: Callable[[], sqlite3.Connection],
        *,
        stopped: Callable[[], Exception | None],
        stop: Callable[[Exception], bool],
        guard: Guard,
        on_commit: Callable[[int, float, Exception | None], None] | None = None,
    ) -> None:
        self._connect = connect
        self._on_commit = on_commit
        self._stopped = stopped
        self._stop = stop
        self._guard = guard
        self._lock = threading.Lock()
        self._queue = WriteQueue()
        self._connection: sqlite3.Connection | None = None
        # How long it waits for other connections, as it was told last.
        self._limit_ms = -1
        self._owned = SharedOwned()
        self._closed = False

    def released(self) -> None:
        """Let whoever waits have the file."""
        with self._lock:
            waiter = self._queue.released()
        if waiter is not None:
            waiter.succeed()

    @property
    def is_open(self) -> bool:
        """Whether there is a transaction to join; asked by whoever has the turn."""
        return self._queue.group is not None

    def open_at_once(self) -> bool:
        """Begin a transaction as ``open`` does, unless that would have to wait."""
        if self._connection is None or self._closed or self._stopped() is not None:
            return False
        try:
            self._begin(self._connection, 0)
        except sqlite3.Error:
            return False
        with self._lock:
            self._queue.opened(time.monotonic())
        return True

    def open(self, limit_s: float = LONGEST_WAIT_S) -> None:
        """Begin a transaction, for whoever has the turn; blocks so long for other connections.

        Raises ``StoreUnavailable``, and then the turn is over.
        """
        try:
            error = self._stopped()
            if error is not None or self._closed:
                raise StoreUnavailable(f"the store cannot be written: {error or 'it is closed'}")
            if self._connection is None:
                connection = self._connect()
                connection.set_authorizer(self._owned)
                self._connection = connection
            self._begin(self._connection, int(limit_s * 1000))
        except BaseException as error:
            self.released()
            if isinstance(error, sqlite3.Error):
                raise StoreUnavailable(f"no transaction can be begun: {error}") from error
            raise
        with self._lock:
            self._queue.opened(time.monotonic())

    def _begin(self, connection: sqlite3.Connection, limit_ms: int) -> None:
        if limit_ms != self._limit_ms:
            connection.execute(f"PRAGMA busy_timeout={limit_ms}")
            self._limit_ms = limit_ms
        connection.execute("BEGIN IMMEDIATE")
        self._owned.lend(connection)

    def _commit(self, group: SharedTransaction) -> None:
        try:
            self._end(group)
        finally:
            self.released()

    def _end(self, group: SharedTransaction) -> None:
        """Commit, and tell the handlers; the file is still whose it was."""
        connection: Any = self._connection
        began = time.perf_counter()
        self._owned.free()
        try:
            if group.error is None:
                group.error = self._stopped()
            if group.error is None and not connection.in_transaction:
                group.error = sqlite3.OperationalError("the transaction was rolled back")
            if group.error is None:
                number = self._guard.number()
                # Not the records': a handler may have undone its own in a savepoint.
                raised = self._guard.raise_commits(connection, number)
                connection.commit()
                self._guard.committed(number, raised)
        except sqlite3.Error as error:
            _log.error("shared_commit_failed", error=str(error), calls=group.handlers)
            # Unless nobody can know, it is certain that it is undone: see below.
            group.error, group.unknown = error, True
            group.unknown = self._stop(error)
        finally:
            try:
                if connection.in_transaction:
                    connection.rollback()
            except sqlite3.Error as error:
                _log.warning("store_rollback_failed", error=str(error))
            with self._lock:
                self._queue.closed(group)
            group.done.succeed()
        if self._on_commit is not None:
            self._on_commit(group.handlers, time.perf_counter() - began, group.error)
