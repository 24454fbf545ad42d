"""Handlers that fail: again, in order, and never skipped silently (DESIGN-LOG §14, T5)."""

import json
import sqlite3
from contextlib import closing

import pytest

import sharedlog
from sharedlog._consumer.sqlite import SqliteLane
from sharedlog._core.consumer import outputs
from sharedlog._core.consumer.asked import Failed
from sharedlog._core.consumer.members import look, resume
from sharedlog._core.errors import LogUnavailable, StoreAway
from sharedlog.testing import drain, driven
from tests.sharedlog.consumer.world import LogWorld, World


def test_a_handler_that_raises_is_tried_again_in_order(tmp_path):
    """Its effects are undone, and nothing behind it comes first (T5)."""
    world = World(tmp_path, orders=6)
    tries = []

    def fails_twice(order, effects):
        effects.connection.execute("INSERT INTO bill VALUES (0, 'nobody', 0, 'nothing')")
        effects.publish("invoices", b"never")
        tries.append(order["what"])
        if tries.count("order 4") < 3 and order["what"] == "order 4":
            raise OSError("not now")
        effects.connection.execute("DELETE FROM bill WHERE customer = 'nobody'")
        effects._outputs.messages.pop()

    world.looks = fails_twice
    drain(world.consumer())
    world.check()
    assert tries.count("order 4") == 3


def test_an_attempt_whose_note_may_come_late_is_noted_behind_a_take_over(tmp_path):
    """It would count for the message behind: what is on its way is fenced off first (T5, T1)."""
    world = World(tmp_path, orders=1, substreams=1, attempts=100)
    tries, lost = [], []

    def fails_twice(order, _):
        tries.append(order["what"])
        if len(tries) < 3:
            raise OSError("not now")

    def lose_the_first(_, name):
        if name == "store: note" and not lost:
            lost.append(name)
            raise StoreAway("a test has lost the answer")

    world.looks = fails_twice
    with driven(world.consumer()) as process:
        process.after = lose_the_first
        process.drain()
    world.check()
    first = process.steps.index("store: note")
    assert "store: take" in process.steps[first : process.steps.index("store: note", first + 1)]


def test_a_message_that_fails_again_and_again_becomes_a_dead_letter(tmp_path):
    """With why, once, in the same kind of transaction; others go on behind it (T5)."""
    world = World(tmp_path, orders=6, attempts=3, dead_letters="dead")
    world.log.stream("dead", substreams=1)
    world.refused = {"c1"}
    tries = []
    world.looks = lambda order, _: tries.append(order["what"])
    drain(world.consumer())
    world.check()
    dead = world.log.read("dead", 0)
    assert [each.key for each in dead] == [b"c1", b"c1"]
    assert dead[0].headers["dead-letter-error"] == b"ValueError: c1 is not billed"
    assert dead[0].headers["dead-letter-attempts"] == b"3"
    # Three by itself, and one or more with others.
    assert all(tries.count(what) >= 3 for what in ("order 2", "order 6"))
    assert drain(world.consumer()) == 0


class _Speechless(Exception):
    def __str__(self):
        raise RuntimeError("it has no text")


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (_Speechless(), b"_Speechless: (its text raises RuntimeError)"),
        (OSError("no file \udcff"), b"OSError: no file \\udcff"),
        (OSError("\0 and more"), b"OSError: \0 and more"),
    ],
)
def test_whatever_a_handler_raises_is_told_in_text(tmp_path, raised, told):
    """An error that has no text, or one that UTF-8 has not, ends nothing but its message (T5)."""
    world = World(tmp_path, orders=3, attempts=2, dead_letters="dead")
    world.log.stream("dead", substreams=1)

    def fail(order, _):
        if order["what"] == "order 2":
            raise raised

    world.looks = fail
    drain(world.consumer())
    (dead,) = world.log.read("dead", 0)
    assert dead.headers["dead-letter-error"] == told
    assert sum(map(len, world.bills().values())) == world.published - 1


