"""The proxy of a connection that handlers have one after the other, all in one transaction."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn, Self

from _rifl_ground.counting import noted
from _rifl_ground.sqlite.owned import Owned

# What a handler may ask; anything else would outlast its turn, or be another's.
_PRAGMAS = frozenset(
    {
        "application_id",
        "collation_list",
        "compile_options",
        "data_version",
        "database_list",
        "encoding",
        "foreign_key_check",
        "foreign_key_list",
        "foreign_keys",
        "freelist_count",
        "function_list",
        "index_info",
        "index_list",
        "index_xinfo",
        "page_count",
        "page_size",
        "schema_version",
        "table_info",
        "table_list",
        "table_xinfo",
        "user_version",
    }
)
# These take a value, and set it.
_SET = frozenset({"data_version", "encoding", "foreign_keys", "page_size", "schema_version"})
_NOT_YOURS = "the transaction is shared with other calls, and ends by itself: leave the block"
_OVER = "this call's turn in the shared transaction has ended"
_INTERRUPTS_S = 0.05
# Held for a moment, and never while a statement is executed.
_ending = threading.Lock()
_LOST = "the shared transaction was rolled back"


class SharedOwned(Owned):
    """What handlers may execute: nothing that ends the transaction, or leaves traces."""

    def judge(self, action: int, first: str | None, second: str | None) -> int:
        """Judge what does not end the transaction."""
        if action in (sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH):
            return sqlite3.SQLITE_DENY
        if action == sqlite3.SQLITE_PRAGMA:
            name = (first or "").lower()
            if name not in _PRAGMAS or (second is not None and name in _SET):
                return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK


class ConnectionProxy:
    """The shared transaction, as one handler has it for its turn.

    ``execute``, ``executemany``, ``cursor`` and ``row_factory`` as those of a
    ``sqlite3.Connection``. After the turn it and its cursors are closed: rows
    that were not fetched are gone. Any thread, one at a time.
    """

    row_factory: Any = None
    # The newest, and older ones only while referenced: a block may make any number.
    _cursor: _CursorProxy | None = None
    _cursors: weakref.WeakSet[_CursorProxy] | None = None
    _open = True
    _revoked = False

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._lock = threading.RLock()

    @property
    def in_transaction(self) -> bool:
        """Whether the turn goes on."""
        return self._open

    def cursor(self) -> sqlite3.Cursor:
        """Return a cursor, which closes with the turn."""
        with self._lock:
            return self._lend()

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        """Execute one statement on a cursor of its own, and return that."""
        with self._lock:
            try:
                return sqlite3.Cursor.execute(self._lend(), sql, parameters)
            except sqlite3.Error as error:
                noted(error)
                raise

    def executemany(self, sql: str, parameters: Iterable[Any], /) -> sqlite3.Cursor:
        """Execute a statement for each of the parameters."""
        return self.cursor().executemany(sql, parameters)

    def commit(self) -> NoReturn:
        """Raise: the transaction is not this handler's alone."""
        raise sqlite3.ProgrammingError(_NOT_YOURS)

    def rollback(self) -> NoReturn:
        """Raise, as ``commit``; an exception that leaves the block undoes what it did."""
        raise sqlite3.ProgrammingError(_NOT_YOURS)

    def close(self) -> NoReturn:
        """Raise, as ``commit``."""
        raise sqlite3.ProgrammingError(_NOT_YOURS)

    def within(self, work: Callable[[sqlite3.Connection], None]) -> None:
        """Do some work of the store's in the turn; raises ``ProgrammingError`` after it."""
        with self._lock:
            self._check()
            work(self._connection)

    def end(self) -> bool:
        """Take it back; false if it was. Waits for a statement that another thread executes."""
        with self._lock:
            with _ending:
                was_open, self._open = self._open, False
            for cursor in self._cursors or ():
                cursor.close()
            if self._cursor is not None:
                self._cursor.close()
            self._cursor = self._cursors = None
            return was_open

    @contextlib.contextmanager
    def revoked(self, limit_s: float) -> Iterator[bool]:
        """Have a handler that does not end execute nothing more; false: it executes one still.

        Its statement is interrupted, and waited for so long.
        """
        self._revoked = True
        end_s = time.monotonic() + limit_s
        while not (mine := self._lock.acquire(timeout=_INTERRUPTS_S)):
            with _ending:
                # Else it may be another handler's by now.
                if self._open:
                    self._connection.interrupt()
            if time.monotonic() > end_s:
                break
        try:
            yield mine
        finally:
            if mine:
                self._lock.release()

    def _lend(self) -> _CursorProxy:
        """Return a new cursor; called with the lock held."""
        self._check()
        cursor = self._connection.cursor(_CursorProxy)
        cursor.proxy = self
        cursor.row_factory = self.row_factory
        if self._cursor is not None:
            if self._cursors is None:
                self._cursors = weakref.WeakSet()
            self._cursors.add(self._cursor)
        self._cursor = cursor
        return cursor

    def _check(self) -> None:
        if not self._open or self._revoked:
            raise sqlite3.ProgrammingError(_OVER)
        if not self._connection.in_transaction:
            # Statements would commit by themselves now.
            raise sqlite3.OperationalError(_LOST)


class _CursorProxy(sqlite3.Cursor):
    proxy: ConnectionProxy

    def execute(self, sql: str, parameters: Any = (), /) -> Self:
        with self.proxy._lock:
            self.proxy._check()
            try:
                return super().execute(sql, parameters)
            except sqlite3.Error as error:
                noted(error)
                raise

    def executemany(self, sql: str, parameters: Iterable[Any], /) -> Self:
        with self.proxy._lock:
            self.proxy._check()
            try:
                return super().executemany(sql, parameters)
            except sqlite3.Error as error:
                noted(error)
                raise

    def executescript(self, sql: str, /) -> NoReturn:
        # It commits first.
        raise sqlite3.ProgrammingError(_NOT_YOURS)


def proxy_of(transaction: Any) -> ConnectionProxy | None:
    """Return the proxy that something is, or is a cursor of."""
    if isinstance(transaction, _CursorProxy):
        return transaction.proxy
    return transaction if isinstance(transaction, ConnectionProxy) else None
