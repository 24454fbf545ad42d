"""Endings of a transaction that is not the handler's own, over each driver."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sqlite3
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import aiosqlite
import asyncpg
import pg8000.dbapi
import psycopg
import pymysql
import sqlalchemy
import sqlalchemy.ext.asyncio
import sqlalchemy.orm

import rifl


class Driver:
    """A connection of one kind, as a handler has it; ``aio``: with ``await``."""

    aio = False
    postgres = False
    # The transaction is the store's, which lends its connection.
    shared = False

    def __init__(self, url: str, file: Any) -> None:
        self._url, self._file = url, file
        self.held: Any = None

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Have what ``rifl.transaction`` is given."""
        yield

    async def sql(self, statement: str) -> None:
        """Execute one statement, or several where the driver takes them."""
        await maybe(self.held.execute(statement))

    async def commit(self) -> None:
        """Commit, as the driver does."""
        await maybe(self.held.commit())

    async def rollback(self) -> None:
        """Roll back, as the driver does."""
        await maybe(self.held.rollback())

    async def close(self) -> None:
        """Close it."""
        await maybe(self.held.close())

    @contextlib.asynccontextmanager
    async def block(self, context: Any) -> AsyncIterator[None]:
        """Be in a ``rifl.transaction``."""
        given = () if self.shared else (self.held,)
        if self.aio:
            async with rifl.aio.transaction(context, *given) as self.held:
                yield
        else:
            with rifl.transaction(context, *given) as self.held:
                yield

    async def record(self, context: Any, reply: bytes) -> None:
        """Give the answer."""
        if self.aio:
            await rifl.aio.record(context, reply, self.held)
        else:
            rifl.record(context, reply, self.held)


async def maybe(done: Any) -> Any:
    """Return a result, awaited if need be."""
    return await done if inspect.isawaitable(done) else done


def at_once(steps: Any) -> Any:
    """Return what a coroutine returns that awaits nothing."""
    try:
        steps.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("it waits for something")


class Sqlite3(Driver):
    """sqlite3, which begins before the first write."""

    isolation: str | None = ""

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        with contextlib.closing(
            sqlite3.connect(self._file, timeout=10, isolation_level=self.isolation)
        ) as self.held:
            if self.isolation is None:
                self.held.execute("BEGIN")
            yield


class Sqlite3ByHand(Sqlite3):
    """sqlite3 in autocommit, begun by hand."""

    isolation = None


class Aiosqlite(Driver):
    """aiosqlite."""

    aio = True

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        async with aiosqlite.connect(self._file, timeout=10) as self.held:
            yield


class Shared(Driver):
    """The store's connection, in turns."""

    shared = True


class Psycopg(Driver):
    """psycopg."""

    postgres = True

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        with psycopg.connect(self._url) as self.held:
            yield


class AioPsycopg(Driver):
    """psycopg's asynchronous connection."""

    aio = postgres = True

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        async with await psycopg.AsyncConnection.connect(self._url) as self.held:
            yield


class Named(Psycopg):
    """A DB-API connection that is named so."""

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        with psycopg.connect(self._url) as connection:
            self.held = rifl.DbApiTransaction(connection, "pyformat")
            yield

    async def sql(self, statement: str) -> None:
        self.held.connection.execute(statement)

    async def commit(self) -> None:
        self.held.connection.commit()

    async def rollback(self) -> None:
        self.held.connection.rollback()

    async def close(self) -> None:
        self.held.connection.close()


class Pg8000(Named):
    """pg8000, named so."""

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        at = urlsplit(self._url)
        connection = pg8000.dbapi.connect(
            at.username, at.hostname, at.path[1:], at.port or 5432, at.password
        )
        self.held = rifl.DbApiTransaction(connection, pg8000.dbapi.paramstyle)
        try:
            yield
        finally:
            # A handler may have closed it.
            with contextlib.suppress(pg8000.dbapi.InterfaceError):
                connection.close()

    async def sql(self, statement: str) -> None:
        self.held.connection.cursor().execute(statement)


