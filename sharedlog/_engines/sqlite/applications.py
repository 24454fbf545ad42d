"""Connections of applications to SQLite files, and the log's work in their transactions."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from _rifl_ground.drivers import unwrapped, unwrapped_aio
from _rifl_ground.sqlite.owned import commits_by_itself
from sharedlog._core.errors import LogFull, LogUnavailable, WrongTransaction
from sharedlog._engines.turns import Turns

# PRAGMA synchronous: a commit is on the disk when it returns.
_FULL = 2
_SYNCHRONOUS = "PRAGMA main.synchronous"
_SAVEPOINT, _RELEASE = "SAVEPOINT sharedlog_append_in", "RELEASE sharedlog_append_in"
_BACK = "ROLLBACK TO sharedlog_append_in"


class PlainConnection:
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


Work: TypeAlias = Callable[[PlainConnection], None]


class Applications:
    """Carries work out in transactions of the application's, or of a store that lends its own.

    Each in a savepoint of its own: all of it is there, or nothing. Any thread.
    """

    def __init__(self) -> None:
        self._turns = Turns()

    def run(self, given: Any, check: Work, work: Work) -> None:
        """Work in the transaction of ``given``, which is begun where its driver would do so.

        ``check`` comes before anything of that. Raises ``WrongTransaction`` if there is none,
        and for one whose commit would not wait for the disk.
        """
        self._run(_lent(given) or unwrapped(given), check, work)

    async def run_aio(self, given: Any, check: Work, work: Work) -> None:
        """The same for aiosqlite, in its thread; a blocking one is used at once."""
        connection = _lent(given) or await unwrapped_aio(given)
        run = getattr(connection, "_execute", None)
        if run is None or not hasattr(connection, "_conn"):
            self._run(connection, check, work)
            return
        await run(self._work, connection._conn, check, work)

    def _run(self, connection: Any, check: Work, work: Work) -> None:
        lent: Callable[..., None] | None = getattr(connection, "within", None)
        if lent is not None:
            try:
                lent(lambda mine: self._work(mine, check, work, lent=True))
            except sqlite3.Error as error:
                raise WrongTransaction(f"the connection cannot be used: {error}") from error
            return
        if not isinstance(connection, sqlite3.Connection):
            raise WrongTransaction(
                "a sqlite3.Connection, or SQLAlchemy's over one, is wanted, not a "
                f"{type(connection).__qualname__}: asynchronous ones need sharedlog.aio"
            )
        self._work(connection, check, work)

    def _work(self, given: sqlite3.Connection, check: Work, work: Work, lent: bool = False) -> None:
        connection = PlainConnection(given)
        with self._turns.of(given), _told():
            _check_begun(given)
            check(connection)
            # A store's own waits, and does not let others ask.
            if not lent and connection.execute(_SYNCHRONOUS).fetchone()[0] < _FULL:
                raise WrongTransaction(
                    "the connection's commits do not wait for the disk (PRAGMA synchronous): a "
                    "power cut could take back what followers have read"
                )
            begun = not given.in_transaction
            if begun:
                # As the driver would before an INSERT.
                connection.execute("BEGIN IMMEDIATE")
            try:
                connection.execute(_SAVEPOINT)
                work(connection)
            except BaseException:
                # Where SQLite has rolled back everything by itself, there is none.
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("ROLLBACK" if begun else _BACK)
                    if not begun:
                        connection.execute(_RELEASE)
                raise
            connection.execute(_RELEASE)


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Have what fails say that nothing is in the log, since nothing was committed."""
    try:
        yield
    except LogUnavailable as error:
        error.appended = False
        raise
    except sqlite3.ProgrammingError as error:
        # Closed, or another thread's.
        raise WrongTransaction(f"the connection cannot be used: {error}") from error
    except sqlite3.Error as error:
        raise _meaning(error) from error


def _meaning(error: sqlite3.Error) -> Exception:
    """Return what it means that a transaction may not be written, or not at this moment."""
    name = getattr(error, "sqlite_errorname", None) or ""
    if name.startswith("SQLITE_READONLY"):
        return WrongTransaction(f"the connection may not write: {error}")
    if name == "SQLITE_BUSY_SNAPSHOT":
        found = LogUnavailable(
            "others wrote since this transaction read: roll it back, and do it again, begun by "
            "BEGIN IMMEDIATE"
        )
    else:
        kind = LogFull if name == "SQLITE_FULL" else LogUnavailable
        found = kind(f"the connection's file cannot be written now: {error}")
    found.appended = False
    return found


def _check_begun(given: sqlite3.Connection) -> None:
    if commits_by_itself(given):
        raise WrongTransaction(
            "the connection is in autocommit mode: begin a transaction before append_in"
        )


def _lent(given: Any) -> Any:
    """Return what lends a store's connection for one call, or is a cursor of that."""
    for each in (given, getattr(given, "proxy", None)):
        if callable(getattr(each, "within", None)):
            return each
    return None
