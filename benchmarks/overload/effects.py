"""The effects of the measured handler: none, a name in Redis, or a row."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import rifl
import rifl.aio
from rifl._stores.sqlite.address import path_of

__all__ = ["AioEffects", "Effects", "aio_effects", "effects"]

Effects = Callable[[Any, Any], None]
AioEffects = Callable[[Any, Any], Awaitable[None]]
# A pool of as many connections as the service has places.
_CONNECTIONS = 8
_REDIS_S = 1.0


def effects(own: str, kind: str, *, recorded: bool) -> Effects:
    """Return what a handler in a thread does. ``recorded``: with its record, behind rifl."""
    if own.startswith("redis:"):
        import redis

        client = redis.Redis.from_url(own, socket_timeout=_REDIS_S)

        def count(request: Any, _: Any) -> None:
            client.set(request.key, b"")

        return count
    if kind != "atomic":
        return lambda *_: None
    if own.startswith("sqlite:"):
        return _sqlite(path_of(own), recorded=recorded)
    return _postgres(own, recorded=recorded)


async def aio_effects(own: str, kind: str, *, recorded: bool) -> AioEffects:
    """The same on an event loop."""
    if own.startswith("redis:"):
        import redis.asyncio

        client = redis.asyncio.Redis.from_url(own, socket_timeout=_REDIS_S)

        async def count(request: Any, _: Any) -> None:
            await client.set(request.key, b"")

        return count
    if kind != "atomic":

        async def nothing(*_: Any) -> None:
            return

        return nothing
    if own.startswith("sqlite:"):
        return _aio_sqlite(path_of(own), recorded=recorded)
    return await _aio_postgres(own, recorded=recorded)


_SQLITE = "INSERT INTO effect VALUES (?)"


def _sqlite(path: Path, *, recorded: bool) -> Effects:
    of_thread = threading.local()

    def connected() -> sqlite3.Connection:
        found: sqlite3.Connection | None = getattr(of_thread, "connection", None)
        if found is None:
            found = of_thread.connection = sqlite3.connect(path, timeout=30.0)
            found.execute("PRAGMA synchronous=FULL")
        return found

    with connected() as first:
        first.execute("PRAGMA journal_mode=WAL")
        first.execute("CREATE TABLE IF NOT EXISTS effect (call TEXT)")

    def effect(request: Any, context: Any) -> None:
        if recorded:
            with rifl.transaction(context) as connection:
                connection.execute(_SQLITE, (request.key,))
                rifl.record(context, request, connection)
            return
        with connected() as own:
            own.execute(_SQLITE, (request.key,))

    return effect


def _aio_sqlite(path: Path, *, recorded: bool) -> AioEffects:
    import asyncio

    # The loop's own connection, in a thread of its own: what aiosqlite is.
    in_thread = _sqlite(path, recorded=False)

    async def effect(request: Any, context: Any) -> None:
        if not recorded:
            await asyncio.to_thread(in_thread, request, context)
            return
        async with rifl.aio.transaction(context) as connection:
            connection.execute(_SQLITE, (request.key,))
            await rifl.aio.record(context, request, connection)

    return effect


_TABLE = "CREATE TABLE IF NOT EXISTS effect (call text)"
_INSERT = "INSERT INTO effect VALUES (%s)"


def _postgres(url: str, *, recorded: bool) -> Effects:
    import psycopg
    import psycopg_pool

    with psycopg.connect(url) as first:
        first.execute(_TABLE)
    pool = psycopg_pool.ConnectionPool(url, min_size=1, max_size=_CONNECTIONS, open=True)

    def effect(request: Any, context: Any) -> None:
        with pool.connection() as connection:
            block: Any = (
                rifl.transaction(context, connection) if recorded else connection.transaction()
            )
            with block:
                connection.execute(_INSERT, (request.key,))
                if recorded:
                    rifl.record(context, request, connection)

    return effect


async def _aio_postgres(url: str, *, recorded: bool) -> AioEffects:
    import psycopg
    import psycopg_pool

    with psycopg.connect(url) as first:
        first.execute(_TABLE)
    pool = psycopg_pool.AsyncConnectionPool(url, min_size=1, max_size=_CONNECTIONS, open=False)
    await pool.open()

    async def effect(request: Any, context: Any) -> None:
        async with pool.connection() as connection:
            block: Any = (
                rifl.aio.transaction(context, connection) if recorded else connection.transaction()
            )
            async with block:
                await connection.execute(_INSERT, (request.key,))
                if recorded:
                    await rifl.aio.record(context, request, connection)

    return effect