# To make one takes longer than all that a handler does.
_engine = functools.cache(sqlalchemy.create_engine)
_async_engine = functools.cache(sqlalchemy.ext.asyncio.create_async_engine)


class Alchemy(Driver):
    """SQLAlchemy's ``Session``."""

    def _address(self) -> str:
        if self.postgres:
            return self._url.replace("postgresql://", "postgresql+psycopg://")
        return f"sqlite{'+aiosqlite' if self.aio else ''}:///{self._file}"

    def _held(self, engine: Any) -> Any:
        return sqlalchemy.orm.Session(engine)

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        engine = _engine(self._address())
        try:
            with self._held(engine) as self.held:
                yield
        finally:
            # What a handler has set goes with the connections.
            engine.dispose()

    async def sql(self, statement: str) -> None:
        await maybe(self.held.execute(sqlalchemy.text(statement.replace(":", "\\:"))))


class AlchemyCore(Alchemy):
    """SQLAlchemy's ``Connection``."""

    def _held(self, engine: Any) -> Any:
        return engine.connect()


class AioAlchemy(Alchemy):
    """SQLAlchemy's ``AsyncSession``."""

    aio = True

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        engine = _async_engine(self._address())
        try:
            async with sqlalchemy.ext.asyncio.AsyncSession(engine) as self.held:
                yield
        finally:
            await engine.dispose()


class PostgresAlchemy(Alchemy):
    """The same over psycopg."""

    postgres = True


class PostgresAlchemyCore(AlchemyCore):
    """The same over psycopg."""

    postgres = True


class PostgresAioAlchemy(AioAlchemy):
    """The same over psycopg."""

    postgres = True


class Asyncpg(Driver):
    """asyncpg."""

    aio = postgres = True

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        self.held = await asyncpg.connect(self._url)
        try:
            yield
        finally:
            await self.held.close()


class AsyncpgOfPool(Asyncpg):
    """The same, lent by asyncpg's pool."""

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        pool = asyncpg.create_pool(self._url, min_size=1, max_size=1)
        async with pool, pool.acquire() as self.held:
            yield


class AsyncpgAlchemy(PostgresAioAlchemy):
    """SQLAlchemy's ``AsyncSession`` over asyncpg."""

    def _address(self) -> str:
        return self._url.replace("postgresql://", "postgresql+asyncpg://")


class AsyncpgAlchemyCore(AsyncpgAlchemy):
    """The same for an ``AsyncConnection``."""

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        engine = _async_engine(self._address())
        try:
            async with engine.connect() as self.held:
                yield
        finally:
            await engine.dispose()


class PyMySql(Driver):
    """PyMySQL, as it comes."""

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        self.held = mariadb_connection(self._url)
        try:
            yield
        finally:
            with contextlib.suppress(pymysql.Error):
                self.held.close()

    async def sql(self, statement: str) -> None:
        with self.held.cursor() as cursor:
            cursor.execute(statement)


class MariaDbAlchemy(Alchemy):
    """SQLAlchemy's ``Session`` over PyMySQL."""

    def _address(self) -> str:
        where = self._url.partition("?")[0].replace("mysql://", "mysql+pymysql://")
        return f"{where}?ssl_disabled=true"


class MariaDbAlchemyCore(AlchemyCore):
    """The same for a ``Connection``."""

    def _address(self) -> str:
        where = self._url.partition("?")[0].replace("mysql://", "mysql+pymysql://")
        return f"{where}?ssl_disabled=true"


def mariadb_connection(url: str) -> Any:
    """Connect to the server of a store's URL."""
    where = urlsplit(url)
    return pymysql.connect(
        host=where.hostname,
        port=where.port or 0,
        user=where.username,
        database=where.path[1:],
        ssl_disabled=True,
    )


