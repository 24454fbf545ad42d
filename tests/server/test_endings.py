"""Handlers that end the transaction of their ``rifl.transaction``, over each driver (DESIGN §6)."""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
from collections.abc import Iterator
from typing import Any

import pytest

import rifl
from tests.helpers.pages import table_rows
from tests.helpers.raw import RawClient
from tests.helpers.servers import generic, serve
from tests.server.endings import (
    MARIADB,
    OVER_MARIADB,
    OVER_POSTGRES,
    OVER_SQLITE,
    POSTGRES,
    SQLITE,
    Driver,
    NotInThisDriver,
    Way,
    at_once,
)
from tests.stores.postgres.servers import PostgresServer

METHOD = "/test.Endings/Act"
PAGE = "transactions.md"
_UNDONE, _DONE = ("not-executed", 0), ("executed", 2)


class World:
    """A server whose handlers end transactions, and its table of effects."""

    def __init__(
        self,
        url: str,
        file: Any,
        reader: Any,
        drivers: dict[str, type[Driver]],
        table: str,
    ) -> None:
        self.url, self.file, self.drivers = url, file, drivers
        # Beside the handlers, each statement in a transaction of its own.
        self._reader, self._table = reader, table
        self._way: Way
        self._driver: Driver
        self._returns = False
        self._exists = self._failed = True
        # What the handler left its block by.
        self.raised: BaseException | None = None
        self._seq = itertools.count(1)
        self.clients: dict[bool, RawClient] = {}

    async def act(self, request: bytes, context: Any) -> bytes:
        """Have an effect, end the transaction, try another effect, and raise or return."""
        driver = self._driver
        insert = f"INSERT INTO {self._table} VALUES ('{request.decode()}')"  # noqa: S608 - ours
        async with driver.opened():
            try:
                async with driver.block(context):
                    await driver.sql(insert)
                    await self._end(driver)
                    with contextlib.suppress(Exception):
                        await driver.sql(insert)
                    if not self._returns:
                        raise KeyError("the handler's own")
                    await driver.record(context, b"done")
            except Exception as error:
                self.raised = error
                raise
        return b"done"

    async def _end(self, driver: Driver) -> None:
        try:
            await self._way(driver)
        except (NotInThisDriver, AttributeError):
            self._exists = False
        except Exception:  # noqa: BLE001 - whatever a driver raises
            self._failed = True

    def call(self, driver: str, way: Way, *, returns: bool) -> tuple[str, int]:
        """Return what a caller is told, at each attempt, and how many effects there are."""
        self._driver = self.drivers[driver](self.url, self.file)
        self._way, self._returns, self.raised = way, returns, None
        self._exists, self._failed = True, False
        seq = next(self._seq)
        what = f"effect {seq}"
        client = self.clients[self._driver.aio]
        told = client.call(METHOD, what.encode(), seq).outcome or "executed"
        if isinstance(self.raised, rifl.TransactionEnded) and told == "unknown":
            # For good: it is not run again.
            again = client.call(METHOD, what.encode(), seq, attempt=2)
            assert (again.reason, again.outcome) == ("OUTCOME_UNKNOWN", "unknown")
        counted = f"SELECT count(*) FROM {self._table} WHERE name = '{what}'"  # noqa: S608 - ours
        ((effects,),) = self._reader.execute(counted).fetchall()
        return told, effects

    def becomes(self, driver: str, way: Way) -> str:
        """Return what the docs say about a way to end a transaction."""
        raised = self.call(driver, way, returns=False)
        if not self._exists:
            return ""
        if raised[0] == "not-executed" and not self._driver.shared:
            assert isinstance(self.raised, KeyError), "the handler's own exception is masked"
        returned = self.call(driver, way, returns=True)
        if (raised, returned) == (_UNDONE, _DONE):
            return "refused" if self._failed else "goes on"
        if (raised, returned) == (_UNDONE, _UNDONE):
            return "rolled back"
        assert (raised[0], returned[0]) == ("unknown", "unknown"), (driver, raised, returned)
        return "unknown"


@contextlib.contextmanager
def served(world: World) -> Iterator[World]:
    """Have the world's handlers served, sync and aio."""

    def act(request: bytes, context: Any) -> bytes:
        done: bytes = at_once(world.act(request, context))
        return done

    with (
        rifl.Deduplicator(world.url, methods={METHOD: "atomic"}) as dedup,
        serve("sync", [generic("test.Endings", {"Act": act})], dedup=dedup) as sync,
        RawClient(sync.address) as first,
        serve("aio", [generic("test.Endings", {"Act": world.act})], dedup=dedup) as aio,
        RawClient(aio.address) as second,
    ):
        world.clients = {False: first, True: second}
        yield world
        if aio.loop is not None:
            aio.loop.run(dedup.aclose())


