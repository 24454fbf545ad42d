"""Bad input and full disks, before a consumer over each of its stores (DESIGN-LOG §14)."""

import json
import sqlite3
from collections import Counter
from contextlib import closing

import psycopg
import pytest

import sharedlog
from sharedlog._consumer import sqlite as sqlite_store
from sharedlog._core.commit import Commit
from sharedlog._core.errors import LogFull
from sharedlog._core.producers import NewMessage, append, grant
from sharedlog._core.streams import commits_tag
from sharedlog.testing import drain, driven
from tests.helpers.log_servers import shared_postgres, shared_redis
from tests.helpers.sealing import seal, unseal
from tests.sharedlog.consumer.test_redis import RedisWorld
from tests.sharedlog.consumer.world import LogWorld, PostgresDatabase, World

__all__ = ["shared_postgres", "shared_redis"]


@pytest.fixture(params=["sqlite", "postgres", "redis", "log"])
def new_world(request, tmp_path):
    """Make a world over each store."""

    def make(**settings):
        if request.param == "log":
            return LogWorld(**settings)
        if request.param == "redis":
            return RedisWorld(request.getfixturevalue("shared_redis"), False, **settings)
        if request.param == "postgres":
            return World(PostgresDatabase(request.getfixturevalue("shared_postgres")), **settings)
        return World(tmp_path, **settings)

    return make


def appended(log, envelope, tag="orders/0"):
    """Append an envelope as it is, as a publisher with a fault of its own would."""
    producer = log._place.run(grant(b"x" * 16))
    message = NewMessage(envelope, (tag, commits_tag("orders")))
    log._place.run(append(producer, 1, [message]))


def test_a_message_that_nobody_can_parse_is_a_dead_letter(new_world):
    """What follows it is consumed; where it is is said, and what is wrong with it (T5)."""
    world = new_world(orders=2, attempts=2, dead_letters="dead", substreams=1)
    world.log.stream("dead", 1)
    world.log.publish("orders", b"no JSON", key="c0")
    world.log.publish("orders", b'{"customer": "c0"}', key="c0")
    appended(world.log, b"\xff\xff no envelope")
    world.order(1)
    assert drain(world.consumer()) == 6
    dead = world.log.read("dead", 0)
    why = [each.headers["dead-letter-error"].split(b":")[0] for each in dead]
    assert why == [b"JSONDecodeError", b"KeyError", b"CorruptLog"]
    assert [each.value for each in dead] == [b"no JSON", b'{"customer": "c0"}', b""]
    assert sum(map(len, world.bills().values())) == sum(map(len, world.invoices().values())) == 3


def test_a_message_of_a_newer_release_is_not_given_up(new_world):
    """A process of that release can read it: this one ends, and says so (T5)."""
    world = new_world(orders=1, attempts=1, dead_letters="dead", substreams=1)
    world.log.stream("dead", 1)
    appended(world.log, sharedlog.v1.sharedlog_pb2.Envelope(version=99).SerializeToString())
    for _ in range(3):
        with pytest.raises(sharedlog.NewerFormat):
            drain(world.consumer())
    assert world.bills() == {"c0": [(1, "order 1")]}
    assert not world.log.read("dead", 0)


def test_a_process_without_the_key_gives_nothing_up(tmp_path):
    """Messages that are sealed are no dead letters because it was started wrongly (T5)."""

    with sharedlog.create("memory:sealed-orders", seal=seal, unseal=unseal) as log:
        log.stream("orders", 1)
        log.stream("dead", 1)
        log.publish("orders", b"it")
        with sharedlog.open("memory:sealed-orders") as other:
            consumer = sharedlog.Consumer(
                other, "a", ["orders"], "log", attempts=1, dead_letters="dead"
            )
            consumer.on("orders")(lambda message, effects: None)
            for _ in range(3):
                with pytest.raises(sharedlog.SealedMessage):
                    drain(consumer)
        assert not log.read("dead", 0)


