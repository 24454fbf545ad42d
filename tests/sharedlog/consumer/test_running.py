"""A consumer that runs: it waits for messages, shares, and ends when it is told to."""

import json
import threading
from datetime import timedelta

import pytest
from google.protobuf.wrappers_pb2 import StringValue

import sharedlog
from tests.helpers.waiting import until
from tests.sharedlog.consumer.world import World


def test_it_consumes_what_comes_until_it_is_closed(tmp_path):
    """Two of one name, in threads; what one leaves the other has (DESIGN-LOG §14)."""
    world = World(tmp_path, orders=2)
    first, second = world.consumer(), world.consumer()
    threads = [threading.Thread(target=each.run) for each in (first, second)]
    threads[0].start()
    until(lambda: world.bills() == world.expected(), "what is there")
    threads[1].start()
    world.order(4)
    until(lambda: world.bills() == world.expected(), "what comes")
    first.close()
    threads[0].join(20)
    world.order(4)
    until(lambda: world.invoices() == world.expected(), "what comes behind it")
    second.close()
    threads[1].join(20)
    world.check()
    assert not [each for each in threads if each.is_alive()]
    assert len(world.log.holds("@consumer:billing")) == 2


def test_handlers_get_what_they_asked_for(tmp_path):
    """A protobuf message, bytes, a text, the message itself; asynchronously, too."""
    world = World(tmp_path, orders=0)
    got = []
    for name, kind in (("a", StringValue), ("b", bytes), ("c", str), ("d", None)):
        world.log.stream(name, substreams=1)
        world.log.publish(name, StringValue(value="x") if kind is StringValue else b"x")
    consumer = sharedlog.Consumer(world.log, "all", ["a", "b", "c", "d"], world.database.url)
    with pytest.raises(sharedlog.InvalidRequest, match="no handler for a, b, c, d"):
        consumer.once()

    @consumer.on("a", StringValue)
    async def one(value, _):
        got.append(value)

    consumer.on("b", bytes)(lambda value, _: got.append(value))
    consumer.on("c", str)(lambda value, _: got.append(value))
    consumer.on("d")(lambda value, _: got.append(value.value))
    assert consumer.once() == 4
    assert got == [StringValue(value="x"), b"x", "x", b"x"]
    with pytest.raises(sharedlog.InvalidRequest, match="a stream has one"):
        consumer.on("a")(one)
    with pytest.raises(sharedlog.InvalidRequest, match="not 'e'"):
        consumer.on("e")(one)


def test_what_cannot_be_is_refused(tmp_path):
    """Before anything is asked of the log."""
    world = World(tmp_path, orders=0)
    url = world.database.url
    for error, arguments, named in [
        (sharedlog.InvalidRequest, ("a/b", ["orders"], url), {}),
        (sharedlog.InvalidRequest, ("a", "orders", url), {}),
        (sharedlog.InvalidRequest, ("a", [], url), {}),
        (sharedlog.InvalidRequest, ("a", ["orders"], "mysql://here"), {}),
        (sharedlog.InvalidRequest, ("a", ["orders"], url), {"start": "yesterday"}),
        (sharedlog.InvalidRequest, ("a", ["orders"], url), {"attempts": 0}),
        (sharedlog.NoSuchStream, ("a", ["other"], url), {}),
        (sharedlog.NoSuchStream, ("a", ["orders"], url), {"dead_letters": "other"}),
    ]:
        with pytest.raises(error):
            sharedlog.Consumer(world.log, *arguments, **named)


def test_a_new_consumer_may_begin_at_the_end(tmp_path):
    """And one that ran before goes on where it was, whatever it says (DESIGN-LOG §14)."""
    world = World(tmp_path, orders=3)
    assert world.consumer(start="end").once() == 0
    world.order(1)
    assert world.consumer(start="end").once() == 1
    world.order(2)
    assert world.consumer(start="beginning").once() == 2


def test_what_it_has_done_is_trimmed_and_nothing_else(tmp_path):
    """Its holds follow the store, where a substream has nothing, too (DESIGN-LOG §12, L6)."""
    world = World(tmp_path, orders=0)
    world.log.stream("short", 2, timedelta(0))
    world.log.publish("short", b"1", key="a")
    consumer = sharedlog.Consumer(world.log, "quick", ["short"], world.database.url)
    consumer.on("short", bytes)(lambda *_: None)
    assert consumer.once() == 1
    holds = world.log.holds("@consumer:quick")
    assert [each.lsn for each in holds] == [1, 1]
    again = sharedlog.Consumer(world.log, "quick", ["short"], world.database.url)
    again.on("short", bytes)(lambda *_: None)
    for each in range(3):
        world.log.publish("short", f"{each}", key="a")
    assert again.once() == 3
    assert {each.lsn for each in world.log.holds("@consumer:quick")} == {4}


def test_who_published_may_wait_until_it_is_consumed(tmp_path):
    """True once the effects are committed, and not before (DESIGN-LOG §14, T7)."""
    world = World(tmp_path, orders=0)
    order = json.dumps({"customer": "c0", "what": "one"})
    position = world.log.publish("orders", order, key="c0")

    def awaited(timeout_s):
        return sharedlog.await_consumer(
            world.log, "billing", "orders", position, timedelta(seconds=timeout_s)
        )

    assert not awaited(0)
    assert world.consumer().once() == 1
    assert awaited(0)
    position = world.log.publish("orders", order, key="c0")
    assert not awaited(0.05)
    consumer = world.consumer()
    running = threading.Thread(target=consumer.run)
    running.start()
    assert awaited(20)
    assert len(world.bills()["c0"]) == 2
    consumer.close()
    running.join(20)
    with pytest.raises(sharedlog.LogForked):
        sharedlog.await_consumer(
            world.log, "billing", "orders", position._replace(incarnation="another")
        )


def test_a_log_that_is_away_at_the_end_does_not_keep_a_consumer(tmp_path, monkeypatch):
    """Its leases end by themselves: it ends without an error."""
    world = World(tmp_path, orders=2)
    consumer = world.consumer()

    def away(*_):
        raise sharedlog.LogUnavailable("away")

    def close(*_):
        consumer.close()
        monkeypatch.setattr(type(world.log._engine), "commit", away)

    world.looks = close
    consumer.run()
    monkeypatch.undo()
    world.looks = lambda *_: None
    world.consumer().once()
    world.check()
