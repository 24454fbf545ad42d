"""Connections of drivers, out of what applications hold their transactions in."""

from __future__ import annotations

import sys
from typing import Any


def unwrapped(given: Any) -> Any:
    """Return a driver's connection of itself, its cursor, or SQLAlchemy's over it.

    A session writes first what it has yet to write.
    """
    flush = getattr(given, "flush", None)
    if callable(flush):
        flush()
    return _of_cursor(driver_connection(given))


async def unwrapped_aio(given: Any) -> Any:
    """The same for SQLAlchemy's asynchronous ones, and all the others."""
    flush = getattr(given, "flush", None)
    if callable(flush):
        done = flush()
        if done is not None:
            await done
    return _of_cursor(await driver_connection_async(given))


def is_asyncpg(given: Any) -> bool:
    """Whether it is asyncpg's connection, or what its pool lends."""
    return is_of(given, "asyncpg.connection", "Connection") or _is_lent(given)


def without_proxy(given: Any) -> Any:
    """Return asyncpg's connection behind what its pool lends; anything else unchanged.

    So is what is back in the pool: it refuses everything.
    """
    return (given._con or given) if _is_lent(given) else given


def _is_lent(given: Any) -> bool:
    return is_of(given, "asyncpg.pool", "PoolConnectionProxy")


def _of_cursor(given: Any) -> Any:
    return given if hasattr(given, "commit") else getattr(given, "connection", given)


def driver_connection(transaction: Any) -> Any:
    """Return the driver's connection in a SQLAlchemy ``Session`` or ``Connection``, or Django's.

    SQLAlchemy's transaction is begun if it is not, so that its commit commits ours. Anything
    else is returned unchanged.
    """
    connection = session_of(transaction)
    if callable(ensure := getattr(connection, "ensure_connection", None)):
        # Django's, and its proxy of this thread's.
        ensure()
        return connection.connection
    if is_of(connection, "sqlalchemy.orm.session", "Session"):
        connection = connection.connection()
    if not is_of(connection, "sqlalchemy.engine.base", "Connection"):
        return connection
    _begin(connection)
    return connection.connection.driver_connection


async def driver_connection_async(transaction: Any) -> Any:
    """The same for ``AsyncSession`` and ``AsyncConnection``, and for blocking ones."""
    connection = without_proxy(session_of(transaction))
    where = "sqlalchemy.ext.asyncio"
    if is_of(connection, f"{where}.session", "AsyncSession"):
        connection = await connection.connection()
    if not is_of(connection, f"{where}.engine", "AsyncConnection"):
        return driver_connection(connection)
    if not connection.in_transaction():
        await connection.begin()
    found = (await connection.get_raw_connection()).driver_connection
    if is_asyncpg(found) and not found.is_in_transaction():
        # SQLAlchemy begins its transaction with its first statement: one that reads nothing.
        await connection.exec_driver_sql("SET LOCAL rifl.begun = ''")
    return found


def session_of(transaction: Any) -> Any:
    """Return the session of this thread or task, in a registry of them; else what was given."""
    if is_of(transaction, "sqlalchemy.orm.scoping", "scoped_session"):
        return transaction()
    if is_of(transaction, "sqlalchemy.ext.asyncio.scoping", "async_scoped_session"):
        return transaction()
    return transaction


def _begin(connection: Any) -> None:
    if not connection.in_transaction():
        connection.begin()


def is_of(transaction: Any, module: str, *names: str) -> bool:
    """Return whether it is an instance of one of these classes, without importing the module."""
    loaded = sys.modules.get(module)
    classes = tuple(getattr(loaded, name, ()) for name in names) if loaded else ()
    return any(isinstance(transaction, found) for found in classes if isinstance(found, type))
