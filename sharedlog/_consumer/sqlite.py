"""A consumer's store in a SQLite file, which is the user's database."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sharedlog._consumer.tables import SQLITE, Execute, Table
from sharedlog._core.consumer.asked import Failed
from sharedlog._core.consumer.checkpoint import Checkpoint
from sharedlog._core.errors import LogError, StoreUnavailable

_BUSY_S = 5.0
# Not what handlers would write, whose statements are looked at as they are prepared.
_BEGIN, _COMMIT, _ROLLBACK = (
    "BEGIN IMMEDIATE -- sharedlog",
    "COMMIT -- sharedlog",
    "ROLLBACK -- sharedlog",
)
# Of SQLite's errors, those that are not the statement's: locked, full, the disk's, read-only.
_ITS_OWN = (
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
)
_PRIMARY = 0xFF


class SqliteStore:
    """See ``Store``. The file has one writer: a transaction keeps others out while it runs."""

    def __init__(self, path: Path, name: str) -> None:
        """``name``: the consumer's. The table is made where there is none."""
        self._path = path
        self._table = Table(name, SQLITE)
        self._connection: sqlite3.Connection | None = None
        # Handlers run: they neither begin nor end transactions.
        self._lent = False
        with self._transaction() as execute:
            execute(self._table.create, ())

    def take(self, tag: str, number: int, *, died: bool, anew: bool) -> Checkpoint:
        """See ``Store``."""
        with self._transaction() as execute:
            return self._table.take(execute, tag, number, died=died, anew=anew)

    def note(self, tag: str, number: int, attempts: int) -> None:
        """See ``Store``."""
        with self._transaction() as execute:
            self._table.note(execute, tag, number, attempts)

    def begin(self) -> Any:
        """See ``Store``."""
        with self._errors():
            connection = self._opened()
            connection.execute(_BEGIN)
        self._lent = True
        return connection

    def intact(self) -> None:
        """See ``Store``."""
        if not self._opened().in_transaction:
            raise Failed("the transaction was undone while the handler ran", counts=True)

    def commit(self, tag: str, checkpoint: Checkpoint) -> None:
        """See ``Store``."""
        self._lent = False
        with self._transaction() as execute:
            self._table.move(execute, tag, checkpoint)

    def rollback(self) -> None:
        """See ``Store``."""
        self._lent = False
        connection = self._connection
        if connection is not None and connection.in_transaction:
            try:
                connection.execute(_ROLLBACK)
            except sqlite3.Error:
                self.close()

    def fault(self, error: Exception) -> bool:
        """See ``Store``."""
        code = getattr(error, "sqlite_errorcode", None)
        return isinstance(error, sqlite3.Error) and (
            code is not None and code & _PRIMARY in _ITS_OWN
        )

    def close(self) -> None:
        """See ``Store``."""
        connection, self._connection = self._connection, None
        self._lent = False
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[Execute]:
        """Work in the transaction that was begun, or in one of its own, and commit it."""
        with self._errors():
            connection = self._opened()
            try:
                if not connection.in_transaction:
                    connection.execute(_BEGIN)
                cursor = connection.cursor()
                cursor.row_factory = None
                yield cursor.execute
                self._commit(connection)
            except BaseException:
                self.rollback()
                raise

    def _commit(self, connection: sqlite3.Connection) -> None:
        try:
            connection.execute(_COMMIT)
        except sqlite3.Error as error:
            if not connection.in_transaction:
                # Nobody knows what is on the disk.
                raise
            raise Failed(_line(error), counts=not self.fault(error)) from error

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (LogError, Failed):
            raise
        except sqlite3.Error as error:
            self.close()
            raise StoreUnavailable(f"the store {self._path}: {_line(error)}") from error

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            connection = sqlite3.connect(self._path, timeout=_BUSY_S, isolation_level=None)
            connection.execute("PRAGMA synchronous = FULL")
            connection.set_authorizer(self._allowed)
            self._connection = connection
        return self._connection

    def _allowed(self, action: int, *_: object) -> int:
        ends = self._lent and action == sqlite3.SQLITE_TRANSACTION
        return sqlite3.SQLITE_DENY if ends else sqlite3.SQLITE_OK


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
