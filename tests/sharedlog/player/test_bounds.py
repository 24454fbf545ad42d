"""Bounds of what a target costs that was away, or fails (DESIGN-LOG §15)."""

import json

import pytest

from sharedlog._core.player.feeder import Feeder
from sharedlog._core.steps import Scan
from sharedlog._target.lanes import Lane
from sharedlog.v1.target_pb2 import DeliveryAnswer
from tests.sharedlog.player.conftest import declared
from tests.sharedlog.player.fake_target import answer
from tests.sharedlog.player.test_player import CALL, in_order
from tests.sharedlog.target.player import message, told
from tests.sharedlog.target.shop import IDEMPOTENT, Shop, open_shop

QUEUE = 16
# A read of the recovery stream goes to the end of a commit, and some rows ahead.
AHEAD = 64


@pytest.fixture
def most(monkeypatch):
    """The most that waited in a feeder, and was in flight, whenever something was added."""
    found = {"queued": 0, "in_flight": 0}

    def measured(name):
        real = getattr(Feeder, name)

        def method(feeder, *arguments):
            result = real(feeder, *arguments)
            found["queued"] = max(found["queued"], feeder.queued)
            found["in_flight"] = max(found["in_flight"], feeder.in_flight)
            return result

        monkeypatch.setattr(Feeder, name, method)

    for name in ("fetch", "dispatch", "move_on", "take"):
        measured(name)
    return found


def rows(log):
    """The rows that players keep in the log, each with its bytes."""

    def scan():
        return (yield Scan("player/"))

    return {key: len(value) for key, value in log._place.run(scan()).items()}


def publish(log, count, start=0):
    """Numbered messages, ten in a commit, to both substreams."""
    producer = log.producer()
    for first in range(start, start + count, 10):
        with producer.transaction() as transaction:
            for number in range(first, min(first + 10, start + count)):
                body = f"{number}".encode()
                transaction.publish_call("orders", CALL, body, key=f"{number % 7}")


@pytest.mark.parametrize("streams", [True, False], ids=["stream", "batches"])
def test_what_a_target_missed_is_never_here_as_a_whole(house, log, most, streams):
    """In the player's queue, in flight, nor as rows of the log (P4)."""
    fake = house.target(streams=streams)
    player = house.player(declared(fake, queue=QUEUE, batch=8))
    publish(log, 10)
    fake.store.wait_for(lambda: len(fake.store.done) == 10)
    house.wait_for(lambda: len(rows(log)) >= 2)
    before = rows(log)
    fake.stop()
    publish(log, 1500, 10)
    assert most["queued"] <= QUEUE
    fake.start()
    fake.store.wait_for(lambda: len(fake.store.done) == 1510, 60)
    assert in_order(log, fake.store)
    assert most["queued"] <= QUEUE + AHEAD
    assert most["in_flight"] <= 500
    house.told_that(player, lambda told: told.lag == 0)
    after = rows(log)
    assert after.keys() == before.keys()
    assert sum(after.values()) < 2 * sum(before.values()) + 1000


def test_what_waits_behind_a_message_that_fails_is_not_here_either(house, log, most):
    """Nor is it, however long it fails, when its substream goes on by itself (P4, P7)."""
    failing = [True]

    def handler(called):
        bad = called.body == b"0" and failing
        return answer(DeliveryAnswer.FAILED, "no room") if bad else None

    fake = house.target(handler)
    house.player(declared(fake, queue=QUEUE, batch=8))
    bad = log.publish_call("orders", CALL, b"0", key="0").substream
    house.wait_for(lambda: fake.store.called)
    publish(log, 1500, 1)
    other = [each.text for each in log.read("orders", 1 - bad)]
    fake.store.wait_for(lambda: fake.store.bodies(f"orders/{1 - bad}") == other)
    assert fake.store.bodies(f"orders/{bad}") == []
    failing.clear()
    fake.store.wait_for(lambda: len(fake.store.done) == 1501, 60)
    assert in_order(log, fake.store)
    assert most["queued"] <= QUEUE + AHEAD


def test_what_is_told_of_a_target_does_not_grow_with_what_it_missed(house, log):
    """One row, of its substreams and no more (P7)."""
    fake = house.target()
    player = house.player(declared(fake))
    publish(log, 1000)
    fake.store.wait_for(lambda: len(fake.store.done) == 1000)
    house.told_that(player, lambda told: told.state == "N" and told.lag == 0)
    told_of = player.targets()["shop"]
    assert set(told_of.indexes) == {"orders/0", "orders/1"}
    assert len(json.dumps(told_of._asdict())) < 2000


def test_what_waits_in_a_target_is_bounded_though_messages_are_empty(tmp_path, monkeypatch):
    """Deliveries count for more than their bodies: many that say nothing are many, too (P4)."""
    most = [0]
    real = Lane.add

    def add(lane, item, size):
        found = real(lane, item, size)
        most[0] = max(most[0], len(lane))
        return found

    monkeypatch.setattr(Lane, "add", add)
    shop = Shop(tmp_path / "store.db")
    with open_shop("aio", f"sqlite:///{shop.path}", shop, queued_bytes=40_000) as target:
        stream = target.stream()
        empty = [
            message(lsn, lsn - 1 if lsn > 1 else None, IDEMPOTENT, body=b"1")
            for lsn in range(1, 2001)
        ]
        for each in empty:
            each.envelope = b""
        stream.send(*empty)
        answers = stream.answers(lambda each: each.kind != DeliveryAnswer.DONE)
        stream.finish()
    assert told(answers)[-1][0] in ("REFUSED", "UNAVAILABLE")
    assert most[0] < 200
