"""Handlers that end the consumer's transaction, or leave its session changed (DESIGN-LOG §14)."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.orm import Session

from sharedlog.testing import drain, driven
from tests.helpers.log_servers import shared_postgres
from tests.helpers.pages import table_rows
from tests.sharedlog.consumer.world import PostgresDatabase, World

__all__ = ["shared_postgres"]

SCHEMA = (
    "CREATE TABLE one (n INTEGER PRIMARY KEY)",
    "INSERT INTO one VALUES (1)",
    "CREATE TABLE conflicting (n INTEGER UNIQUE ON CONFLICT ROLLBACK)",
    "INSERT INTO conflicting VALUES (1)",
    "CREATE TABLE raising (n INTEGER)",
    "CREATE TRIGGER raises BEFORE INSERT ON raising BEGIN SELECT RAISE(ROLLBACK, 'no'); END",
)
PAGE = "transactions.md"
BILL = "INSERT INTO bill VALUES (9, 'by itself', 9, 'nothing')"


def interrupt(effects):
    """Interrupt a statement that writes, by which SQLite rolls back everything."""
    connection = effects.connection
    connection.create_function("stop", 1, lambda _: connection.interrupt())
    with contextlib.suppress(sqlite3.Error):
        connection.execute("INSERT INTO raising SELECT stop(n) FROM one")


def flush(effects):
    """Have a session of SQLAlchemy's commit, which is a flush here."""
    with Session(effects.sqlalchemy) as session:
        session.execute(sqlalchemy.text("SELECT 1"))
        session.commit()


def by_sql(statement, *, caught=False):
    """Execute a statement, whose failure the handler may catch."""

    def way(effects):
        try:
            effects.connection.execute(statement)
        except Exception:
            if not caught:
                raise

    return way


SQLITE = {
    "`commit()`": lambda effects: effects.connection.commit(),
    "`rollback()`": lambda effects: effects.connection.rollback(),
    "`with connection:`": lambda effects: effects.connection.__enter__(),
    "`executescript`": lambda effects: effects.connection.executescript("SELECT 1"),
    "`COMMIT`": by_sql("COMMIT"),
    "`END`": by_sql("END"),
    "`ROLLBACK`": by_sql("ROLLBACK"),
    "`BEGIN`": by_sql("BEGIN"),
    "a cursor's `COMMIT`": lambda effects: effects.connection.cursor().execute("COMMIT"),
    "a savepoint": by_sql("SAVEPOINT mine"),
    "`INSERT OR ROLLBACK`": by_sql("INSERT OR ROLLBACK INTO one VALUES (1)", caught=True),
    "`ON CONFLICT ROLLBACK`": by_sql("INSERT INTO conflicting VALUES (1)", caught=True),
    "`RAISE(ROLLBACK)`": by_sql("INSERT INTO raising VALUES (1)", caught=True),
    "`connection.interrupt()`": interrupt,
    "`effects.sqlalchemy.commit()`": lambda effects: effects.sqlalchemy.commit(),
    "`Session(effects.sqlalchemy).commit()`": flush,
    "`close()`": lambda effects: effects.connection.close(),
}
POSTGRES = {
    "`commit()`": SQLITE["`commit()`"],
    "`rollback()`": SQLITE["`rollback()`"],
    "`COMMIT`": by_sql("COMMIT"),
    "`END`": by_sql("END"),
    "`ROLLBACK`": by_sql("ROLLBACK"),
    "`PREPARE TRANSACTION`": by_sql("PREPARE TRANSACTION 'mine'"),
    "a cursor's `COMMIT`": SQLITE["a cursor's `COMMIT`"],
    "a savepoint": by_sql("SAVEPOINT mine"),
    "a failing statement": by_sql("SELECT 1/0", caught=True),
    "`RESET ALL`": by_sql("RESET ALL"),
    "`SET TRANSACTION READ ONLY`": by_sql("SET TRANSACTION READ ONLY"),
    "`effects.sqlalchemy.commit()`": SQLITE["`effects.sqlalchemy.commit()`"],
    "`Session(effects.sqlalchemy).commit()`": flush,
    "`autocommit = True`": lambda effects: setattr(effects.connection, "autocommit", True),
    "`close()`": lambda effects: effects.connection.close(),
}


def becomes(world, ways):
    """Return what the docs say of each way, of which each handles one message among others."""
    failed = set()

    def looks(order, effects):
        if (way := ways.get(order["customer"])) is not None:
            try:
                way(effects)
            except Exception:  # noqa: BLE001 - whatever it is refused by
                failed.add(order["customer"])

    world.looks = looks
    for name in ways:
        for customer in ("before", name, "after"):
            order = json.dumps({"customer": customer, "what": f"{customer} {name}"})
            world.log.publish("orders", order, key="all")
    drain(world.consumer())
    bills = world.bills()
    assert world.invoices() == bills
    for customer in ("before", "after"):
        expected = [(at, f"{customer} {name}") for at, name in enumerate(ways, 1)]
        assert bills[customer] == expected
    found = {}
    for name in ways:
        done = name in bills
        found[name] = ("refused" if name in failed else "goes on") if done else "fails"
    return found