def test_ten_megabytes_are_published_in_one_transaction(new_world):
    """Readers see all of it at once (T2)."""
    world = new_world(orders=2)
    world.log.stream("large", substreams=4)

    def publish(order, effects):
        if order["what"] == "order 2":
            for number in range(40):
                effects.publish("large", number.to_bytes(2, "big") * 128_000, key=str(number))

    world.looks = publish
    drain(world.consumer())
    world.check()
    found = [each for at in range(4) for each in world.log.read("large", at)]
    assert sorted(each.value[:2] for each in found) == [at.to_bytes(2, "big") for at in range(40)]
    assert len({each.position.lsn for each in found}) == 1


def test_a_log_that_is_full_is_waited_for(new_world, monkeypatch):
    """Nothing is given up, and nothing is there twice once there is room again (T2, T5)."""
    world = new_world(orders=3, attempts=1, dead_letters="dead")
    world.log.stream("dead", 1)
    engine = world.log._engine
    commit, refused = engine.commit, []

    def full(step: Commit):
        if step.entries and len(refused) < 5:
            refused.append(step)
            raise LogFull("no room")
        return commit(step)

    monkeypatch.setattr(engine, "commit", full)
    drain(world.consumer())
    world.check()
    assert len(refused) == 5
    assert not world.log.read("dead", 0)


def test_processes_of_one_name_follow_the_same_streams(new_world):
    """Who comes with others is refused, and who runs goes on (T1)."""
    world = new_world(orders=2)
    with driven(world.consumer()) as process:
        process.round()
        for streams in (["copies"], ["orders", "copies"]):
            name, url = world.consumer().name, world.consumer()._store
            other = sharedlog.Consumer(world.log, name, streams, url)
            for each in streams:
                other.on(each, json.loads)(lambda *_: None)
            with pytest.raises(sharedlog.InvalidRequest, match="follows orders/2"):
                drain(other)
        process.drain()
    world.check()


def test_a_consumer_with_another_store_is_told(new_world, tmp_path):
    """What was done is not in it: nothing is done again (T1)."""
    world = new_world(orders=2)
    drain(world.consumer())
    other = f"sqlite:///{tmp_path / 'other.db'}"
    consumer = sharedlog.Consumer(world.log, world.consumer().name, ["orders"], other)
    consumer.on("orders")(lambda *_: None)
    with pytest.raises(sharedlog.StoreWentBack):
        drain(consumer)


def test_a_database_that_was_in_use_does_not_go_on_as_the_log(tmp_path):
    """The state in the log would begin at nothing: it is told (T1, T4)."""
    world = World(tmp_path, orders=2)
    drain(world.consumer())
    consumer = sharedlog.Consumer(world.log, "billing", ["orders"], "log")
    consumer.on("orders")(lambda *_: None)
    with pytest.raises(sharedlog.StoreWentBack):
        drain(consumer)