def test_without_dead_letters_the_shard_stops_until_it_is_resumed(tmp_path):
    """Other shards go on, no other process takes it, and it is counted anew then (T5)."""
    world = World(tmp_path, orders=6, attempts=2)
    world.refused = {"c1"}
    drain(world.consumer())
    seen = world.log._place.run(look("billing"))
    (stopped,) = seen.stopped
    assert "c1 is not billed" in seen.stopped[stopped]
    done = world.bills()
    assert "c1" not in done
    assert drain(world.consumer()) == 0
    world.refused = set()
    assert drain(world.consumer()) == 0
    assert world.log._place.run(resume("billing")) == [stopped]
    drain(world.consumer())
    world.check()
    assert not world.log._place.run(look("billing")).resumed


def test_a_message_that_kills_the_process_counts_too(tmp_path):
    """Take-overs at one checkpoint, then attempts that were noted before they began (T5)."""
    world = World(tmp_path, orders=6, attempts=3, dead_letters="dead")
    world.log.stream("dead", substreams=1)
    deaths = 0
    for _ in range(20):
        with driven(world.consumer()) as process:

            def kill(order, _, process=process):
                if order["customer"] == "c2":
                    process.die()

            world.looks = kill
            process.drain()
        deaths += process.dead
        if not process.dead:
            break
    assert not process.dead
    world.refused = {"c2"}
    world.check()
    dead = world.log.read("dead", 0)
    assert [each.headers["dead-letter-error"] for each in dead] == [
        b"the process ended while it ran, each time"
    ] * 2
    # Three of each message alone, and some with others before it was known which.
    assert 6 <= deaths <= 12


@pytest.mark.parametrize("handler", ["sync", "async"])
@pytest.mark.parametrize("store", ["database", "log"])
def test_a_log_that_is_away_while_a_handler_publishes_does_not_count(
    tmp_path, monkeypatch, store, handler
):
    """A process looks a stream up when it publishes there first (T5)."""
    world = LogWorld(orders=3) if store == "log" else World(tmp_path, orders=3)
    world.log.stream("dead", substreams=1)
    world.log.stream("seen", substreams=1)
    # As in a process that has just begun.
    placing = world.log._placing
    del placing._known["seen"], placing._tags["seen"]
    engine, get, failures = world.log._engine, world.log._engine.get, 0

    def away(keys):
        nonlocal failures
        if any(each.endswith("seen") for each in keys) and failures < 5:
            failures += 1
            raise LogUnavailable("timed out")
        return get(keys)

    monkeypatch.setattr(engine, "get", away)
    consumer = sharedlog.Consumer(
        world.log, "billing", ["orders"], world.database.url, attempts=2, dead_letters="dead"
    )

    def bill(order, effects):
        effects.publish("seen", order["what"])
        world.bill(order, effects)

    async def bill_async(order, effects):
        bill(order, effects)

    consumer.on("orders", json.loads)(bill_async if handler == "async" else bill)
    drain(consumer)
    world.check()
    assert failures == 5
    assert not world.log.read("dead", 0)
    assert len(world.log.read("seen", 0)) == world.published


def test_a_commit_that_is_refused_is_tried_again(tmp_path, monkeypatch):
    """It is known not to have happened: nothing of it is there (T5)."""
    world = World(tmp_path, orders=3)
    commit, refusals = SqliteLane.commit, 0

    def refused(self, *given):
        nonlocal refusals
        refusals += 1
        if refusals % 3:
            raise Failed("database is locked", counts=False)
        commit(self, *given)

    monkeypatch.setattr(SqliteLane, "commit", refused)
    drain(world.consumer())
    world.check()


