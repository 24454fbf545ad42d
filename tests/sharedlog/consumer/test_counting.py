"""Errors that count as attempts, and those that do not, by real stores (DESIGN-LOG §14, T5)."""

import contextlib
import os
import sqlite3
from contextlib import closing

import psycopg
import pytest
import sqlalchemy
from prometheus_client import CollectorRegistry

from sharedlog._core.consumer.operating import told_of
from sharedlog._core.errors import StoreAway
from sharedlog.metrics import PrometheusConsumerObserver
from sharedlog.testing import drain, driven
from tests.helpers.log_servers import shared_postgres
from tests.sharedlog.consumer.world import PostgresDatabase, World

__all__ = ["shared_postgres"]

# More of these than a message has attempts.
TIMES = 4


@pytest.fixture(params=["sqlite", "postgres"])
def store(request):
    return request.param


@pytest.fixture
def new_world(request, tmp_path):
    """Make a world whose messages have two attempts each; ``options``: of PostgreSQL's."""

    def make(store, orders=2, options="", **settings):
        place = tmp_path
        if store == "postgres":
            place = PostgresDatabase(request.getfixturevalue("shared_postgres"))
        settings = {"substreams": 1, "attempts": 2, "dead_letters": "dead", **settings}
        world = World(place, orders=orders, **settings)
        world.database.url += options
        world.log.stream("dead", substreams=1)
        return world

    return make


def passes(world, effects):
    """Have the store raise what passes, by the transaction's own connection."""
    if isinstance(world.database, PostgresDatabase):
        effects.connection.execute("DO $$ BEGIN RAISE SQLSTATE '40P01'; END $$")
    else:
        (pages,) = effects.connection.execute("PRAGMA page_count").fetchone()
        effects.connection.execute(f"PRAGMA max_page_count = {pages}")
        try:
            effects.connection.execute("INSERT INTO bill (what) VALUES (zeroblob(100000))")
        finally:
            effects.connection.execute("PRAGMA max_page_count = 1000000")


def caused(run):
    try:
        run()
    except Exception as error:
        raise ValueError("it did not work") from error


def handled(run):
    try:
        run()
    except Exception:  # noqa: BLE001 - as handlers do
        raise ValueError("it did not work")  # noqa: B904


def grouped(run):
    try:
        run()
    except Exception as error:  # noqa: BLE001 - as handlers do
        raise ExceptionGroup("some", [ExceptionGroup("of them", [error]), KeyError()]) from None


def hidden(run):
    with contextlib.suppress(Exception):
        run()


def hidden_twice(run):
    """What comes after it fails for another reason, as it seems."""
    hidden(run)
    run()


WRAPPERS = [caused, handled, grouped, hidden, hidden_twice]


@pytest.mark.parametrize("wraps", WRAPPERS)
def test_what_passes_is_seen_through_what_wraps_it(new_world, store, wraps):
    """It is tried again, and no healthy message becomes a dead letter."""
    world = new_world(store)
    failures = []

    def looks(order, effects):
        if len(failures) < TIMES:
            failures.append(order)
            wraps(lambda: passes(world, effects))

    world.looks = looks
    drain(world.consumer())
    world.check()
    assert not world.log.read("dead", 0)
    assert len(failures) == TIMES


def test_what_is_tried_again_for_more_than_a_minute_is_told(new_world, store, caplog):
    """By status, metric and event, with its error; until it goes on (DESIGN §9)."""
    registry = CollectorRegistry()
    world = new_world(store)
    failures, seen = [], []

    def told():
        value = registry.get_sample_value(
            "sharedlog_consumer_retrying_seconds", {"consumer": "billing", "stream": "orders"}
        )
        return value, world.log._run(told_of("billing")).get("orders/0")

    def looks(order, effects):
        seen.append(told())
        if len(failures) < TIMES:
            failures.append(order)
            passes(world, effects)

    world.looks = looks
    drain(world.consumer(observer=PrometheusConsumerObserver(registry)))
    assert seen[1] == (None, None)
    seconds, row = seen[TIMES]
    # Of a test each round is 1,000 s later.
    assert seconds >= 1000
    assert "DeadlockDetected" in row.error or "full" in row.error
    assert row.attempts == 1
    assert row.failing_since_us
    assert "event='consumer_retries'" in caplog.text
    value, row = told()
    assert (value, row.error, row.failing_since_us) == (0.0, "", 0)


