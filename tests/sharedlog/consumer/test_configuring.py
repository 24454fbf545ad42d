"""Connections of consumers' stores, as the user wants them: foreign keys, and a hook (T1, T5)."""

import sqlite3
from contextlib import closing

import psycopg
import pytest
from psycopg.rows import dict_row
from psycopg.types.numeric import Int8Dumper

import sharedlog
from sharedlog import HandlerEnded, InvalidRequest, StoreAway
from sharedlog.testing import drain, driven
from tests.helpers.log_servers import shared_postgres
from tests.sharedlog.consumer.test_left_running import log, noting
from tests.sharedlog.consumer.world import PostgresDatabase, SqliteDatabase

__all__ = ["log", "shared_postgres"]

KEYS = (
    "CREATE TABLE parent (id TEXT PRIMARY KEY)",
    "INSERT INTO parent VALUES ('one')",
    "CREATE TABLE child (id TEXT REFERENCES parent)",
)


class Place:
    """A database with tables of the application's."""

    def __init__(self, database, *tables):
        self.url = database.url
        self.database = database
        with closing(database.connect()) as connection, connection:
            for each in tables:
                connection.execute(each)

    def rows(self, query):
        with closing(self.database.connect()) as connection:
            return [tuple(each) for each in connection.execute(query)]


@pytest.mark.parametrize(("query", "kept"), [("?foreign_keys=on", 1), ("", 3)])
def test_foreign_keys_are_enforced_where_the_url_says_so(tmp_path, log, query, kept):
    """As by a store's URL: a violation is its handler's failure."""
    place = Place(SqliteDatabase(tmp_path), *KEYS)
    place.url += query
    log.stream("dead", substreams=1)

    def note(order, effects):
        effects.connection.execute("INSERT INTO child VALUES (?)", (order,))

    drain(noting(place, log, note, attempts=1, dead_letters="dead"))
    assert len(place.rows("SELECT id FROM child")) == kept
    errors = [each.headers["dead-letter-error"] for each in log.read("dead", 0)]
    assert len(errors) == 3 - kept
    assert all(b"FOREIGN KEY" in each for each in errors)


def test_a_url_with_foreign_keys_is_the_logs_file_still(tmp_path):
    """Effects and outputs are one commit, as without."""
    place = Place(SqliteDatabase(tmp_path))
    with sharedlog.create(place.url) as log:
        log.stream("orders", substreams=1)
        url = f"{place.url}?foreign_keys=on"
        consumer = sharedlog.Consumer(log, "noting", ["orders"], url)
        with closing(consumer._open_store()) as store:
            assert store.joined(log._engine) is not None
        for wrong in ("?foreign_keys=maybe", "?wal=off"):
            with pytest.raises(InvalidRequest, match="foreign_keys"):
                sharedlog.Consumer(log, "noting", ["orders"], place.url + wrong)


def test_a_hook_sees_each_new_connection_to_sqlite(tmp_path, log):
    """Its functions, collations and row factory are there for handlers; ours are read as ever."""
    place = Place(SqliteDatabase(tmp_path), "CREATE TABLE note (what TEXT)")
    seen, kept = [], []

    def named(cursor, row):
        return {column[0]: value for column, value in zip(cursor.description, row, strict=True)}

    def configure(connection):
        assert isinstance(connection, sqlite3.Connection)
        kept.append(connection)
        connection.create_function("loud", 1, lambda text: f"{text}!")
        connection.create_collation("backwards", lambda one, other: (other > one) - (other < one))
        connection.execute("PRAGMA cache_size = 77")
        connection.execute("CREATE TEMP TABLE seen (what TEXT)")
        connection.row_factory = named
        connection.text_factory = bytes

    def note(order, effects):
        connection = effects.connection
        connection.execute("INSERT INTO note VALUES (loud(?))", (order,))
        connection.execute("INSERT INTO temp.seen SELECT loud(?)", (order,))
        rows = connection.execute("SELECT what FROM note ORDER BY what COLLATE backwards")
        (size,) = connection.execute("PRAGMA cache_size").fetchone().values()
        seen.append((rows.fetchone(), size))
        # The next handler has it as it was configured.
        connection.row_factory = None

    consumer = noting(place, log, note, configure=configure)
    with driven(consumer) as process:
        process.drain()
        process._work.carrier._store.close()
        log.publish("orders", "four")
        process.drain()
    assert place.rows("SELECT what FROM note") == [("one!",), ("two!",), ("three!",), ("four!",)]
    assert seen == [({"what": each}, 77) for each in (b"one!", b"two!", b"two!", b"two!")]
    assert len(kept) == 2
    with pytest.raises(HandlerEnded):
        kept[0].execute("SELECT 1")


