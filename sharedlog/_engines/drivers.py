"""Connections of drivers, out of what applications hold their transactions in."""

from __future__ import annotations

from typing import Any

from rifl._stores.drivers import driver_connection, driver_connection_async


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


def _of_cursor(given: Any) -> Any:
    return given if hasattr(given, "commit") else getattr(given, "connection", given)
