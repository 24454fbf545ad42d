"""Events at decisions: who looks into a program's log finds each of them (DESIGN §9)."""

from datetime import timedelta

import pytest

import sharedlog
import sharedlog.aio
from sharedlog._log.sweeper import Sweeper


@pytest.fixture
def events(caplog):
    """The names of the events that were logged since it was asked last."""
    caplog.set_level("INFO", "sharedlog")

    def told():
        found = [each.getMessage() for each in caplog.records if each.name == "sharedlog"]
        caplog.clear()
        return [each.split("'")[1] for each in found]

    return told


@pytest.fixture
def log():
    with sharedlog.create("memory:") as made:
        made.stream("s", 1, timedelta(0))
        yield made


def test_fences_and_producers(log, events):
    """A fence raised, a producer retired or forgotten by an operator's word (L3, L4, C2)."""
    log.raise_fence("f")
    assert events() == ["fence_raised"]
    transaction = log.producer().transaction()
    transaction.publish("s", b"one")
    transaction.pend()
    assert log.retire(1) == 1
    assert events() == ["producer_retired"]
    with pytest.raises(sharedlog.ProducerRetired):
        transaction.commit()
    assert events() == ["transaction_lost"]
    with pytest.raises(sharedlog.UnknownProducer):
        log.retire(77)
    log.producer("relay").publish("s", b"one")
    assert (log.forget("relay"), log.forget("relay")) == (1, 0)
    assert events() == ["producer_forgotten"]
    assert log.producer("relay").last() == 0
    with pytest.raises(sharedlog.InvalidRequest):
        log.forget("no name")


def test_sweepers(log, events):
    """Which process sweeps, and whom it retires (C2)."""
    now = [0.0]
    sweeper = Sweeper(log._place, timedelta(minutes=10), clock=lambda: now[0])
    transaction = log.producer().transaction()
    transaction.publish("s", b"one")
    transaction.pend()
    for _ in range(3):
        assert sweeper.round() == []
        now[0] += 200
    assert sweeper.round() == [transaction._producer.sender.producer.id]
    assert events() == ["sweeper_took_over", "producer_retired"]
    with pytest.raises(sharedlog.ProducerRetired):
        transaction.commit()


def test_holds_and_trims(log, events, monkeypatch):
    """A trim, a hold that is overdue, dropped, forgotten, and what its follower is told (L6)."""
    following = log.follow("s", name="billing")
    for each in (b"1", b"2", b"3"):
        log.publish("s", each)
    following.done(following.poll()[1])
    following.close()
    log.trim()
    assert events() == ["log_trimmed"]
    monkeypatch.setattr("sharedlog._log.trimming._now_us", lambda: 1 << 60)
    log.trim()
    assert events() == ["holds_overdue"]
    behind = log.follow("s", name="billing")
    log.drop_hold("billing")
    assert log.drop_hold("billing") == []
    assert events() == ["hold_dropped"]
    behind.done(behind.poll()[0])
    with pytest.raises(sharedlog.TrimmedLog):
        behind.close()
    assert events() == ["follower_lost_messages"]
    log.forget_hold("billing")
    assert events() == ["hold_forgotten"]


def test_a_follower_that_begins_on_trimmed_ground(log, events):
    """Which LSNs it lost is said where it begins, too, with a name or without one (L6)."""
    read, _, _, kept = (log.publish("s", each) for each in (b"1", b"2", b"3", b"4"))
    log.trim(timedelta(0))
    assert events() == ["log_trimmed"]
    for name in (None, "billing"):
        with pytest.raises(sharedlog.TrimmedLog) as caught:
            next(log.follow("s", after=read, name=name))
        assert caught.value.first == kept.lsn
        assert caught.value.lost is not None
        assert caught.value.lost[1] == kept.lsn - 1
        assert events() == ["follower_lost_messages"]


def test_forks(log, events):
    """A position of another incarnation is said where a follower begins with it (§12)."""
    with sharedlog.create("memory:") as other:
        other.stream("s", 1)
        position = other.publish("s", b"x")
    copied = position._replace(incarnation=log.incarnation)
    log.publish("s", b"y")
    with pytest.raises(sharedlog.LogForked):
        log.follow("s", after=copied)
    assert events() == ["log_forked"]


async def test_operators_of_an_event_loop(events):
    """The same words from asyncio (DESIGN §9, thin shells)."""
    async with await sharedlog.aio.create("memory:") as log:
        await log.stream("s", 1)
        await log.producer("relay").publish("s", b"one")
        assert await log.forget("relay") == 1
        await log.publish("s", b"two")
        assert await log.retire(1) == 1
    assert events() == ["producer_forgotten", "producer_retired"]
