"""A log in the PostgreSQL database of the consumer: outputs are in the commit of the effects."""

import json
import secrets
import threading
from contextlib import closing

import pytest

from sharedlog import LogForked
from sharedlog._consumer import postgres
from sharedlog.testing import die, drain, driven, lose
from tests.helpers.log_servers import shared_postgres
from tests.helpers.waiting import until
from tests.sharedlog.consumer.each_step import (
    meets_a_fault_at_each_step,
    meets_a_zombie_at_each_step,
)
from tests.sharedlog.consumer.test_zombies import lapsed
from tests.sharedlog.consumer.world import PostgresDatabase, World

__all__ = ["shared_postgres"]


@pytest.fixture
def new_world(shared_postgres):
    """Makes worlds whose log is in the database of the bills."""
    made = []

    def make(**settings):
        url = shared_postgres.url(log=secrets.token_hex(8))
        made.append(World(PostgresDatabase(shared_postgres), url=url, **settings))
        return made[-1]

    yield make
    for each in made:
        each.log.close()


@pytest.mark.parametrize("fault", [die, lose])
def test_effects_are_those_of_one_run_wherever_a_process_dies(new_world, fault):
    """Killed before each step, or with the answer lost (DESIGN-LOG §14, T1, T2)."""
    meets_a_fault_at_each_step(lambda: new_world(orders=2, substreams=1, copies=1), fault)


def test_a_zombie_at_each_step_changes_nothing(new_world):
    """Stopped before each step, and taken over from, it goes on where it was (T1, L4)."""
    meets_a_zombie_at_each_step(lambda: new_world(orders=2, substreams=1), lapsed)


def test_outputs_are_read_once_the_effects_are_committed_and_not_before(new_world):
    """One commit has both: nothing is owed, nothing is written twice (T2, T3)."""
    world = new_world(orders=4)
    seen = []

    def look(_, name):
        if name.startswith(("store", "handlers: run", "log: append")):
            assert world.invoices() == world.bills()
            seen.append(name)

    with driven(world.consumer()) as process:
        process.before = process.after = look
        process.drain()
    world.check()
    assert "store: append" in seen
    assert "log: append" not in seen
    with closing(world.connect()) as connection:
        intents = connection.execute("SELECT DISTINCT intent FROM sharedlog_consumer").fetchall()
    assert intents == [(b"",)]


def test_a_fence_that_is_raised_in_the_log_meanwhile_undoes_effects_and_outputs(
    new_world, monkeypatch
):
    """The append is judged under the log's lock, behind what it has read (L4, T1)."""
    world = new_world(orders=3, substreams=1)
    commit_with = postgres.commit_with
    overtaken = []

    def commit(*given):
        if not overtaken:
            overtaken.append(given)
            lapsed(world)
            with driven(world.consumer()) as other:
                # It has the lease, and has not come to the store yet.
                other.before = lambda _, name: other.die() if name == "store: take" else None
                other.drain()
        return commit_with(*given)

    monkeypatch.setattr(postgres, "commit_with", commit)
    with driven(world.consumer()) as zombie:
        assert not zombie.round()
        assert overtaken
        assert not world.bills()
        assert not world.invoices()
        assert not zombie.shards
    lapsed(world)
    drain(world.consumer())
    world.check()


def test_a_store_that_is_fenced_off_appends_nothing(new_world):
    """The checkpoint is judged before the append, in the same transaction (T1)."""
    world = new_world(orders=3, substreams=1)
    with driven(world.consumer()) as zombie:

        def overtaken(_, name):
            if name == "store: commit":
                with closing(world.connect()) as connection, connection:
                    connection.execute("UPDATE sharedlog_consumer SET fence = fence + 1")

        zombie.before = overtaken
        # No process of this log's has given that number.
        with pytest.raises(LogForked):
            zombie.round()
    assert not world.bills()
    assert not world.invoices()


def test_others_append_while_a_handler_runs_and_while_one_waits(new_world):
    """The log's row is locked by the message that commits, and not before."""
    world = new_world(orders=1, substreams=1)
    beside = []

    def look(_, __):
        beside.append(world.log.publish("copies", json.dumps({"beside": 1})))

    world.looks = look
    with driven(world.consumer()) as process:
        process.before = lambda _, name: look(None, None) if name == "store: commit" else None
        process.drain()
    world.check()
    assert len(beside) > 1


