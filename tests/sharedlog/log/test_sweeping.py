"""Producers that fell silent in a transaction are retired, by one sweeper (DESIGN-LOG §13, C2)."""

import threading
from datetime import timedelta

import pytest

import sharedlog
from sharedlog._core.producers import OPEN
from sharedlog._log.sweeper import Sweeper
from tests.sharedlog.faulty import faulty
from tests.sharedlog.reads import texts

LARGE = [f"{number:04}" + "x" * 60_000 for number in range(40)]
MINUTE = timedelta(minutes=1)


class Clock:
    """Of one process."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def left_open(log):
    """A transaction with something pending, whose program does nothing more."""
    transaction = log.producer().transaction()
    for value in LARGE:
        transaction.publish("s", value)
    return transaction


def sweeper(log, clock):
    return Sweeper(log._place, MINUTE, clock=clock)


def test_who_is_silent_is_retired_and_who_appends_is_not(log):
    """After the time that the sweeper itself has measured, and not before (C2)."""
    log.stream("s", 1)
    silent, alive = left_open(log), left_open(log)
    clock = Clock()
    mine = sweeper(log, clock)
    assert (mine.round(), mine.works) == ([], True)
    clock.now += 59
    assert mine.round() == []
    for value in LARGE:
        alive.publish("s", value)
    clock.now += 1
    assert mine.round() == [silent._producer.sender.producer.id]
    clock.now += 30
    alive.commit()
    assert mine.round() == []
    with pytest.raises(sharedlog.ProducerRetired):
        silent.commit()
    assert len(texts(log, "s")) == 2 * len(LARGE)
    assert log._engine.scan(OPEN) == {}


def test_one_sweeper_works_until_another_sees_nothing_of_it(log, url):
    """Its beat is a sign of life; it learns at its next round that it was replaced (C2)."""
    log.stream("s", 1)
    with sharedlog.open(url) as other:
        clocks = Clock(), Clock()
        first, second = sweeper(log, clocks[0]), sweeper(other, clocks[1])
        first.round()
        for _ in range(5):
            clocks[1].now += 50
            first.round()
            second.round()
            assert (first.works, second.works) == (True, False)
        transaction = left_open(log)
        first.round()
        # The first one hangs; what it saw is old when it comes back.
        clocks[0].now += 600
        second.round()
        clocks[1].now += 60
        assert second.round() == []
        assert second.works
        for value in LARGE:
            transaction.publish("s", value)
        assert first.round() == []
        assert not first.works
        assert second.round() == []
        transaction.commit()
    assert len(texts(log, "s")) == 2 * len(LARGE)


def test_who_appends_between_the_look_and_the_retiring_is_not_retired(log):
    """The step that retires holds it to what was seen (C2)."""
    log.stream("s", 1)
    transaction = left_open(log)
    mine, engine = faulty(log)
    clock = Clock()
    sweeping = sweeper(mine, clock)
    sweeping.round()
    clock.now += 60

    def publish(commit) -> None:
        engine.before = lambda commit: None
        for value in LARGE:
            transaction.publish("s", value)

    engine.before = publish
    assert sweeping.round() == []
    transaction.commit()
    assert len(texts(log, "s")) == 2 * len(LARGE)


def test_a_sweeper_that_was_replaced_retires_nobody(log):
    """The step that retires is under its fence (C2, L4)."""
    log.stream("s", 1)
    transaction = left_open(log)
    mine, engine = faulty(log)
    clock = Clock()
    sweeping = sweeper(mine, clock)
    sweeping.round()
    clock.now += 60

    def replace(commit) -> None:
        log.raise_fence("sweeper")

    engine.before = replace
    assert sweeping.round() == []
    transaction.commit()
    assert len(texts(log, "s")) == len(LARGE)


def test_inside_its_context_a_thread_makes_the_rounds(log):
    """It outlives an outage of the log (C2)."""
    log.stream("s", 1)
    left_open(log)
    mine, engine = faulty(log)
    engine.faults = ["lost"] * 3
    with mine.sweeper(timedelta(milliseconds=50)):
        while log._engine.scan(OPEN):
            threading.Event().wait(0.005)
    assert texts(log, "s") == []
    assert engine.faults == []
