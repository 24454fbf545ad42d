"""Tasks and threads that a handler leaves running touch no later transaction (DESIGN-LOG §14)."""

import asyncio
import contextlib
import logging
import secrets
import sqlite3
import threading
from contextlib import closing

import psycopg
import pytest
import redis
import sqlalchemy
from sqlalchemy.exc import ResourceClosedError
from sqlalchemy.orm import Session

import sharedlog
from _rifl_ground.postgres import lent
from sharedlog import HandlerEnded
from sharedlog._consumer import redis_transaction
from sharedlog._consumer.state import ShardState
from sharedlog._core.consumer.changelog import Changelog
from sharedlog._core.consumer.state import Changes
from sharedlog.testing import drain
from tests.helpers.log_servers import shared_postgres, shared_redis
from tests.helpers.waiting import until
from tests.sharedlog.consumer.world import PostgresDatabase, SqliteDatabase

__all__ = ["shared_postgres", "shared_redis"]

NOTE = "INSERT INTO note VALUES ('{}')"


class Tables:
    """Notes in a table."""

    def __init__(self, database):
        self.url = database.url
        self.connect = database.connect
        with closing(self.connect()) as connection, connection:
            connection.execute("CREATE TABLE note (what TEXT)")

    def write(self, effects, what):
        effects.connection.execute(NOTE.format(what))

    def ways(self, effects):
        """What was lent, each as something that writes a note by it."""
        connection = effects.connection
        cursor = connection.cursor()
        cursor.execute("SELECT 1")
        return {
            "connection": lambda: connection.execute(NOTE.format("left")),
            "many": lambda: connection.cursor().executemany(NOTE.format("left"), [()]),
            "cursor": lambda: cursor.execute(NOTE.format("left")),
            "of the cursor": lambda: cursor.connection.execute(NOTE.format("left")),
            "of effects": lambda: effects.connection.execute(NOTE.format("left")),
        }

    def notes(self):
        with closing(self.connect()) as connection:
            return sorted(what for (what,) in connection.execute("SELECT what FROM note"))


class File(Tables):
    """In SQLite."""

    def __init__(self, database):
        super().__init__(database)
        with closing(self.connect()) as connection, connection:
            connection.execute("CREATE TABLE large (what BLOB)")
            connection.execute("INSERT INTO large VALUES (zeroblob(9))")

    def ways(self, effects):
        class Own(sqlite3.Cursor):
            pass

        connection = effects.connection
        assert isinstance(connection, sqlite3.Connection)
        cursor = connection.cursor(Own)
        assert isinstance(cursor, Own)
        blob = connection.blobopen("large", "what", 1)
        return {
            **super().ways(effects),
            "own cursor": lambda: cursor.execute(NOTE.format("left")),
            "of the own cursor": lambda: cursor.connection.execute(NOTE.format("left")),
            "settings": lambda: setattr(connection, "row_factory", sqlite3.Row),
            "blob": lambda: blob.write(b"left"),
        }


class Alchemy(Tables):
    """By SQLAlchemy."""

    def write(self, effects, what):
        effects.sqlalchemy.execute(sqlalchemy.text(NOTE.format(what)))

    def ways(self, effects):
        given = effects.sqlalchemy
        session = Session(given)
        note = sqlalchemy.text(NOTE.format("left"))
        session.execute(sqlalchemy.text("SELECT 1"))
        return {
            "connection": lambda: given.execute(note),
            "session": lambda: session.execute(note),
            "of effects": lambda: effects.sqlalchemy.execute(note),
        }


