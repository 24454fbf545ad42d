"""The settling of what shards owe the log: aside, while others take their turns."""

import json
import threading
from contextlib import closing, contextmanager

import pytest

from tests.helpers.waiting import until
from tests.sharedlog.consumer.world import World
from tests.sharedlog.faulty import faulty


@pytest.fixture
def world(tmp_path):
    """Transactions of one message, over a log whose appends can be held up."""
    made = World(tmp_path, orders=0, batch=1)
    made.real = made.log
    made.log, made.engine = faulty(made.log)
    yield made
    made.real.close()


@contextmanager
def running(world):
    consumer = world.consumer()
    thread = threading.Thread(target=consumer.run)
    thread.start()
    try:
        yield consumer
    finally:
        consumer.close()
        thread.join(20)
        assert not thread.is_alive()


def order(world, key, count):
    """Publish orders of one customer; returns the substream that they are in."""
    at = [
        world.real.publish("orders", json.dumps({"customer": key, "what": f"{each}"}), key=key)
        for each in range(count)
    ]
    return at[0].substream


def owed_by(commit, substream):
    """Whether a commit appends the outputs of a substream."""
    name = f"named/@consumer:billing:orders/{substream}"
    return any(put.key == name for put in commit.puts)


def test_others_go_on_while_the_outputs_of_one_are_appended_and_its_own_next_waits(world):
    """Nothing of it commits before the log has acknowledged what it owes (DESIGN-LOG §14, T3)."""
    keys = {order(world, f"c{each}", 3): f"c{each}" for each in range(8)}
    held, free = keys[0], keys[1]
    met, go_on = threading.Event(), threading.Event()

    def before(commit):
        if owed_by(commit, 0):
            met.set()
            assert go_on.wait(20)

    world.engine.before = before
    with running(world):
        assert met.wait(20)
        try:
            until(lambda: len(world.invoices().get(free, ())) == 3, "the other one's outputs")
            assert sum(len(world.bills().get(each, ())) for each in world.bills()) > 3
            with closing(world.connect()) as database:
                (seq,) = database.execute(
                    "SELECT seq FROM sharedlog_consumer WHERE shard = 'orders/0'"
                ).fetchone()
            assert seq == 1
            assert held not in world.invoices() or len(world.invoices()[held]) < 3
        finally:
            go_on.set()
        until(lambda: world.invoices() == world.expected(), "all of it")
    world.check()


def test_what_was_not_appended_is_appended_before_the_next_transaction(world):
    """An append that failed aside is tried again, and nothing is lost or doubled (T2, T3)."""
    order(world, "c0", 5)
    world.engine.faults = ["lost", "late", "", "lost"]
    with running(world):
        until(lambda: world.invoices() == world.expected(), "all outputs")
    world.check()


def test_once_returns_when_the_outputs_are_in_the_log(world):
    """Whoever called it may read them (DESIGN-LOG §14)."""
    for each in range(4):
        order(world, f"c{each}", 2)
    assert world.consumer().once() == 8
    world.check()
