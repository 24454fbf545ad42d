"""Handlers that end what is not theirs: a process, a connection, a table (DESIGN-LOG §14, T5)."""

import asyncio
import sqlite3
import subprocess
import sys
import threading
from datetime import timedelta

import pytest

import sharedlog
from sharedlog._core.consumer.members import look
from sharedlog.testing import drain
from tests.sharedlog.consumer.world import World


@pytest.mark.parametrize("ends", ["returns", "raises", "writes"])
def test_a_child_that_a_handler_forks_commits_nothing(tmp_path, ends):
    """It is refused before the commit, and the parent goes on with its own transaction (T1)."""
    # In a process that has nothing else: forks beside gRPC's threads are not this test's matter.
    command = [sys.executable, "-m", "tests.sharedlog.consumer.forking", ends, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["child 42"]), done.stderr


@pytest.mark.parametrize("kind", [sqlite3.Connection.close, lambda each: each.close()])
def test_a_handler_that_closes_its_connection_has_failed(tmp_path, kind):
    """It counts, others go on, and nothing that says it is there outlives the consumer (T5)."""
    world = World(tmp_path, orders=3, attempts=2, dead_letters="dead")
    world.log.stream("dead", substreams=1)
    world.refused = {"c1"}

    def close(order, effects):
        if order["customer"] == "c1":
            kind(effects.connection)

    world.looks = close
    drain(world.consumer())
    world.check()
    assert len(world.log.read("dead", 0)) == 1
    world.order(3)
    world.consumer().once()
    world.check()
    assert not world.log._place.run(look("billing")).members
    assert not [each for each in threading.enumerate() if "sharedlog-consumer" in each.name]


@pytest.mark.parametrize("statement", ["DROP TABLE {}", "DELETE FROM {}", "UPDATE {} SET seq = 9"])
def test_a_handler_does_not_write_the_consumers_table(tmp_path, statement):
    """It is the handler's failure, which counts: it is not tried for ever (T5)."""
    world = World(tmp_path, orders=2, attempts=1, dead_letters="dead")
    world.log.stream("dead", substreams=1)
    world.looks = lambda _, effects: effects.connection.execute(
        statement.format("sharedlog_consumer")
    )
    drain(world.consumer())
    assert world.bills() == {}
    dead = world.log.read("dead", 0)
    assert len(dead) == 2
    assert b"the consumer begins, commits" in dead[0].headers["dead-letter-error"]


@pytest.mark.parametrize("ends", [SystemExit, GeneratorExit, asyncio.CancelledError, BaseException])
def test_a_handler_that_ends_the_process_has_used_an_attempt(tmp_path, ends):
    """Noted before it is raised: after so many the message is given up (T5)."""
    world = World(tmp_path, orders=6, attempts=3, dead_letters="dead")
    world.log.stream("dead", substreams=1)

    def leave(order, _):
        if order["customer"] == "c1":
            raise ends("3")

    world.looks = leave
    world.refused = {"c1"}
    # Two messages, three attempts of each.
    for _ in range(6):
        with pytest.raises(ends, match="3"):
            drain(world.consumer())
    drain(world.consumer())
    world.check()
    dead = world.log.read("dead", 0)
    assert [each.headers["dead-letter-attempts"] for each in dead] == [b"3", b"3"]


def test_a_function_whose_call_would_do_nothing_is_no_handler(tmp_path):
    """Its messages would count as done, and have no effect (T2)."""
    world = World(tmp_path, orders=2, attempts=1, dead_letters="dead")
    world.log.stream("dead", substreams=1)
    made = sharedlog.Consumer(world.log, "billing", ["orders"], world.database.url)

    def yields(*_):
        yield

    async def yields_later(*_):
        yield

    for wrong in (yields, yields_later, None, "bill"):
        with pytest.raises(sharedlog.InvalidRequest):
            made.on("orders")(wrong)
        with pytest.raises(sharedlog.InvalidRequest):
            made.every(timedelta(seconds=1))(wrong)
    for hidden in (lambda *_: yields(), lambda *_: yields_later()):
        consumer = sharedlog.Consumer(
            world.log, "hidden", ["orders"], world.database.url, attempts=1, dead_letters="dead"
        )
        consumer.on("orders")(hidden)
        drain(consumer)
        world.order(1)
    dead = world.log.read("dead", 0)
    assert len(dead) == 3
    assert all(b"it yields" in each.headers["dead-letter-error"] for each in dead)