def test_an_error_that_hides_its_cause_is_the_handlers_own(new_world, store):
    """``raise ... from None`` says so."""
    world = new_world(store)

    def looks(order, effects):
        if order["what"] == "order 1":
            try:
                passes(world, effects)
            except Exception:  # noqa: BLE001 - as handlers do
                raise ValueError("mine") from None

    world.looks = looks
    drain(world.consumer())
    (dead,) = world.log.read("dead", 0)
    assert dead.headers["dead-letter-error"] == b"ValueError: mine"
    assert dead.headers["dead-letter-attempts"] == b"2"


def of_another_file(world, tmp_path):
    """A file that another process has locked."""
    file = tmp_path / "other.db"
    holder = sqlite3.connect(file)
    holder.execute("BEGIN EXCLUSIVE")

    def locked(effects):
        with closing(sqlite3.connect(file, timeout=0)) as other:
            other.execute("CREATE TABLE t (a)")

    return holder, locked


def of_another_database(world, tmp_path):
    """A lock that another session has, waited for by a connection of the handler's own."""
    holder = world.connect()
    holder.execute("CREATE TABLE other (a INTEGER)")
    holder.commit()
    holder.execute("LOCK TABLE other")

    def locked(effects):
        with closing(world.connect()) as other:
            other.execute("SET lock_timeout = 1")
            other.execute("SELECT * FROM other")

    return holder, locked


@pytest.mark.parametrize("wraps", [caused, grouped, lambda run: run()])
def test_errors_of_another_database_count(new_world, store, tmp_path, wraps):
    """Of its locks, too: they were tried again for ever, and held all behind them up."""
    world = new_world(store)
    lock = of_another_database if store == "postgres" else of_another_file
    holder, locked = lock(world, tmp_path)
    failures = []

    def looks(order, effects):
        if order["what"] == "order 1":
            failures.append(order)
            assert len(failures) < 10, "tried for ever"
            wraps(lambda: locked(effects))

    world.looks = looks
    with closing(holder):
        drain(world.consumer())
    (dead,) = world.log.read("dead", 0)
    assert dead.headers["dead-letter-attempts"] == b"2"
    # Once with others, then alone.
    assert len(failures) == 3


@pytest.mark.parametrize(
    ("statement", "error"),
    [
        ("INSERT INTO wide VALUES (%(wide)s)", b"ProgramLimitExceeded"),
        ("SELECT 1" + "+1" * 50_000, b"StatementTooComplex"),
        ("SELECT pg_sleep(5)", b"QueryCanceled"),
        ("DO $$ BEGIN RAISE SQLSTATE 'XX000'; END $$", b"InternalError_"),
        ("DO $$ BEGIN RAISE 'mine'; END $$", b"RaiseException"),
    ],
)
def test_errors_of_a_statement_count(new_world, statement, error):
    """Those that say little count as the database works right after."""
    # Others are to end by their own errors, however slow the machine is.
    sleeps = "pg_sleep" in statement
    world = new_world("postgres", options="%20-cstatement_timeout%3D400" if sleeps else "")
    with closing(world.connect()) as connection, connection:
        connection.execute("CREATE TABLE wide (what BYTEA UNIQUE)")
    failures = []

    def looks(order, effects):
        if order["what"] == "order 1":
            failures.append(order)
            assert len(failures) < 10, "tried for ever"
            given = {"wide": os.urandom(9000)} if "wide" in statement else None
            effects.connection.execute(statement, given)

    world.looks = looks
    drain(world.consumer())
    (dead,) = world.log.read("dead", 0)
    assert dead.headers["dead-letter-error"].startswith(error)
    assert dead.headers["dead-letter-attempts"] == b"2"
    assert len(failures) == 3


def by_alchemy(effects, statement):
    effects.sqlalchemy.execute(sqlalchemy.text(statement))


def by_driver(effects, statement):
    effects.connection.execute(statement)


@pytest.mark.parametrize("execute", [by_alchemy, by_driver])
def test_a_table_that_an_administrator_holds_is_waited_for(new_world, execute):
    """Longer than a statement may take: the wait ends before, and says why."""
    world = new_world("postgres", options="%20-cstatement_timeout%3D100")
    errors = []
    with closing(world.connect()) as holder:
        holder.execute("LOCK TABLE bill")

        def looks(order, effects):
            if len(errors) == TIMES:
                holder.rollback()
            try:
                execute(effects, "SELECT count(*) FROM bill")
            except Exception as error:
                errors.append(getattr(error, "orig", error))
                raise

        world.looks = looks
        drain(world.consumer())
    world.check()
    assert not world.log.read("dead", 0)
    assert {each.sqlstate for each in errors} == {"55P03"}
    assert len(errors) == TIMES


