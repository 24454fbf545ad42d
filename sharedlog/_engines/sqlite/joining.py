"""Appends in transactions of the application's, in the file that holds the log."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

from sharedlog._core.commit import Commit, Refused
from sharedlog._core.errors import CorruptLog, LogUnavailable, NoSuchLog, WrongTransaction
from sharedlog._core.steps import Get, Lsns
from sharedlog._core.within import Within, append_within
from sharedlog._engines.checks import check_commit
from sharedlog._engines.drivers import unwrapped, unwrapped_aio
from sharedlog._engines.engine import Limits
from sharedlog._engines.sqlite import rows
from sharedlog._engines.sqlite.file import LogFile

# PRAGMA synchronous: a commit is on the disk when it returns.
_FULL = 2
_SYNCHRONOUS = "PRAGMA main.synchronous"
_FILE = "SELECT max(file) FROM pragma_database_list WHERE name = 'main'"
# Takes the file's lock, and changes nothing: what is read then is what others left.
_LOCK = "UPDATE main.sharedlog_head SET silent = silent"
_SAVEPOINT, _RELEASE = "SAVEPOINT sharedlog_append_in", "RELEASE sharedlog_append_in"
_BACK = "ROLLBACK TO sharedlog_append_in"


class FileTransactions:
    """Appends on connections that are the application's, or a store's that lends its own.

    Each is in a savepoint of its own: all of it is there, or nothing. SQLite's lock, held from
    the append until the transaction ends, is what keeps others from a place in between.
    """

    def __init__(self, file: LogFile, limits: Limits) -> None:
        self._file = file
        self._limits = limits
        self._turns = _Turns()

    def append(self, given: Any, within: Within, seen: int) -> None:
        """Append in the transaction of ``given``; ``seen``: a tail that the log had."""
        self._within(_lent(given) or unwrapped(given), within, seen)

    async def append_aio(self, given: Any, within: Within, seen: int) -> None:
        """The same for aiosqlite, in its thread; a blocking one is used at once."""
        connection = _lent(given) or await unwrapped_aio(given)
        run = getattr(connection, "_execute", None)
        if run is None or not hasattr(connection, "_conn"):
            self._within(connection, within, seen)
            return
        await run(self._append, connection._conn, within, seen)

    def _within(self, connection: Any, within: Within, seen: int) -> None:
        lent: Callable[..., None] | None = getattr(connection, "within", None)
        if lent is not None:
            try:
                lent(lambda mine: self._append(mine, within, seen, lent=True))
            except sqlite3.Error as error:
                raise WrongTransaction(f"the connection cannot be used: {error}") from error
            return
        if not isinstance(connection, sqlite3.Connection):
            raise WrongTransaction(
                "a sqlite3.Connection, or SQLAlchemy's over one, is wanted, not a "
                f"{type(connection).__qualname__}: asynchronous ones need sharedlog.aio"
            )
        self._append(connection, within, seen)

    def _append(
        self, given: sqlite3.Connection, within: Within, seen: int, lent: bool = False
    ) -> None:
        connection = _Plain(given)
        with self._turns.one(given), _told(), self._file.lent():
            self._check(connection, lent=lent)
            begun = not given.in_transaction
            if begun:
                # As the driver would before an INSERT.
                connection.execute("BEGIN IMMEDIATE")
            try:
                connection.execute(_SAVEPOINT)
                self._write(connection, within, seen)
            except BaseException:
                # Where SQLite has rolled back everything by itself, there is none.
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("ROLLBACK" if begun else _BACK)
                    if not begun:
                        connection.execute(_RELEASE)
                raise
            connection.execute(_RELEASE)

    def _write(self, connection: _Plain, within: Within, seen: int) -> None:
        try:
            connection.execute(_LOCK)
        except sqlite3.OperationalError as error:
            raise _not_locked(error) from error
        plain = cast(sqlite3.Connection, connection)
        rows.check(plain, str(self._file.path))
        head = rows.head_of(plain)
        if head.tail < seen:
            raise CorruptLog(f"the log went back: it ends at {head.tail}, and {seen} was seen")
        rule = append_within(within)
        answer: Any = None
        with contextlib.suppress(StopIteration):
            while True:
                match rule.send(answer):
                    case Get(keys):
                        answer = rows.values_of(plain, keys)
                    case Commit() as commit:
                        answer = self._commit(plain, head, commit)

    def _commit(self, connection: sqlite3.Connection, head: rows.Head, commit: Commit) -> Lsns:
        commit = commit._replace(at_us=time.time_ns() // 1000)
        check_commit(commit, self._limits)
        batch = rows.Batch(connection, head, {})
        found = batch.add(commit)
        if isinstance(found, Refused):
            raise CorruptLog("what was read under the file's lock is no longer there")
        batch.write()
        return found

    def _check(self, connection: _Plain, *, lent: bool) -> None:
        given = connection.given
        if not given.in_transaction and (
            given.isolation_level is None or getattr(given, "autocommit", None) is True
        ):
            raise WrongTransaction(
                "the connection is in autocommit mode: begin a transaction before append_in"
            )
        (found,) = connection.execute(_FILE).fetchone()
        name, path = os.fsdecode(found or ""), self._file.path
        if not (name and os.path.samefile(name, path)):
            raise WrongTransaction(
                f"the log lives in {path}, and the connection is to {name or 'memory'}: they "
                "cannot commit together. sharedlog.outbox is for a log that lives elsewhere"
            )
        # A store's own waits, and does not let others ask.
        if not lent and connection.execute(_SYNCHRONOUS).fetchone()[0] < _FULL:
            raise WrongTransaction(
                "the connection's commits do not wait for the disk (PRAGMA synchronous): a power "
                "cut could take back what followers have read"
            )


class _Plain:
    """A connection whose rows come as SQLite has them, whatever the application makes of them."""

    def __init__(self, given: sqlite3.Connection) -> None:
        self.given = given

    def execute(self, sql: str, parameters: Any = ()) -> sqlite3.Cursor:
        """Execute a statement."""
        return self._cursor().execute(sql, parameters)

    def executemany(self, sql: str, parameters: Any) -> sqlite3.Cursor:
        """Execute a statement for each of the parameters."""
        return self._cursor().executemany(sql, parameters)

    def _cursor(self) -> sqlite3.Cursor:
        cursor = self.given.cursor()
        cursor.row_factory = None
        return cursor


class _Turns:
    """One thread at a time uses a connection that several have. Any thread."""

    def __init__(self) -> None:
        self._gate = threading.Lock()
        # By connection, for as long as somebody uses it here.
        self._used: dict[int, tuple[threading.Lock, int]] = {}

    @contextlib.contextmanager
    def one(self, connection: object) -> Iterator[None]:
        """Wait for the turn on a connection, and have it."""
        which = id(connection)
        with self._gate:
            lock, users = self._used.get(which, (threading.Lock(), 0))
            self._used[which] = (lock, users + 1)
        try:
            with lock:
                yield
        finally:
            with self._gate:
                lock, users = self._used[which]
                if users == 1:
                    del self._used[which]
                else:
                    self._used[which] = (lock, users - 1)


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Have what fails say that nothing is in the log, since nothing was committed."""
    try:
        yield
    except LogUnavailable as error:
        error.appended = False
        if isinstance(error.__cause__, sqlite3.ProgrammingError):
            raise WrongTransaction(f"the connection cannot be used: {error.__cause__}") from error
        raise


def _lent(given: Any) -> Any:
    """Return what lends a store's connection for one call, or is a cursor of that."""
    for each in (given, getattr(given, "lent", None)):
        if callable(getattr(each, "within", None)):
            return each
    return None


def _not_locked(error: sqlite3.OperationalError) -> Exception:
    """Return what it means that a transaction may not write, or not at this moment."""
    name = getattr(error, "sqlite_errorname", None) or ""
    if name.startswith("SQLITE_READONLY"):
        return WrongTransaction(f"the connection may not write: {error}")
    if name == "SQLITE_ERROR":
        return NoSuchLog(f"the connection's file holds no log: {error}")
    if name == "SQLITE_BUSY_SNAPSHOT":
        return LogUnavailable(
            "others wrote since this transaction read: roll it back, and do it again, begun by "
            "BEGIN IMMEDIATE"
        )
    return LogUnavailable(f"another one writes the file: {error}")
