"""Sessions of a consumer's PostgreSQL: poolers, weak settings, locks (DESIGN-LOG §14, T1)."""

import secrets
import threading
from contextlib import ExitStack, closing

import psycopg
import pytest

import sharedlog
from sharedlog._consumer import postgres
from sharedlog._core.consumer.members import Gone
from sharedlog.testing import die, drain, driven
from tests.helpers.waiting import until
from tests.sharedlog.consumer.world import PostgresDatabase, World
from tests.stores.postgres.pgbouncer import PgBouncer
from tests.stores.postgres.servers import PostgresServer


@pytest.fixture(scope="module")
def weak():
    """A server that may forget what it acknowledges, and whose sessions do not wait for it."""
    server = PostgresServer(fsync="off", synchronous_commit="off")
    yield server
    server.stop()


class _Database:
    """A server's only database, as somebody reaches it."""

    def __init__(self, server, url):
        self._server = server
        self.url = url
        with closing(self.connect()) as connection, connection:
            connection.execute("DROP TABLE IF EXISTS bill, sharedlog_consumer")
            connection.execute("DROP TABLE IF EXISTS sharedlog_consumer_call")

    def connect(self):
        return psycopg.connect(self._server.url())

    def of(self, statement):
        return statement.replace("?", "%s")


def test_a_server_that_may_forget_is_refused_or_taken_as_it_is(weak):
    """As a log's is; but commits wait for its disk, whatever its sessions do by themselves."""
    world = World(_Database(weak, weak.url()), orders=2)
    for url in (weak.url(), weak.url(connect_timeout="5")):
        world.database.url = url
        with pytest.raises(sharedlog.NotDurable, match="fsync"):
            world.consumer().once()
    found = []
    world.looks = lambda _, effects: found.append(
        effects.connection.execute("SHOW synchronous_commit").fetchone()
    )
    for options in ({}, {"connect_timeout": "5"}):
        world.database.url = weak.url(durability="warn", **options)
        world.order(1)
        drain(world.consumer())
    world.check()
    assert set(found) == {("on",)}


def test_a_pool_that_lends_sessions_by_the_transaction_will_do(weak, caplog):
    """Nothing is kept in a session; none of the pool's is ended, which is others' by now (T1)."""
    pool = PgBouncer(weak, "transaction")
    with ExitStack() as others:
        others.callback(pool.stop)
        world = World(_Database(weak, pool.url(durability="warn")), orders=12, batch=1)
        found = []
        world.looks = lambda _, effects: found.append(
            effects.connection.execute("SHOW synchronous_commit").fetchone()
        )
        assert die(world.consumer(), before=12)
        with driven(world.consumer()) as process:

            def take_the_session(_, name):
                if name == "handlers: run" and len(found) < 15:
                    other = psycopg.connect(pool.url())
                    others.callback(other.close)
                    other.execute("SELECT 1")

            process.before = take_the_session
            process.drain()
        world.check()
        # No statement was taken for one that another session has prepared.
        assert "consumer_waits" not in caplog.text
        assert set(found) == {("on",)}
        with closing(world.connect()) as connection:
            sessions = connection.execute("SELECT DISTINCT session FROM sharedlog_consumer")
            assert sessions.fetchall() == [("",)]


def test_a_table_that_somebody_locks_is_told_and_keeps_nobody(shared_postgres, monkeypatch, caplog):
    """A process that begins meanwhile says what it waits for, and ends when it is told to."""
    monkeypatch.setattr(postgres, "_WAIT", b"SET LOCAL lock_timeout = '20ms'")
    world = World(PostgresDatabase(shared_postgres), orders=2)
    drain(world.consumer())
    world.order(1)
    consumer = world.consumer()
    with closing(world.connect()) as other:
        other.execute("LOCK TABLE sharedlog_consumer IN ACCESS EXCLUSIVE MODE")
        running = threading.Thread(target=consumer.run)
        running.start()
        try:
            until(lambda: "consumer_waits" in caplog.text, "it says so")
        finally:
            consumer.close()
            running.join(20)
        assert not running.is_alive()
    drain(world.consumer())
    world.check()


def test_outputs_are_in_the_commit_by_a_pooler_and_where_the_server_may_forget(weak):
    """A log in the consumer's database is appended to as the log itself takes the server."""
    pool = PgBouncer(weak, "transaction")
    with ExitStack() as ends:
        ends.callback(pool.stop)
        url = weak.url(log=secrets.token_hex(8), durability="warn")
        world = World(_Database(weak, pool.url(durability="warn")), orders=4, url=url)
        ends.callback(world.log.close)
        with driven(world.consumer()) as process:
            process.drain()
            assert "store: append" in process.steps
            assert "log: append" not in process.steps
        world.check()


def test_a_session_that_is_gone_proves_that_its_process_has_ended(shared_postgres):
    """Its attempt counts; that of one whose session is there was interrupted (T1, T5)."""
    world = World(PostgresDatabase(shared_postgres), orders=1)
    with (
        closing(world.consumer()._open_store()) as one,
        closing(world.consumer()._open_store()) as other,
    ):
        one.take("orders/0", 1, gone=Gone.LEFT, anew=False)
        one.note("orders/0", 1, 1)
        found = other.take("orders/0", 2, gone=Gone.TAKEN, anew=False)
        assert (found.attempts, found.interrupted) == (1, 1)
        other.note("orders/0", 2, 2)
        other.close()
        with closing(world.connect()) as connection:
            connection.autocommit = True
            gone = "SELECT count(*) FROM pg_stat_activity WHERE pid || ' ' || backend_start = %s"
            (session,) = connection.execute("SELECT session FROM sharedlog_consumer").fetchone()
            until(lambda: connection.execute(gone, (session,)).fetchone() == (0,), "it is gone")
        with closing(world.consumer()._open_store()) as third:
            found = third.take("orders/0", 3, gone=Gone.TAKEN, anew=False)
    assert (found.attempts, found.interrupted) == (2, 1)