class Lists:
    """Notes in a list of Redis."""

    def __init__(self, server):
        self.url = server.url()
        self.key = f"notes:{secrets.token_hex(6)}"

    def write(self, effects, what):
        effects.connection.rpush(self.key, what)

    def ways(self, effects):
        connection = effects.connection
        return {
            "connection": lambda: connection.rpush(self.key, "left"),
            "watch": lambda: connection.watch(self.key),
            "reset": lambda: connection.reset(),
            "of effects": lambda: effects.connection.rpush(self.key, "left"),
        }

    def notes(self):
        with closing(redis.Redis.from_url(self.url)) as client:
            return sorted(each.decode() for each in client.lrange(self.key, 0, -1))


class State:
    """Notes in the consumer's state, which the log has."""

    url = "log"

    def write(self, effects, what):
        effects.state[what] = effects.state.get(what, 0) + 1

    def ways(self, effects):
        state = effects.state
        return {
            "state": lambda: state.update({"left": 1}),
            "of effects": lambda: effects.state.update({"left": 1}),
        }

    def notes(self):
        place = self.log._place
        found = Changelog("noting", "orders/0", place.incarnation, place.seals)
        while place.run(found.read()):
            pass
        state = dict(ShardState(Changes(found.table)))
        return sorted(what for what, count in state.items() for _ in range(count))


PLACES = ["sqlite", "postgres", "sqlite by sqlalchemy", "postgres by sqlalchemy", "redis", "log"]


@pytest.fixture(params=PLACES)
def place(request, tmp_path):
    kind, _, by = request.param.partition(" by ")
    if kind == "log":
        return State()
    if kind == "redis":
        return Lists(request.getfixturevalue("shared_redis"))
    if kind == "sqlite":
        return (Alchemy if by else File)(SqliteDatabase(tmp_path))
    server = request.getfixturevalue("shared_postgres")
    return (Alchemy if by else Tables)(PostgresDatabase(server))


def noting(place, log, handler, **settings):
    """A consumer of the orders."""
    place.log = log
    name = "noting" if place.url == "log" else f"noting-{secrets.token_hex(4)}"
    consumer = sharedlog.Consumer(log, name, ["orders"], place.url, **settings)
    consumer.on("orders", str)(handler)
    return consumer


@pytest.fixture
def log():
    with sharedlog.create("memory:") as log:
        log.stream("orders", substreams=1)
        log.stream("out", substreams=1)
        for each in ("one", "two", "three"):
            log.publish("orders", each)
        yield log


@pytest.mark.parametrize("fails", [True, False], ids=["fails", "returns"])
def test_a_task_that_is_left_writes_into_no_other_transaction(place, log, fails, caplog):
    """Neither the retry's nor the next message's; each thing it was lent refuses (T1, T2)."""
    caplog.set_level(logging.WARNING, logger="sharedlog")
    refused, left, goes_on = {}, [], asyncio.Event()

    async def sibling(ways, effects):
        await goes_on.wait()
        publish = {"publish": lambda: effects.publish("out", "left")}
        for name, way in {**ways, **publish}.items():
            try:
                way()
            except Exception as error:  # noqa: BLE001 - looked at below
                refused[name] = error
            else:
                refused[name] = None

    async def broken():
        raise ValueError("the first time")

    async def note(order, effects):
        place.write(effects, order)
        effects.publish("out", order)
        if not left:
            task = asyncio.create_task(sibling(place.ways(effects), effects), name="the other")
            left.append(task)
            await (asyncio.gather(task, broken()) if fails else asyncio.sleep(0))
        elif not goes_on.is_set():
            goes_on.set()
            await left[0]

    consumer = noting(place, log, note)
    drain(consumer)
    assert place.notes() == ["one", "three", "two"]
    assert [each.text for each in log.read("out", 0)] == ["one", "two", "three"]
    ours = (HandlerEnded, ResourceClosedError)
    # What sqlite3 has closed says so itself.
    closed = {name for name, error in refused.items() if not isinstance(error, ours)}
    assert closed <= {"blob"}, refused
    assert None not in refused.values()
    (event,) = {
        each.getMessage() for each in caplog.records if "consumer_left_tasks" in each.getMessage()
    }
    assert "the other (" in event
    assert "sibling" in event


