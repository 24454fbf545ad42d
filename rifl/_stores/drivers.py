"""Drivers' connections that hold handlers' transactions: DB-API, SQLAlchemy, or named ones."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from _rifl_ground.drivers import is_asyncpg
from rifl._stores.errors import WrongDatabase

_PLACEHOLDERS: dict[str, Callable[[int], str]] = {
    "qmark": lambda number: "?",
    "numeric": lambda number: f":{number}",
    "named": lambda number: f":p{number}",
    "format": lambda number: "%s",
    "pyformat": lambda number: f"%(p{number})s",
}
_BY_NAME = ("named", "pyformat")


class DbApiTransaction:
    """A DB-API 2.0 connection (PEP 249), named so for ``rifl.record``.

    ``paramstyle`` is that of its module, by which the parameters of our statements are
    written: ``rifl.DbApiTransaction(connection, pg8000.paramstyle)``. The connection
    holds the handler's transaction; in autocommit it is refused. psycopg, sqlite3 and
    SQLAlchemy need no name. Not thread-safe, like the connection.
    """

    def __init__(self, connection: Any, paramstyle: str) -> None:
        if paramstyle not in _PLACEHOLDERS:
            raise ValueError(f"{paramstyle!r} is none of {', '.join(_PLACEHOLDERS)}")
        if not (hasattr(connection, "cursor") and hasattr(connection, "commit")):
            raise WrongDatabase(f"a DB-API connection is wanted, not a {type(connection)!r}")
        self.connection = connection
        self.placeholder = _PLACEHOLDERS[paramstyle]
        self._by_name = paramstyle in _BY_NAME

    def check(self) -> None:
        """Raise ``WrongDatabase`` for a connection that says it is in autocommit."""
        if getattr(self.connection, "autocommit", None) is True:
            raise WrongDatabase(
                "the connection is in autocommit mode: begin a transaction before rifl.record"
            )

    def fetch(self, statement: str, arguments: Sequence[Any]) -> Any:
        """Execute a statement in the transaction; its first row, None if there is none."""
        cursor = self.begun(statement, arguments)
        try:
            return cursor.fetchone()
        finally:
            cursor.close()

    def begun(self, statement: str, arguments: Sequence[Any]) -> Any:
        """Execute a statement in the transaction; the cursor, which the caller closes."""
        given: Any = arguments
        if self._by_name:
            given = {f"p{number}": value for number, value in enumerate(arguments, 1)}
        cursor = self.connection.cursor()
        try:
            if arguments:
                cursor.execute(statement, given)
            else:
                cursor.execute(statement)
        except BaseException:
            cursor.close()
            raise
        return cursor

    def execute(self, statement: str) -> None:
        """Execute a statement that returns nothing."""
        cursor = self.connection.cursor()
        try:
            cursor.execute(statement)
        finally:
            cursor.close()

    @staticmethod
    def sqlstate(error: Exception) -> str | None:
        """Return the SQLSTATE of a driver's error, from the usual attributes."""
        for name in ("sqlstate", "pgcode"):
            if isinstance(found := getattr(error, name, None), str):
                return found
        details = error.args[0] if error.args else None
        code = details.get("C") if isinstance(details, dict) else None
        return code if isinstance(code, str) else None


def holder(transaction: Any) -> Any:
    """Return what commits and rolls back a transaction: its connection or session."""
    # What most are, at the least cost. asyncpg's has none, and once it is back in its pool it
    # raises for any attribute.
    if hasattr(type(transaction), "commit") or is_asyncpg(transaction):
        return transaction
    if callable(getattr(transaction, "commit", None)):
        return transaction
    # A cursor's, or that of a named one.
    return getattr(transaction, "connection", None)


def check_blocking(transaction: Any, use: str) -> None:
    """Raise ``WrongDatabase`` for an asynchronous connection, and what to use instead."""
    held = holder(transaction)
    kind: Any = type(held)
    commits = _commits_async(kind)
    if commits is None and is_asyncpg(held):
        commits = True
    if commits is None:
        # What stands for a connection, and hands on what it is asked for.
        commits = inspect.iscoroutinefunction(getattr(held, "commit", None))
    if commits:
        raise WrongDatabase(f"an asynchronous connection needs `{use}`")


@functools.lru_cache(maxsize=256)
def _commits_async(kind: type) -> bool | None:
    commit = getattr(kind, "commit", None)
    return None if commit is None else inspect.iscoroutinefunction(commit)


def check_begins(transaction: Any) -> None:
    """Raise ``WrongDatabase`` for what would not begin a transaction by itself."""
    held = holder(transaction)
    # sqlite3's and aiosqlite's; SQLAlchemy's is a method.
    begun = getattr(held, "in_transaction", None)
    if begun is False and held.isolation_level is None:
        raise WrongDatabase("the connection is in autocommit mode: begin a transaction on it")
    # In autocommit the application has begun it; sqlite3's newer mode has one open always.
    by_itself = begun is True and held.isolation_level is not None
    if by_itself and getattr(held, "autocommit", None) is not False:
        raise WrongDatabase("a transaction is open on the connection already")
    if getattr(held, "autocommit", None) is True:
        raise WrongDatabase("the connection is in autocommit mode: its commit would do nothing")


def roll_back(transaction: Any) -> None:
    """Roll a transaction back; a connection that cannot is not used again. Raises nothing."""
    held = holder(transaction)
    try:
        held.rollback()
    except Exception:  # noqa: BLE001 - whatever a driver raises
        with contextlib.suppress(Exception):
            _discarding(held)()


async def roll_back_async(transaction: Any) -> None:
    """The same for an asynchronous connection, or a blocking one."""
    held = holder(transaction)
    if is_asyncpg(held):
        with contextlib.suppress(Exception):
            if held.is_in_transaction():
                await held.execute("ROLLBACK")
        return
    try:
        # A blocking connection is fine on an event loop, too, if its owner thinks so.
        if inspect.isawaitable(done := held.rollback()):
            await done
    except Exception:  # noqa: BLE001 - whatever a driver raises
        with contextlib.suppress(Exception):
            if inspect.isawaitable(done := _discarding(held)()):
                await done


def _discarding(held: Any) -> Callable[[], Any]:
    """Return what has a connection not be used again: by SQLAlchemy's pool, or at all."""
    return getattr(held, "invalidate", None) or held.close  # type: ignore[no-any-return]


def committer(transaction: Any) -> Callable[[], Any]:
    """Return what commits a transaction.

    Raises ``WrongDatabase`` where nothing of its own does.
    """
    held = holder(transaction)
    if not hasattr(type(held), "commit") and is_asyncpg(held):
        # Its transactions are objects; the store's block has one.
        return functools.partial(held.execute, "COMMIT")
    commit = getattr(held, "commit", None)
    if not callable(commit):
        raise WrongDatabase(f"a {type(transaction)!r} has no commit of its own: use rifl.record")
    return commit  # type: ignore[no-any-return]