@pytest.fixture(scope="module")
def sqlite(tmp_path_factory: Any) -> Iterator[World]:
    """Handlers over a SQLite store."""
    file = tmp_path_factory.mktemp("endings") / "s.db"
    with contextlib.closing(sqlite3.connect(file, timeout=10)) as connection:
        connection.executescript(
            "CREATE TABLE effects (name TEXT); CREATE TABLE one (n INTEGER PRIMARY KEY);"
            "CREATE TABLE other (n INTEGER); INSERT INTO one VALUES (1);"
            "CREATE TABLE conflicting (n INTEGER UNIQUE ON CONFLICT ROLLBACK);"
            "INSERT INTO conflicting VALUES (1); CREATE TABLE raising (n INTEGER);"
            "CREATE TRIGGER raises BEFORE INSERT ON raising "
            "BEGIN SELECT RAISE(ROLLBACK, 'no'); END;"
        )
        with served(World(f"sqlite:///{file}", file, connection, OVER_SQLITE, "effects")) as world:
            yield world


@pytest.fixture(scope="module")
def postgres() -> Iterator[World]:
    """Handlers over a PostgreSQL store."""
    server = PostgresServer(max_prepared_transactions="40")
    with server.connect(autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE effects (name text); CREATE ROLE nobody_in_particular; "
            "GRANT INSERT ON effects TO nobody_in_particular"
        )
        with served(
            World(server.url(), None, connection, OVER_POSTGRES, "public.effects")
        ) as world:
            yield world
    server.stop()


class Reader:
    """A connection to MariaDB that has ``execute``."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def execute(self, statement: str) -> Any:
        """Execute a statement; its cursor."""
        cursor = self._connection.cursor()
        cursor.execute(statement)
        return cursor

    def close(self) -> None:
        """Close it."""
        self._connection.close()


@pytest.fixture(scope="module")
def mariadb(shared_mariadb: Any) -> Iterator[World]:
    """Handlers over a MariaDB store."""
    server = shared_mariadb
    with contextlib.closing(Reader(server.connect(autocommit=True))) as reader:
        for statement in (
            "CREATE OR REPLACE TABLE effects (name VARCHAR(99))",
            "CREATE OR REPLACE TABLE one (k INTEGER PRIMARY KEY, n INTEGER)",
            "CREATE OR REPLACE TABLE other (n INTEGER)",
            "INSERT INTO one VALUES (1, 0), (2, 0)",
            "CREATE OR REPLACE PROCEDURE commits() COMMIT",
            "CREATE OR REPLACE PROCEDURE begins_anew() BEGIN ROLLBACK; "
            "INSERT INTO effects VALUES ('of the procedure'); COMMIT; END",
        ):
            reader.execute(statement)
        url = server.url(prefix="endings_")
        with served(World(url, None, reader, OVER_MARIADB, "effects")) as world:
            yield world


def row(name: str, cells: dict[str, str]) -> str:
    """Return a way's row: what most drivers do, and which ones do otherwise."""
    drivers: dict[str, list[str]] = {}
    for driver, cell in cells.items():
        if cell:
            drivers.setdefault(cell, []).append(driver)
    most = max(drivers, key=lambda cell: len(drivers[cell]))
    but = "; ".join(f"{', '.join(of)}: {cell}" for cell, of in drivers.items() if cell != most)
    return f"| {name} | {most} | {but} |".replace("  ", " ")


def check_rows(world: World, database: str, ways: dict[str, Way]) -> None:
    """Compare what becomes of each way over each driver with the table in the docs."""
    found = [
        row(name, {driver: world.becomes(driver, way) for driver in world.drivers})
        for name, way in ways.items()
    ]
    page = table_rows(PAGE)
    begin = page.index(f"| over {database} | | but |") + 1
    assert sorted(page[begin : begin + len(found)]) == sorted(found), "\n".join(found)


def test_what_a_handler_ends_over_sqlite(sqlite: World) -> None:
    """As the table in the docs: never *not executed* with an effect, or half an effect (§6)."""
    check_rows(sqlite, "SQLite", SQLITE)


def test_what_a_handler_ends_over_postgresql(postgres: World) -> None:
    """As the table in the docs: never *not executed* with an effect, or half an effect (§6)."""
    check_rows(postgres, "PostgreSQL", POSTGRES)


def test_what_a_handler_ends_over_mariadb(mariadb: World) -> None:
    """As the table in the docs: never *not executed* with an effect, or half an effect (§6)."""
    check_rows(mariadb, "MariaDB", MARIADB)