def test_a_file_that_somebody_else_has_locked_is_waited_for(tmp_path, monkeypatch):
    """However often: that is no attempt of the handler's (T5)."""
    monkeypatch.setattr(sqlite_store, "_BUSY_S", 0.01)
    world = World(tmp_path, orders=3, attempts=1, dead_letters="dead")
    world.log.stream("dead", 1)
    with driven(world.consumer()) as process:
        process._work.sharing.share()
        with closing(sqlite3.connect(world.database.file, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            assert [process.round() for _ in range(6)] == [0] * 6
        process.drain()
    world.check()
    assert not world.log.read("dead", 0)


def test_a_file_that_is_full_is_waited_for(tmp_path):
    """A statement of the handler has failed, and it is not the handler's fault (T5)."""
    world = World(tmp_path, orders=3, attempts=1, dead_letters="dead")
    world.log.stream("dead", 1)
    failures = []

    def fill(_, effects):
        execute = effects.connection.execute
        (pages,) = execute("PRAGMA page_count").fetchone()
        most = pages if len(failures) < 4 else 1 << 30
        execute(f"PRAGMA max_page_count = {most}")
        try:
            execute("CREATE TABLE IF NOT EXISTS filling (what BLOB)")
            execute("INSERT INTO filling VALUES (zeroblob(1000000))")
        except sqlite3.OperationalError as error:
            failures.append(str(error))
            raise

    world.looks = fill
    drain(world.consumer())
    world.check()
    assert failures[0] == "database or disk is full"
    assert len(failures) == 4
    assert not world.log.read("dead", 0)


@pytest.mark.parametrize("table", ["bill", "sharedlog_consumer"])
def test_a_postgresql_whose_disk_is_full_is_waited_for(shared_postgres, table):
    """Whether the handler's statement needs room, or the checkpoint; neither counts (T5)."""
    world = World(PostgresDatabase(shared_postgres), orders=3, attempts=1, dead_letters="dead")
    world.log.stream("dead", 1)
    with driven(world.consumer()) as process:
        process._work.sharing.share()
        process.round()
        # What the server says then, of a disk that is full for four statements.
        with psycopg.connect(world.database.url) as other:
            other.execute(
                "CREATE SEQUENCE refused; CREATE FUNCTION fill() RETURNS trigger AS $$ BEGIN "
                "IF nextval('refused') <= 4 THEN RAISE 'no space left' USING ERRCODE = '53100'; "
                "END IF; RETURN NEW; END $$ LANGUAGE plpgsql; "
                f"CREATE TRIGGER fills BEFORE INSERT OR UPDATE ON {table} "
                "FOR EACH ROW EXECUTE FUNCTION fill()"
            )
        world.order(3)
        process.drain()
    with psycopg.connect(world.database.url) as other:
        assert other.execute("SELECT last_value FROM refused").fetchone()[0] > 4
    world.check()
    assert not world.log.read("dead", 0)


def test_a_redis_that_is_full_is_waited_for(shared_redis):
    """Whether a take-over, a note or a commit is refused; nothing is there in part (T5)."""
    world = RedisWorld(shared_redis, False, orders=3, attempts=1, dead_letters="dead")
    world.log.stream("dead", 1)
    refused = Counter()

    def fill(_, name):
        if name in ("store: take", "store: note", "store: commit"):
            # Each of them at first.
            with world.client() as client:
                client.config_set("maxmemory", 1 if refused[name] < 2 else 0)
            refused[name] += 1

    try:
        with driven(world.consumer()) as process:
            process.before = fill
            process.drain()
    finally:
        with world.client() as client:
            client.config_set("maxmemory", 0)
    assert refused["store: note"]
    assert min(refused["store: take"], refused["store: commit"]) > 2
    world.check()
    assert not world.log.read("dead", 0)


def test_a_table_that_somebody_else_has_locked_is_waited_for(shared_postgres):
    """A lock that was not given in the time that the handler has set (T5)."""
    world = World(PostgresDatabase(shared_postgres), orders=3, attempts=1, dead_letters="dead")
    world.log.stream("dead", 1)
    world.looks = lambda _, effects: effects.connection.execute("SET LOCAL lock_timeout = '1ms'")
    with driven(world.consumer()) as process:
        process._work.sharing.share()
        with psycopg.connect(world.database.url) as other:
            other.execute("LOCK TABLE bill")
            assert [process.round() for _ in range(6)] == [0] * 6
        process.drain()
    world.check()
    assert not world.log.read("dead", 0)


def test_a_schema_that_was_restored_is_told(shared_postgres):
    """The log has more of its outputs: nothing is done again (T1)."""
    world = World(PostgresDatabase(shared_postgres), orders=2)
    drain(world.consumer())
    with psycopg.connect(world.database.url) as connection:
        connection.execute(
            "CREATE TABLE old_bill AS SELECT * FROM bill;"
            "CREATE TABLE old_consumer AS SELECT * FROM sharedlog_consumer"
        )
    world.order(2)
    drain(world.consumer())
    with psycopg.connect(world.database.url) as connection:
        connection.execute(
            "DELETE FROM bill; INSERT INTO bill SELECT * FROM old_bill;"
            "DELETE FROM sharedlog_consumer;"
            "INSERT INTO sharedlog_consumer SELECT * FROM old_consumer"
        )
    bills, invoices = world.bills(), world.invoices()
    for _ in range(3):
        with pytest.raises(sharedlog.StoreWentBack):
            drain(world.consumer())
    assert (world.bills(), world.invoices()) == (bills, invoices)