def test_what_handlers_end_is_what_the_docs_say(tmp_path, shared_postgres):
    """Their neighbours' effects are there once, whatever they do (T1, T2)."""
    places = {
        "SQLite": (tmp_path, SQLITE),
        "PostgreSQL": (PostgresDatabase(shared_postgres), POSTGRES),
    }
    said = {}
    for place, (where, ways) in places.items():
        world = World(where, orders=0, substreams=1, attempts=1, dead_letters="dead")
        world.log.stream("dead", substreams=1)
        if place == "SQLite":
            with closing(world.database.connect()) as connection, connection:
                for each in SCHEMA:
                    connection.execute(each)
        said[place] = becomes(world, ways)
    rows = ["| | SQLite | PostgreSQL |"] + [
        f"| {name} | {said['SQLite'].get(name, '')} | {said['PostgreSQL'].get(name, '')} |".replace(
            "  ", " "
        )
        for name in dict.fromkeys((*SQLITE, *POSTGRES))
    ]
    page = table_rows(PAGE)
    assert [row for row in rows if row not in page] == [], "\n".join(rows)


def of(world, customer, does):
    """Have something done for the orders of a customer, and never what undoes the others'."""

    def looks(order, effects):
        if order["customer"] == customer:
            does(effects.connection)

    world.looks = looks


def bad_among_good(place):
    """A world in which a transaction has orders of which those of c1 are not to be billed."""
    world = World(place, orders=6, substreams=1, attempts=2, dead_letters="dead")
    world.log.stream("dead", substreams=1)
    return world


def check_only_c1_is_dead(world):
    """Whatever its handler does: the others' effects are there once, and so are their outputs."""
    world.refused = {"c1"}
    world.check()
    dead = world.log.read("dead", 0)
    assert len(dead) == 2
    return dead[0].headers["dead-letter-error"].decode()


@pytest.mark.parametrize("then", ["a savepoint", "a write", "a kept write", "what it would do"])
@pytest.mark.parametrize(
    "statement",
    [
        "INSERT OR ROLLBACK INTO one VALUES (1)",
        "INSERT INTO conflicting VALUES (1)",
        "INSERT INTO raising VALUES (1)",
    ],
)
def test_a_handler_that_sqlite_rolls_back_undoes_no_other(tmp_path, statement, then):
    """It caught that and went on: its neighbours are tried without it, and it fails (T1, T2)."""
    world = bad_among_good(tmp_path)
    with closing(world.database.connect()) as connection, connection:
        for each in SCHEMA:
            connection.execute(each)

    def does(connection):
        if then == "a kept write":
            # sqlite3 keeps it prepared: SQLite does not ask about it again.
            connection.execute(BILL)
        with contextlib.suppress(sqlite3.IntegrityError):
            connection.execute(statement)
        if then == "a savepoint":
            connection.execute("SAVEPOINT mine")
        elif then.endswith("write"):
            connection.cursor().execute(BILL)

    of(world, "c1", does)
    drain(world.consumer())
    assert check_only_c1_is_dead(world).startswith("InvalidRequest: SQLite has rolled")


def test_a_deferred_constraint_over_sqlite_fails_its_own_message(tmp_path):
    """SQLite tells at the commit of all: it is rolled back, and each is tried alone (T5)."""
    world = bad_among_good(tmp_path)
    with closing(world.database.connect()) as connection, connection:
        connection.execute("CREATE TABLE parent (id INTEGER PRIMARY KEY)")
        connection.execute(
            "CREATE TABLE child (id REFERENCES parent DEFERRABLE INITIALLY DEFERRED)"
        )

    of(world, "c1", lambda connection: connection.execute("INSERT INTO child VALUES (7)"))
    opened = sqlite3.connect

    def enforcing(*given, **named):
        connection = opened(*given, **named)
        sqlite3.Connection.execute(connection, "PRAGMA foreign_keys = ON")
        return connection

    with pytest.MonkeyPatch.context() as patched:
        # No handler can: it has no effect within a transaction.
        patched.setattr(sqlite3, "connect", enforcing)
        drain(world.consumer())
    assert "FOREIGN KEY" in check_only_c1_is_dead(world)


def test_a_handler_does_not_end_the_transaction_by_a_cursor(tmp_path):
    """Nor by its script: ``InvalidRequest`` (T2)."""
    for number, end in enumerate(
        (
            lambda cursor: cursor.execute("COMMIT"),
            lambda cursor: cursor.executescript("SELECT 1"),
        )
    ):
        world = bad_among_good(tmp_path / str(number))
        of(world, "c1", lambda connection, end=end: end(connection.cursor()))
        drain(world.consumer())
        assert check_only_c1_is_dead(world).startswith("InvalidRequest")


