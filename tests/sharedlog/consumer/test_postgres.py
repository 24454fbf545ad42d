"""A consumer whose database is PostgreSQL (DESIGN-LOG §14, T1, T2, T5)."""

import json
import os
import secrets
from contextlib import closing

import psycopg
import psycopg.sql
import pytest

import sharedlog
from sharedlog.testing import die, drain, driven, lose
from tests.sharedlog.consumer.each_step import (
    meets_a_fault_at_each_step,
    meets_a_zombie_at_each_step,
)
from tests.sharedlog.consumer.test_zombies import lapsed
from tests.sharedlog.consumer.world import PostgresDatabase, World


@pytest.fixture
def new_world(shared_postgres):
    """Make worlds, each with a schema of its own."""

    def make(**settings):
        return World(PostgresDatabase(shared_postgres), **settings)

    return make


@pytest.mark.long
@pytest.mark.parametrize("fault", [die, lose])
def test_effects_are_those_of_one_run_wherever_a_process_dies(new_world, fault):
    """Killed before each step, or with the answer to it lost (T1, T2, T3)."""
    meets_a_fault_at_each_step(lambda: new_world(orders=2, substreams=1), fault)


def test_a_zombie_at_each_step_changes_nothing(new_world):
    """Its session is ended where it holds locks: in the middle of its transaction, too (T1)."""
    meets_a_zombie_at_each_step(lambda: new_world(orders=2, substreams=1), lapsed)


def test_a_session_that_the_server_ends_is_begun_anew(new_world):
    """In the middle of a handler: nothing of it is there, and it does not count (T5)."""
    world = new_world(orders=3, attempts=1, dead_letters="dead")
    world.log.stream("dead", substreams=1)
    ends = [1]

    def end(_, effects):
        if ends:
            ends.pop()
            pid = effects.connection.info.backend_pid
            with closing(world.connect()) as other:
                other.execute("SELECT pg_terminate_backend(%s)", (pid,))
                other.commit()

    world.looks = end
    drain(world.consumer())
    world.check()
    assert not world.log.read("dead", 0)


def test_a_constraint_that_is_judged_at_commit_is_the_handlers_error(new_world):
    """Nothing is there of a transaction that could not commit (T2, T5)."""
    world = new_world(orders=3, attempts=2, dead_letters="dead")
    world.log.stream("dead", substreams=1)
    with closing(world.connect()) as connection, connection:
        connection.execute(
            "CREATE TABLE known (customer TEXT PRIMARY KEY);"
            "INSERT INTO known VALUES ('c0'), ('c2');"
            "ALTER TABLE bill ADD CONSTRAINT known FOREIGN KEY (customer) "
            "REFERENCES known DEFERRABLE INITIALLY DEFERRED"
        )
    drain(world.consumer())
    world.refused = {"c1"}
    world.check()
    (dead,) = world.log.read("dead", 0)
    assert dead.headers["dead-letter-error"].startswith(b"ForeignKeyViolation")


ENDS = [
    "COMMIT",
    "end -- it",
    "SELECT 'it''s'; /* so */ Commit",
    "abort",
    psycopg.sql.SQL("PREPARE TRANSACTION {}").format(psycopg.sql.Literal("x")),
]


def test_what_does_not_end_a_transaction_is_the_handlers(new_world):
    """Savepoints, and words that are no statements (T2)."""
    world = new_world(orders=2)

    def looks(_, effects):
        execute = effects.connection.execute
        for statement in [
            "SAVEPOINT a",
            "ROLLBACK TO a",
            "ROLLBACK WORK TO SAVEPOINT a; RELEASE a",
            "SELECT '; COMMIT', $$; COMMIT $$, 1 AS \"; end\" -- ; abort",
            "DO $x$ BEGIN PERFORM 1; END $x$",
            b"SELECT CASE WHEN true THEN 1 END",
        ]:
            execute(statement)
        with effects.connection.transaction():
            effects.connection.cursor().executemany("SELECT %s", [(1,), (2,)])

    world.looks = looks
    drain(world.consumer())
    world.check()


@pytest.mark.parametrize("does", ["commit", "rollback", "ROLLBACK", "swallow", *ENDS])
def test_a_handler_that_ends_or_breaks_the_transaction_has_an_error(new_world, does):
    """What it did is not taken for done (T2)."""
    world = new_world(orders=1, attempts=1, dead_letters="dead")
    world.log.stream("dead", substreams=1)

    def end(_, effects):
        effects.connection.execute("INSERT INTO bill VALUES (0, 'c0', 1, 'too early')")
        if does == "ROLLBACK" or does in ENDS:
            effects.connection.execute(does)
        elif does != "swallow":
            getattr(effects.connection, does)()
        else:
            with pytest.raises(psycopg.Error):
                effects.connection.execute("SELECT nothing FROM nowhere")

    world.looks = end
    world.take = lambda *_: None
    drain(world.consumer())
    assert world.bills() == {}
    assert len(world.log.read("dead", 0)) == 1


def test_a_database_that_is_away_is_told(shared_postgres):
    """It is told where a process begins, and nothing is done."""
    world = World(PostgresDatabase(shared_postgres), orders=1)
    url = world.database.url
    world.database.url = "postgresql://127.0.0.1:1/nowhere"
    with pytest.raises(sharedlog.StoreAway):
        world.consumer().once()
    world.database.url = url
    assert world.consumer().once() == 1


