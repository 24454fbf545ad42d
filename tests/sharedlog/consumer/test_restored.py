"""Logs and stores that were restored: what is lost is told, and recovered from (§14, T1)."""

import json
import secrets
import shutil
import sqlite3
from contextlib import closing
from datetime import timedelta

import pytest

import sharedlog
from sharedlog._cli import ExitCode, main
from sharedlog._core.restoring import restore
from sharedlog.testing import drain, driven
from tests.helpers.log_servers import shared_postgres
from tests.sharedlog.consumer.world import PostgresDatabase, SqliteDatabase, World

__all__ = ["shared_postgres"]


def copied(world):
    with closing(world.connect()) as connection:
        return connection.serialize()


def restored(world, copy):
    with closing(world.connect()) as connection, closing(sqlite3.connect(":memory:")) as source:
        source.deserialize(copy)
        source.backup(connection)


@pytest.mark.parametrize("quiet", [False, True])
def test_a_store_that_was_restored_goes_on_by_the_documented_commands(tmp_path, quiet):
    """The log goes on from what the store says, and every output of it is in the log (T1)."""
    url = f"sqlite:///{tmp_path / 'log.db'}"
    world = World(tmp_path, orders=2, url=url)
    drain(world.consumer())
    if quiet:
        # The intent is no longer in the store: the checkpoint moved with the log.
        world.log.publish("invoices", b"not of orders")
        with driven(world.consumer()) as process:
            process.drain()
    copy = copied(world)
    world.order(2)
    drain(world.consumer())
    restored(world, copy)
    with pytest.raises(sharedlog.StoreWentBack):
        drain(world.consumer())
    assert main(["holds", url, "--forget", "@consumer:billing", "--yes"]) == ExitCode.DONE
    for substream in range(2):
        name = f"@consumer:billing:orders/{substream}"
        assert main(["forget", url, name, "--yes"]) == ExitCode.DONE
    before = sum(len(world.log.read("invoices", each)) for each in range(2))
    assert drain(world.consumer()) == 2
    world.order(3)
    drain(world.consumer())
    assert world.bills() == world.expected()
    billed = sum(map(len, world.bills().values()))
    after = sum(len(world.log.read("invoices", each)) for each in range(2))
    # All that was billed since the backup, and once more what the backup had just appended.
    assert after - before >= billed - 2
    world.log.close()


def test_a_log_that_lost_its_outputs_is_told_before_a_handler_runs(tmp_path):
    """Where the name alone was forgotten, nothing is committed whose output cannot follow (T1)."""
    world = World(tmp_path, orders=3)
    drain(world.consumer())
    world.order(3)
    drain(world.consumer())
    world.order(3)
    for substream in range(2):
        world.log.forget(f"@consumer:billing:orders/{substream}")
    bills = world.bills()
    with pytest.raises(sharedlog.LogForked, match="the name alone was forgotten"):
        drain(world.consumer())
    assert world.bills() == bills
    world.log.forget_hold("@consumer:billing")
    drain(world.consumer())
    assert world.bills() == world.expected()


def test_another_log_is_told_at_once(tmp_path):
    """A number that this log has not given out is no other process's (T1)."""
    world = World(tmp_path, orders=3)
    for _ in range(3):
        drain(world.consumer())
    world.log = sharedlog.create("memory:")
    world.log.stream("orders", 2)
    world.log.stream("invoices", 2)
    world.order(2)
    bills = world.bills()
    for _ in range(4):
        with pytest.raises(sharedlog.LogForked):
            world.consumer().once()
    assert world.bills() == bills
    assert not world.log.read("invoices", 0)


def test_an_older_copy_of_a_log_gets_nothing_of_what_it_lacks(tmp_path):
    """Nobody declared it restored: each attempt is told, whatever the log's numbers say (T1)."""
    directory, old = tmp_path / "log", tmp_path / "old"
    directory.mkdir()
    url = f"sqlite:///{directory / 'log.db'}"
    world = World(tmp_path, orders=2, substreams=1, url=url)
    drain(world.consumer())
    world.log.close()
    shutil.copytree(directory, old)
    world.log = sharedlog.open(url)
    world.order(2)
    assert world.consumer().once() == 2
    world.log.close()
    shutil.rmtree(directory)
    shutil.copytree(old, directory)
    world.log = sharedlog.open(url)
    invoices = world.invoices()
    for _ in range(4):
        with pytest.raises(sharedlog.LogForked):
            world.consumer().once()
        assert world.invoices() == invoices
        world.log.publish("copies", b"it grows")
    world.log.close()


@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_is_removed_under_a_consumer_is_told(tmp_path, replaced):
    """No empty one is made in its place, and nothing is published any more (T1)."""
    world = World(tmp_path, orders=3)
    with driven(world.consumer()) as process:
        process.drain()
        copy = world.database.file.read_bytes()
        world.database.file.unlink()
        if replaced:
            world.database.file.write_bytes(copy)
        world.order(3)
        with pytest.raises(sharedlog.StoreWentBack, match="removed, or replaced"):
            process.drain()
    assert world.database.file.exists() is replaced
    if replaced:
        drain(world.consumer())
        world.check()


def test_what_cannot_be_is_an_error_of_its_own(tmp_path):
    """Numbers in place of times, no store, positions that are none, streams of others."""
    world = World(tmp_path, orders=1)
    url = world.database.url
    for named in [{"lease": 0.001}, {"store": None}, {"attempts": "5"}, {"dead_letters": "orders"}]:
        with pytest.raises(sharedlog.InvalidRequest):
            sharedlog.Consumer(world.log, "a", ["orders"], **{"store": url, **named})
    position = world.log.publish("orders", b'{"customer": "c0", "what": "it"}', key="c0")
    drain(world.consumer())
    for stream, given, timeout in [
        ("orders", position, 1),
        ("orders", str(position), timedelta(0)),
        ("orders", 7, timedelta(0)),
        ("invoices", position, timedelta(0)),
    ]:
        with pytest.raises(sharedlog.InvalidRequest):
            sharedlog.await_consumer(world.log, "billing", stream, given, timeout)
    with pytest.raises(sharedlog.NoSuchStream):
        sharedlog.await_consumer(world.log, "billing", "nothing", position, timedelta(0))


@pytest.fixture(params=["sqlite", "postgres"])
def beside(request, tmp_path):
    """A world whose log is in the database of the bills."""
    if request.param == "sqlite":
        database = SqliteDatabase(tmp_path)
        url = database.url
    else:
        server = request.getfixturevalue("shared_postgres")
        database, url = PostgresDatabase(server), server.url(log=secrets.token_hex(8))
    world = World(database, orders=3, substreams=1, url=url)
    yield world
    world.log.close()


@pytest.mark.parametrize("is_async", [False, True])
def test_a_log_in_the_consumers_database_that_is_declared_restored_ends_its_transaction(
    beside, is_async
):
    """Its append is of the old incarnation: effects and outputs are rolled back with it (§12)."""
    consumer = sharedlog.Consumer(beside.log, "billing", ["orders"], beside.database.url)

    def bill(order, effects):
        beside.bill(order, effects)

    async def bill_async(order, effects):
        beside.bill(order, effects)

    consumer.on("orders", json.loads)(bill_async if is_async else bill)

    steps = []

    def declare(_, name):
        steps.append(name)
        if name == "handlers: run":
            beside.log._run(restore("0123456789abcdef"))

    def consume():
        with driven(consumer) as process:
            process.before = declare
            process.drain()

    with pytest.raises(sharedlog.LogForked, match="open it again"):
        consume()
    assert "store: append" in steps
    assert not beside.bills()
    assert not beside.invoices()
