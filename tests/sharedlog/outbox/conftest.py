"""Databases of applications, and a log that lives elsewhere."""

import secrets
import sqlite3
from contextlib import closing

import psycopg
import pytest

import sharedlog


class SqliteDatabase:
    """A file of the application's."""

    def __init__(self, path):
        self.path = path
        self.url = f"sqlite:///{path}"
        self.aio_url = f"sqlite+aiosqlite:///{path}"

    def connect(self):
        return sqlite3.connect(self.path, check_same_thread=False)

    def copy(self):
        with closing(self.connect()) as source, closing(sqlite3.connect(":memory:")) as target:
            source.backup(target)
            return target.serialize()

    def restore(self, copy):
        with closing(self.connect()) as target, closing(sqlite3.connect(":memory:")) as source:
            source.deserialize(copy)
            source.backup(target)


class PostgresDatabase:
    """A schema of the run's server, of the test's own."""

    TABLES = ("orders", "sharedlog_outbox", "sharedlog_outbox_message", "sharedlog_outbox_done")

    def __init__(self, server):
        name = f"app_{secrets.token_hex(6)}"
        with server.connect(autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA {name}")
        self.url = server.url(options=f"-csearch_path%3D{name}")
        self.aio_url = self.url.replace("postgresql:", "postgresql+psycopg:")

    def connect(self):
        return psycopg.connect(self.url)

    def copy(self):
        copy = f"_{secrets.token_hex(2)}"
        with self.connect() as connection:
            for table in self.TABLES:
                connection.execute(f"CREATE TABLE {table}{copy} AS TABLE {table}")
        return copy

    def restore(self, copy):
        with self.connect() as connection:
            for table in self.TABLES:
                connection.execute(f"TRUNCATE {table}")
                connection.execute(f"INSERT INTO {table} TABLE {table}{copy}")


@pytest.fixture(params=["sqlite", "postgres"])
def database(request, tmp_path):
    """The application's, with a table and an outbox for the log."""
    if request.param == "sqlite":
        made = SqliteDatabase(tmp_path / "app.db")
    else:
        made = PostgresDatabase(request.getfixturevalue("shared_postgres"))
    log = request.getfixturevalue("log")
    with closing(made.connect()) as connection, connection:
        connection.execute("CREATE TABLE orders (name TEXT)")
        sharedlog.create_outbox(connection, log)
    return made


@pytest.fixture
def log():
    """A log elsewhere, with a stream."""
    with sharedlog.create("memory:") as made:
        made.stream("orders", substreams=1)
        yield made