@pytest.mark.parametrize("goes_on", [True, False])
def test_a_handler_that_closes_its_session_has_failed(new_world, goes_on):
    """It counts: it is not taken for a database that went away (T5)."""
    world = new_world(orders=3, attempts=2, dead_letters="dead")
    world.log.stream("dead", substreams=1)
    world.refused = {"c1"} if goes_on else set()

    def close(order, effects):
        if order["customer"] == "c1":
            effects.connection.close()
            if goes_on:
                effects.connection.execute("SELECT 1")

    world.looks = close
    world.take = lambda execute, order, effects: (
        order["customer"] != "c1" and World.take(world, execute, order, effects)
    )
    drain(world.consumer())
    world.refused = {"c1"}
    world.check()
    assert len(world.log.read("dead", 0)) == 1


def test_a_handler_that_closes_its_session_behind_others_is_given_up(new_world):
    """What is noted next finds no session, and the failure is not forgotten with it (T5)."""
    world = new_world(orders=0, attempts=2, dead_letters="dead", substreams=1)
    world.log.stream("dead", substreams=1)
    for what in ("first", "closes", "last"):
        world.log.publish("orders", json.dumps({"customer": "c0", "what": what}), key="c0")
    tries = []

    def close(order, effects):
        tries.append(order["what"])
        assert len(tries) < 20
        if order["what"] == "closes":
            effects.connection.close()

    world.looks = close
    world.take = lambda execute, order, effects: (
        order["what"] != "closes" and World.take(world, execute, order, effects)
    )
    drain(world.consumer())
    assert [what for _, what in world.bills()["c0"]] == ["first", "last"]
    assert len(world.log.read("dead", 0)) == 1


@pytest.mark.parametrize("raises", [False, True])
def test_a_savepoint_that_a_handler_leaves_open_is_its_error(new_world, raises):
    """Psycopg commits nothing over it: that is no fault of the database's (T5)."""
    world = new_world(orders=0, attempts=2, dead_letters="dead", substreams=1)
    world.log.stream("dead", substreams=1)
    for what in ("first", "leaves", "last"):
        world.log.publish("orders", json.dumps({"customer": "c0", "what": what}), key="c0")
    left = []

    def leave(order, effects):
        if order["what"] == "leaves":
            assert len(left) < 20, "tried for ever"
            left.append(effects.connection.transaction())
            left[-1].__enter__()
            if raises:
                raise ValueError("and it raises")

    world.looks = leave
    drain(world.consumer())
    assert [what for _, what in world.bills()["c0"]] == ["first", "last"]
    assert [what for _, what in world.invoices()["c0"]] == ["first", "last"]
    (dead,) = world.log.read("dead", 0)
    said = b"ValueError" if raises else b"the handler has left a savepoint"
    assert dead.headers["dead-letter-error"].startswith(said)
    assert dead.headers["dead-letter-attempts"] == b"2"


def test_a_role_that_may_not_make_the_tables_is_told(new_world, shared_postgres):
    """By an error of ours, when the consumer begins."""
    world = new_world(orders=1)
    role = f"clerk_{secrets.token_hex(4)}"
    with shared_postgres.connect(autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role}")
    try:
        world.database.url += f"%20-crole%3D{role}"
        with pytest.raises(sharedlog.StoreAway, match="the store: InvalidSchemaName"):
            world.consumer().once()
    finally:
        with shared_postgres.connect(autocommit=True) as connection:
            connection.execute(f"DROP ROLE {role}")


def test_what_a_handler_kept_is_of_no_use_once_no_transaction_runs(new_world):
    """It would be committed by itself, as often as the handler ran (T1)."""
    world = new_world(orders=2, substreams=1)
    kept = []
    world.looks = lambda order, effects: kept.append(effects.connection)
    with driven(world.consumer()) as process:
        process.drain()
        with pytest.raises(sharedlog.InvalidRequest, match="the handler has ended"):
            kept[0].execute("INSERT INTO bill VALUES (9, 'late', 9, 'nothing')")
    world.check()


# It forks a process that may have anything: alone, as few others run beside it.
@pytest.mark.long
@pytest.mark.parametrize("writes", [False, True])
def test_a_child_that_a_handler_forks_leaves_the_session_to_its_parent(new_world, writes):
    """It is refused, also with the connection that it has kept, and nothing of it is there (T1)."""
    world = new_world(orders=6, substreams=1)
    parent, codes = os.getpid(), []

    def fork(order, effects):
        if order["what"] != "order 2":
            return
        connection = effects.connection
        child = os.fork()
        if os.getpid() == parent:
            codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        elif writes:
            connection.execute("INSERT INTO bill VALUES (0, 'child', 0, 'nothing')")

    world.looks = fork
    # Nothing of pytest's goes on in the child.
    code = 1
    try:
        drain(world.consumer())
    except sharedlog.LogStopped:
        code = 42
    finally:
        if os.getpid() != parent:
            os._exit(code)
    # Once: the parent's transaction was committed at the first attempt.
    assert codes == [42]
    world.check()