OVER_SQLITE: dict[str, type[Driver]] = {
    "sqlite3": Sqlite3,
    "sqlite3 begun by hand": Sqlite3ByHand,
    "aiosqlite": Aiosqlite,
    "Session": Alchemy,
    "Connection": AlchemyCore,
    "AsyncSession": AioAlchemy,
    "no connection": Shared,
}
OVER_POSTGRES: dict[str, type[Driver]] = {
    "psycopg": Psycopg,
    "async psycopg": AioPsycopg,
    "Session": PostgresAlchemy,
    "Connection": PostgresAlchemyCore,
    "AsyncSession": PostgresAioAlchemy,
    "DbApiTransaction": Named,
    "pg8000": Pg8000,
    "asyncpg": Asyncpg,
    "asyncpg's pool": AsyncpgOfPool,
    "AsyncSession over asyncpg": AsyncpgAlchemy,
    "AsyncConnection over asyncpg": AsyncpgAlchemyCore,
}
OVER_MARIADB: dict[str, type[Driver]] = {
    "PyMySQL": PyMySql,
    "Session": MariaDbAlchemy,
    "Connection": MariaDbAlchemyCore,
}
Way = Callable[[Driver], Awaitable[None]]


def by_sql(*statements: str) -> Way:
    """End it by SQL, one statement after the other."""

    async def way(driver: Driver) -> None:
        for each in statements:
            await driver.sql(each)

    return way


def _caught(*statements: str) -> Way:
    """The same, of which each may fail; raises the first failure at the end."""

    async def way(driver: Driver) -> None:
        errors = []
        for each in statements:
            try:
                await driver.sql(each)
            except Exception as error:  # noqa: BLE001 - whatever a driver raises
                errors.append(error)
        if errors:
            raise errors[0]

    return way


async def with_connection(driver: Driver) -> None:
    """Have ``with connection`` commit it, as sqlite3's does."""
    if driver.aio or driver.shared or isinstance(driver, Alchemy):
        raise NotInThisDriver
    with driver.held:
        pass


async def script(driver: Driver) -> None:
    """Commit it by ``executescript``, which does so first."""
    await maybe(driver.held.executescript("SELECT 1"))


async def autocommit(driver: Driver) -> None:
    """Switch the driver to autocommit."""
    if driver.shared or isinstance(driver, Alchemy):
        raise NotInThisDriver
    if isinstance(driver, PyMySql):
        driver.held.autocommit(True)
    elif not driver.postgres:
        driver.held.isolation_level = None
    elif driver.aio:
        await driver.held.set_autocommit(True)
    else:
        getattr(driver.held, "connection", driver.held).autocommit = True


async def interrupt(driver: Driver) -> None:
    """Interrupt a statement that writes, by which SQLite rolls back everything."""
    held = driver.held

    def stop(_: Any) -> int:
        held.interrupt() if not driver.aio else held._conn.interrupt()
        return 1

    await maybe(held.create_function("stop", 1, stop))
    with contextlib.suppress(sqlite3.Error):
        await driver.sql("INSERT INTO other SELECT stop(1) FROM effects")


async def deadlock(driver: Driver) -> None:
    """Wait for a row of a transaction that waits for one of ours, and has more to undo."""
    with contextlib.closing(mariadb_connection(driver._url)) as other, other.cursor() as cursor:
        cursor.executemany("INSERT INTO other VALUES (%s)", [(number,) for number in range(50)])
        cursor.execute("UPDATE one SET n = 2 WHERE k = 2")
        await driver.sql("UPDATE one SET n = 1 WHERE k = 1")
        waits = threading.Thread(target=cursor.execute, args=("UPDATE one SET n = 2 WHERE k = 1",))
        waits.start()
        try:
            await driver.sql("UPDATE one SET n = 1 WHERE k = 2")
        finally:
            waits.join()


class NotInThisDriver(Exception):
    """There is no such way over this driver."""