def test_a_function_that_keeps_what_an_earlier_message_was_lent_is_refused(place, log):
    """Also when the handler of a later message calls it (T1)."""
    kept, refused = [], []

    def note(order, effects):
        if not kept:
            kept.extend(place.ways(effects).values())
        else:
            for way in kept:
                try:
                    way()
                except Exception as error:  # noqa: BLE001 - counted
                    refused.append(error)
        place.write(effects, order)

    drain(noting(place, log, note))
    assert place.notes() == ["one", "three", "two"]
    assert len(refused) == 2 * len(kept)


@pytest.mark.parametrize("ends", ["by itself", "cancelled", "cut off"])
def test_a_statement_in_flight_is_waited_for_then_cancelled_then_cut_off(
    shared_postgres, log, monkeypatch, ends
):
    """It is no part of the retry, which begins once nothing is in flight (T1, T2)."""
    place = Tables(PostgresDatabase(shared_postgres))
    ended, threads = [], []
    if ends != "by itself":
        monkeypatch.setattr(lent, "IN_FLIGHT_S", 0.05)
    if ends == "cut off":
        monkeypatch.setattr(lent, "_CANCEL_S", 0.3)
        monkeypatch.setattr(psycopg.Connection, "cancel_safe", lambda *_, **__: None)
    seconds = 0.2 if ends == "by itself" else 30
    slow = "INSERT INTO note SELECT 'left' FROM pg_sleep(%s)"

    def left(connection):
        try:
            connection.execute(slow, (seconds,))
            ended.append(None)
            connection.execute(NOTE.format("later"))
        except Exception as error:  # noqa: BLE001 - looked at below
            ended.append(type(error))

    def note(order, effects):
        if not threads:
            threads.append(threading.Thread(target=left, args=(effects.connection,)))
            threads[0].start()
            pid = effects.connection.info.backend_pid
            with shared_postgres.connect(autocommit=True) as other:
                asked = "SELECT wait_event FROM pg_stat_activity WHERE pid = %s"
                until(
                    lambda: other.execute(asked, (pid,)).fetchone() == ("PgSleep",),
                    "the statement runs",
                )
            raise ValueError("the first time")
        effects.connection.execute(NOTE.format(order))

    drain(noting(place, log, note))
    threads[0].join(30)
    assert place.notes() == ["one", "three", "two"]
    assert (
        ended[-1]
        in {
            "by itself": (HandlerEnded,),
            "cancelled": (psycopg.errors.QueryCanceled,),
            "cut off": (psycopg.OperationalError, psycopg.errors.AdminShutdown),
        }[ends]
    )


def test_a_command_of_redis_in_flight_is_waited_for_then_cut_off(shared_redis, log, monkeypatch):
    """A thread that reads as its handler fails (T1, T2)."""
    monkeypatch.setattr(redis_transaction, "IN_FLIGHT_S", 0.05)
    place = Lists(shared_redis)
    reads, goes_on, ended, threads = threading.Event(), threading.Event(), [], []

    def left(connection):
        try:
            connection.get(place.key + ":other")
        except Exception as error:  # noqa: BLE001 - counted
            ended.append(error)

    def note(order, effects):
        if not threads:
            connection = effects.connection
            connection.watch(place.key)
            answered = connection.connection.read_response

            def slow(*given, **named):
                reads.set()
                goes_on.wait(30)
                return answered(*given, **named)

            connection.connection.read_response = slow
            threads.append(threading.Thread(target=left, args=(connection,)))
            threads[0].start()
            assert reads.wait(30)
            with contextlib.suppress(AttributeError):
                del connection.connection.read_response
            raise ValueError("the first time")
        goes_on.set()
        threads[0].join(30)
        place.write(effects, order)

    drain(noting(place, log, note))
    assert place.notes() == ["one", "three", "two"]
    assert len(ended) == 1