def raw(connection, statement):
    """Execute by a cursor of psycopg's own, which refuses nothing."""
    psycopg.Cursor(connection).execute(statement)


@pytest.mark.parametrize("statement", ["RESET ALL", "ROLLBACK; BEGIN"])
def test_another_transaction_is_not_committed_in_place_of_ours(shared_postgres, statement):
    """The mark is not there: it is rolled back, and fails (T1, T2)."""
    world = bad_among_good(PostgresDatabase(shared_postgres))
    of(world, "c1", lambda connection: raw(connection, statement))
    drain(world.consumer())
    assert "ended the transaction itself, or wiped its mark" in check_only_c1_is_dead(world)


@pytest.mark.parametrize(
    "statement",
    [
        "SET search_path = pg_temp, public",
        "SET ROLE pg_monitor",
        "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY",
        "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE",
        "SET synchronous_commit = off",
        "SET statement_timeout = 1",
    ],
)
def test_what_a_handler_leaves_set_is_put_back(shared_postgres, statement):
    """Before the checkpoint is moved, and for the transactions that follow (T1)."""
    world = World(PostgresDatabase(shared_postgres), orders=3, substreams=1)
    takes, name = world.take, statement.removeprefix("SET ").split()[0].split("=")[0]
    shown = "default_transaction_read_only" if name == "SESSION" else name
    seen = []

    def leaves(execute, order, effects):
        (found,) = execute(f"SHOW {shown}").fetchone()
        takes(execute, order, effects)
        execute(statement)
        seen.append(found)

    world.take = leaves
    with driven(world.consumer()) as process:
        process.drain()
        before = len(seen)
        world.order(1)
        process.drain()
    world.check()
    # In the transaction after those.
    assert seen[before] == seen[0]


def test_a_transaction_that_was_left_read_only_fails(shared_postgres):
    """It is the handler's error, and no other's (T2, T5)."""
    world = bad_among_good(PostgresDatabase(shared_postgres))
    billing = world.bill

    def bills(order, effects):
        billing(order, effects)
        if order["customer"] == "c1":
            effects.connection.execute("SET TRANSACTION READ ONLY")

    world.bill = bills
    drain(world.consumer())
    assert "ReadOnlySqlTransaction" in check_only_c1_is_dead(world)


def test_a_deferred_constraint_over_postgresql_fails_its_own_message(shared_postgres):
    """It is checked before the checkpoint is moved (T5)."""
    world = bad_among_good(PostgresDatabase(shared_postgres))
    with closing(world.database.connect()) as connection, connection:
        connection.execute("CREATE TABLE parent (id INTEGER PRIMARY KEY)")
        connection.execute(
            "CREATE TABLE child (id INTEGER REFERENCES parent DEFERRABLE INITIALLY DEFERRED)"
        )
    of(world, "c1", lambda connection: connection.execute("INSERT INTO child VALUES (7)"))
    drain(world.consumer())
    assert "ForeignKeyViolation" in check_only_c1_is_dead(world)


def test_a_statement_that_has_rows_left_does_not_keep_the_transaction_open(tmp_path: Path) -> None:
    """SQLite commits behind none: a cursor ends with its handler (T5)."""
    world = World(tmp_path, orders=3, attempts=2, dead_letters="dead")
    world.log.stream("dead", substreams=1)
    kept = []
    with closing(world.database.connect()) as connection, connection:
        connection.execute("CREATE TABLE note (what TEXT)")

    def leave_rows(order, effects):
        rows = "INSERT INTO note (what) VALUES ('a'), ('b') RETURNING what"
        kept.append(effects.connection.execute(rows))
        assert kept[-1].fetchone() == ("a",)

    world.looks = leave_rows
    drain(world.consumer())
    world.check()
    assert not world.log.read("dead", 0)
    with pytest.raises(sqlite3.ProgrammingError):
        kept[0].fetchone()


@pytest.mark.parametrize("setting", ["query_only = 1", "journal_mode = MEMORY", "synchronous = 0"])
def test_settings_that_decide_about_commits_are_the_consumers(tmp_path: Path, setting: str) -> None:
    """A handler that sets one has failed, and its neighbours have not (T5)."""
    world = World(tmp_path, orders=3, attempts=1, dead_letters="dead")
    world.log.stream("dead", substreams=1)

    def sets(order, effects):
        if order["what"] == "order 2":
            effects.connection.execute(f"PRAGMA {setting}")

    world.looks = sets
    drain(world.consumer())
    assert len(world.log.read("dead", 0)) == 1
    assert sum(len(each) for each in world.bills().values()) == world.published - 1