@pytest.mark.parametrize("ends", ["COMMIT", "ROLLBACK", "BEGIN", "commit", "rollback", "script"])
def test_a_handler_does_not_end_the_transaction(tmp_path, ends):
    """It is not its own: the effects would be there without the checkpoint (T2)."""
    world = World(tmp_path, orders=2, attempts=1, dead_letters="dead")
    world.log.stream("dead", substreams=1)

    def end(order, effects):
        effects.connection.execute("INSERT INTO bill VALUES (0, 'c0', 1, 'too early')")
        if ends == "script":
            effects.connection.executescript("SELECT 1; COMMIT")
        elif ends.islower():
            getattr(effects.connection, ends)()
        else:
            effects.connection.execute(ends)

    world.looks = end
    drain(world.consumer())
    assert world.bills() == {}
    assert len(world.log.read("dead", 0)) == 2


def test_a_dead_letter_that_has_no_room_says_where_the_message_is(tmp_path):
    """A value of a mebibyte cannot be published with what is said of it (T5)."""
    world = World(tmp_path, orders=0, attempts=1, dead_letters="dead")
    world.log.stream("dead", substreams=1)
    position = world.log.publish("orders", b"x" * ((1 << 20) - 250), key="c0")
    drain(world.consumer())
    (dead,) = world.log.read("dead", 0)
    assert dead.value == b""
    assert dead.headers["dead-letter-position"] == f"orders {position}".encode()


def test_more_outputs_than_a_transaction_takes_are_the_handlers_error(tmp_path, monkeypatch):
    """And no transaction is committed that cannot be appended (T2)."""
    monkeypatch.setattr(outputs, "MOST_BYTES", 1_000_000)
    world = World(tmp_path, orders=2, attempts=1, dead_letters="dead")
    world.log.stream("dead", substreams=1)

    def too_much(order, effects):
        for _ in range(3):
            effects.publish("invoices", b"x" * 500_000)

    world.looks = too_much
    drain(world.consumer())
    assert world.bills() == {}
    (dead, _) = world.log.read("dead", 0)
    assert dead.headers["dead-letter-error"].startswith(b"InvalidRequest: a transaction publishes")


def test_a_store_that_was_restored_is_told(tmp_path):
    """The log has more of its outputs, or its hold is further on: nothing is done again (T1)."""
    world = World(tmp_path, orders=2)
    drain(world.consumer())
    with closing(world.connect()) as connection:
        copy = connection.serialize()
    world.order(2)
    drain(world.consumer())
    with closing(world.connect()) as connection, closing(sqlite3.connect(":memory:")) as source:
        source.deserialize(copy)
        source.backup(connection)
    with pytest.raises(sharedlog.StoreWentBack):
        drain(world.consumer())
    # Also where the hold does not tell it: it lags behind the store by half a second.
    world.log.forget_hold("@consumer:billing")
    with pytest.raises(sharedlog.StoreWentBack, match="of its outputs"):
        drain(world.consumer())
    assert len(world.log.read("invoices", 0)) + len(world.log.read("invoices", 1)) == sum(
        len(world.log.read("orders", each)) for each in range(2)
    )


def test_a_store_without_outputs_that_was_restored_is_told(tmp_path):
    """Its hold is further on: what is before it may be trimmed (T1, DESIGN-LOG §12, L6)."""
    world = World(tmp_path, orders=2)
    world.take = lambda *_: None
    drain(world.consumer())
    world.database.file.unlink()
    with pytest.raises(sharedlog.StoreWentBack, match="has nothing"):
        drain(world.consumer())
    world.log.forget_hold("@consumer:billing")
    drain(world.consumer())
    with closing(world.connect()) as connection:
        copy = connection.serialize()
    world.order(2)
    drain(world.consumer())
    with closing(world.connect()) as connection, closing(sqlite3.connect(":memory:")) as source:
        source.deserialize(copy)
        source.backup(connection)
    with pytest.raises(sharedlog.StoreWentBack, match="it was done through"):
        drain(world.consumer())