SQLITE: dict[str, Way] = {
    "`commit()`": lambda driver: driver.commit(),
    "`rollback()`": lambda driver: driver.rollback(),
    "`with connection:`": with_connection,
    "`executescript`": script,
    "`COMMIT`": by_sql("COMMIT"),
    "`END`": by_sql("END"),
    "`ROLLBACK`": by_sql("ROLLBACK"),
    "`COMMIT`, then `BEGIN`": _caught("COMMIT", "BEGIN"),
    "`ROLLBACK`, then `BEGIN`": _caught("ROLLBACK", "BEGIN"),
    "a savepoint, released": by_sql("SAVEPOINT mine", "RELEASE mine"),
    "a savepoint, rolled back": by_sql("SAVEPOINT mine", "ROLLBACK TO mine", "RELEASE mine"),
    "`INSERT OR ROLLBACK`": _caught("INSERT OR ROLLBACK INTO one VALUES (1)"),
    "... then a savepoint": _caught("INSERT OR ROLLBACK INTO one VALUES (1)", "SAVEPOINT mine"),
    "`ON CONFLICT ROLLBACK`": _caught("INSERT INTO conflicting VALUES (1)"),
    "`RAISE(ROLLBACK)`": _caught("INSERT INTO raising VALUES (1)"),
    "`connection.interrupt()`": interrupt,
    "`isolation_level = None`": autocommit,
    "`close()`": lambda driver: driver.close(),
}
POSTGRES: dict[str, Way] = {
    "`commit()`": lambda driver: driver.commit(),
    "`rollback()`": lambda driver: driver.rollback(),
    "`COMMIT`": by_sql("COMMIT"),
    "`COMMIT AND CHAIN`": by_sql("COMMIT AND CHAIN"),
    "`END`": by_sql("END"),
    "`ROLLBACK`": by_sql("ROLLBACK"),
    "`COMMIT`, then `BEGIN`": by_sql("COMMIT", "BEGIN"),
    "`ROLLBACK`, then `BEGIN`": by_sql("ROLLBACK", "BEGIN"),
    "`COMMIT`, then a failing statement": _caught("COMMIT", "BEGIN", "SELECT 1/0"),
    "`PREPARE TRANSACTION`": by_sql("PREPARE TRANSACTION 'by a handler'"),
    "a savepoint, released": by_sql("SAVEPOINT mine", "RELEASE mine"),
    "a savepoint, rolled back": by_sql("SAVEPOINT mine", "ROLLBACK TO mine"),
    "a failing statement": _caught("SELECT 1/0"),
    "`RESET ALL`": by_sql("RESET ALL"),
    "`SET TRANSACTION READ ONLY`": by_sql("SET TRANSACTION READ ONLY"),
    "`SET SESSION CHARACTERISTICS ... READ ONLY`": by_sql(
        "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY"
    ),
    "`SET ROLE`": by_sql("SET ROLE nobody_in_particular"),
    "`SET search_path`": by_sql("SET search_path = elsewhere"),
    "`autocommit = True`": autocommit,
    "`close()`": lambda driver: driver.close(),
}
MARIADB: dict[str, Way] = {
    "`commit()`": lambda driver: driver.commit(),
    "`rollback()`": lambda driver: driver.rollback(),
    "`COMMIT`": by_sql("COMMIT"),
    "`COMMIT AND CHAIN`": by_sql("COMMIT AND CHAIN"),
    "`ROLLBACK`": by_sql("ROLLBACK"),
    "`ROLLBACK AND CHAIN`": by_sql("ROLLBACK AND CHAIN"),
    "`COMMIT`, then `BEGIN`": _caught("COMMIT", "BEGIN"),
    "`BEGIN`": by_sql("BEGIN"),
    "DDL": by_sql("CREATE TABLE IF NOT EXISTS made (n INTEGER)"),
    "`SET autocommit = 1`": by_sql("SET autocommit = 1"),
    "`SET autocommit = 1`, then `0`": _caught("SET autocommit = 1", "SET autocommit = 0"),
    "`LOCK TABLES`": by_sql("LOCK TABLES effects WRITE"),
    "a procedure that commits": by_sql("CALL commits()"),
    "a procedure that rolls back, writes and commits": by_sql("CALL begins_anew()"),
    "a deadlock": deadlock,
    "`USE`": by_sql("USE information_schema"),
    "a failing statement": _caught("SELECT nothing FROM effects"),
    "a savepoint, released": by_sql("SAVEPOINT mine", "RELEASE SAVEPOINT mine"),
    "a savepoint, rolled back": by_sql("SAVEPOINT mine", "ROLLBACK TO SAVEPOINT mine"),
    "`connection.autocommit(True)`": autocommit,
    "`close()`": lambda driver: driver.close(),
}