class Cents(int):
    """An amount, which psycopg does not know."""


class CentsDumper(Int8Dumper):
    """Tells PostgreSQL."""

    def dump(self, obj):
        return b"%d" % (int(obj) * 100)


def test_a_hook_sees_each_new_connection_to_postgresql(shared_postgres, log):
    """Adapters, and what it sets for the session, which is not put back after a handler."""
    place = Place(PostgresDatabase(shared_postgres), "CREATE TABLE note (what TEXT, cents BIGINT)")
    seen = []

    def configure(connection):
        assert isinstance(connection, psycopg.Connection)
        connection.adapters.register_dumper(Cents, CentsDumper)
        connection.execute("SET statement_timeout = 12345")
        connection.row_factory = dict_row
        connection.commit()

    def note(order, effects):
        connection = effects.connection
        connection.execute("INSERT INTO note VALUES (%s, %s)", (order, Cents(3)))
        seen.append(connection.execute("SHOW statement_timeout").fetchone())
        connection.execute("SET statement_timeout = 99999")

    with driven(noting(place, log, note, configure=configure)) as process:
        process.drain()
        log.publish("orders", "four")
        process.drain()
    assert place.rows("SELECT DISTINCT cents FROM note") == [(300,)]
    assert (seen[0], seen[-1]) == ({"statement_timeout": "12345ms"},) * 2
    assert len(seen) == 4


def fails(_):
    raise ValueError("no")


SQLITE = {
    "raised ValueError": fails,
    "begins, commits": lambda connection: connection.execute("BEGIN"),
    "isolation_level": lambda connection: setattr(connection, "isolation_level", "DEFERRED"),
    "writes its table": lambda connection: connection.execute("PRAGMA synchronous = OFF"),
}
POSTGRES = {
    "raised ValueError": fails,
    "left a transaction open": lambda connection: connection.execute("BEGIN"),
    "changed autocommit": lambda connection: setattr(connection, "autocommit", False),
    "or read_only": lambda connection: setattr(connection, "read_only", True),
}


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_hook_that_leaves_a_connection_otherwise_is_refused(request, tmp_path, log, kind):
    """Before anything is consumed, and nothing stays open; the driver's own errors are passed."""
    ways = SQLITE if kind == "sqlite" else POSTGRES
    where = tmp_path if kind == "sqlite" else request.getfixturevalue("shared_postgres")
    place = Place((SqliteDatabase if kind == "sqlite" else PostgresDatabase)(where))
    for why, configure in ways.items():
        with pytest.raises(InvalidRequest, match=why):
            noting(place, log, print, configure=configure).once()

    def wrong(connection):
        connection.execute("SELECT missing")

    with pytest.raises(StoreAway, match="missing"):
        noting(place, log, print, configure=wrong).once()


def test_a_hook_is_a_function_for_a_database_of_sql(tmp_path, log):
    """Of a coroutine nothing would run; over Redis and the log there is no connection of SQL."""

    async def later(_):
        """Do nothing."""

    place = Place(SqliteDatabase(tmp_path))
    for url, configure in [(place.url, later), (place.url, 1), ("log", print)]:
        with pytest.raises(InvalidRequest, match="configure="):
            sharedlog.Consumer(log, "noting", ["orders"], url, configure=configure)