def test_what_is_more_than_one_append_travels_before(new_world):
    """It is committed by its marker, as it is where the log is elsewhere (T2)."""
    world = new_world(orders=1, substreams=1)
    big = "x" * 300_000

    def publish(_, effects):
        for number in range(6):
            effects.publish("copies", f"{number} {big}", key="one")

    world.looks = publish
    with driven(world.consumer()) as process:
        process.drain()
        assert "log: append" in process.steps
    world.check()
    found = [each.text for at in range(2) for each in world.log.read("copies", at, limit=100)]
    assert found == [f"{number} {big}" for number in range(6)]
    world.looks = lambda order, effects: None
    world.order(2)
    drain(world.consumer())
    world.check()


def test_a_deferred_constraint_is_the_handlers_error_and_locks_nobody_out(new_world):
    """It is checked before the log's row is locked; nothing of the transaction is there (T5)."""
    world = new_world(orders=1, substreams=1, attempts=2, dead_letters="dead")
    world.log.stream("dead", substreams=1)
    with closing(world.connect()) as connection, connection:
        connection.execute(
            "ALTER TABLE bill ADD CONSTRAINT one UNIQUE (what) DEFERRABLE INITIALLY DEFERRED"
        )

    def twice(order, effects):
        effects.connection.execute("INSERT INTO bill VALUES (0, 'c0', 0, %s)", (order["what"],))

    world.looks = twice
    drain(world.consumer())
    assert world.bills() == {}
    assert not [each for at in range(2) for each in world.log.read("invoices", at)]
    (dead,) = world.log.read("dead", 0)
    assert b"UniqueViolation" in dead.headers["dead-letter-error"]


def test_a_savepoint_that_is_left_open_is_the_handlers_error(new_world):
    """Psycopg would not commit what is in it (T5)."""
    world = new_world(orders=1, substreams=1, attempts=2, dead_letters="dead")
    world.log.stream("dead", substreams=1)
    left = []

    def leave(_, effects):
        left.append(effects.connection.transaction())
        left[-1].__enter__()

    world.looks = leave
    drain(world.consumer())
    assert len(left) > 1
    assert world.bills() == {}
    (dead,) = world.log.read("dead", 0)
    assert b"savepoint" in dead.headers["dead-letter-error"]


@pytest.mark.parametrize("why", ["another role", "isolation", "another database"])
def test_where_they_cannot_commit_together_outputs_are_appended_afterwards(
    shared_postgres, new_world, why
):
    """As where the log is elsewhere (T2)."""
    world = new_world(orders=2, substreams=1)
    url = world.database.url
    if why == "isolation":
        world.database.url = url.replace(
            "options=", "options=-cdefault_transaction_isolation%3Dserializable%20"
        )
    elif why == "another role":
        role = f"r{secrets.token_hex(6)}"
        schema = url.rpartition("%3D")[2]
        with shared_postgres.connect(autocommit=True) as connection:
            connection.execute(f"CREATE ROLE {role} LOGIN")
            connection.execute(f"GRANT ALL ON SCHEMA {schema} TO {role}")
            connection.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {role}")
        world.database.url = url.replace("rifl@", f"{role}@")
    else:
        name = f"d{secrets.token_hex(6)}"
        with shared_postgres.connect(autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        world.database.url = shared_postgres.url().replace("/postgres", f"/{name}")
        with closing(world.connect()) as connection, connection:
            connection.execute(
                "CREATE TABLE bill (id INTEGER, customer TEXT, number INTEGER, what TEXT)"
            )
    with driven(world.consumer()) as process:
        process.drain()
        assert "store: append" not in process.steps
        assert "log: append" in process.steps
    world.check()


def test_shards_that_write_one_row_wait_for_each_other_alone(new_world):
    """Rows are locked before the log's, which ends with its transaction: nobody waits in a ring."""
    world = new_world(orders=0, substreams=4)
    with closing(world.connect()) as connection, connection:
        connection.execute("CREATE TABLE total (sum INTEGER)")
        connection.execute("INSERT INTO total VALUES (0)")
    world.looks = lambda _, effects: effects.connection.execute("UPDATE total SET sum = sum + 1")
    world.order(30)
    consumers = [world.consumer() for _ in range(3)]
    threads = [threading.Thread(target=each.run) for each in consumers]
    for each in threads:
        each.start()
    try:
        for at in range(60):
            world.log.publish("copies", json.dumps({"beside": at}))
        until(
            lambda: len(rows(world)) == sum(map(len, world.expected().values())),
            "all orders are billed",
        )
    finally:
        for each in consumers:
            each.close()
        for each in threads:
            each.join(60)
    world.check()
    with closing(world.connect()) as connection:
        assert connection.execute("SELECT sum FROM total").fetchone() == (len(rows(world)),)


def rows(world):
    """All bills."""
    return [each for bills in world.bills().values() for each in bills]