def test_a_lock_timeout_that_is_lower_stays(new_world):
    """And there is none of ours where statements have all the time they want."""
    found = []
    for options in ("statement_timeout%3D60000%20-clock_timeout%3D7000", "statement_timeout%3D0"):
        world = new_world("postgres", options=f"%20-c{options}")

        def looks(_, effects):
            found.append(effects.connection.execute("SHOW lock_timeout").fetchone()[0])

        world.looks = looks
        drain(world.consumer())
    assert set(found) == {"7s", "0"}


def test_a_statement_that_was_cancelled_does_not_count_while_the_store_does_not_commit(new_world):
    """Nobody knows why it was: a transaction of the checkpoint alone tells."""
    world = new_world("postgres", options="%20-cstatement_timeout%3D100")
    failures = []
    with Held() as held, driven(world.consumer()) as process:

        def looks(order, effects):
            if len(failures) < TIMES:
                failures.append(order)
                # Behind the note, until it was asked again.
                held.begin(world)
                effects.connection.execute("SELECT pg_sleep(5)")

        def waits(_, name):
            if name == "store: take":
                held.end()

        world.looks = looks
        process.before = waits
        process.drain()
    world.check()
    assert not world.log.read("dead", 0)
    assert len(failures) == TIMES


class Held:
    """Holds the consumers' table, from time to time, so that no checkpoint is written."""

    def __init__(self):
        self._holder = None

    def begin(self, world):
        self._holder = world.connect()
        self._holder.execute("LOCK TABLE sharedlog_consumer IN SHARE MODE")

    def end(self):
        holder, self._holder = self._holder, None
        if holder is not None:
            holder.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()


def raced(world, effects):
    """Have another session change a row that this transaction has seen."""
    effects.connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    effects.connection.execute("SELECT * FROM raced")
    with closing(world.connect()) as other, other:
        other.execute("UPDATE raced SET a = a + 1")
    effects.connection.execute("UPDATE raced SET a = a + 1")


def crossed(world, effects):
    """Have another session wait for a row of this transaction, and wait for one of its."""
    effects.connection.execute("UPDATE crossed SET a = a + 1 WHERE id = 1")
    with closing(world.connect()) as other:
        other.execute("SET deadlock_timeout = '10s'")
        other.execute("UPDATE crossed SET a = a + 1 WHERE id = 2")
        other.pgconn.send_query(b"UPDATE crossed SET a = a + 1 WHERE id = 1")
        try:
            effects.connection.execute("SET LOCAL deadlock_timeout = '50ms'")
            effects.connection.execute("UPDATE crossed SET a = a + 1 WHERE id = 2")
        finally:
            # Closed while it waits, it would keep its row until this transaction ends, and longer.
            other.cancel_safe()
            while other.pgconn.get_result() is not None:
                pass
            other.rollback()


@pytest.mark.parametrize(("meets", "kind"), [(raced, "40001"), (crossed, "40P01")])
@pytest.mark.parametrize("wraps", [caused, hidden])
def test_other_transactions_in_the_way_do_not_count(new_world, meets, kind, wraps):
    """A serialization failure, and a deadlock."""
    world = new_world("postgres", orders=1)
    with closing(world.connect()) as connection, connection:
        connection.execute("CREATE TABLE raced AS SELECT 1 AS a")
        connection.execute(
            "CREATE TABLE crossed AS SELECT 0 AS a, n AS id FROM generate_series(1, 2) n"
        )
    failures = []

    def looks(order, effects):
        def run():
            try:
                meets(world, effects)
            except psycopg.Error as error:
                failures.append(error.sqlstate)
                raise

        if len(failures) < TIMES:
            wraps(run)

    world.looks = looks
    drain(world.consumer())
    world.check()
    assert not world.log.read("dead", 0)
    assert failures == [kind] * TIMES


def test_a_commit_of_unknown_fate_is_no_attempt(new_world):
    """The store did not answer: nothing is known of the handler (T5)."""
    world = new_world("sqlite", orders=1)
    failures, lost = [], []

    def once(order, _):
        if not failures:
            failures.append(order)
            raise ValueError("from here on it is alone, and counted")

    def lose(_, name):
        if name == "store: commit" and len(lost) < TIMES:
            lost.append(name)
            raise StoreAway("a test has lost it")

    world.looks = once
    with driven(world.consumer()) as process:
        process.before = lose
        process.drain()
    world.check()
    assert not world.log.read("dead", 0)
