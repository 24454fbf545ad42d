"""Producers that fell silent in a transaction are retired, by one sweeper (DESIGN-LOG §13, C2)."""

import threading
from datetime import timedelta

import pytest

import sharedlog
from sharedlog._core.fences import raise_fence
from sharedlog._core.producers import OPEN
from sharedlog._core.query.joining import begin_write, join
from sharedlog._core.query.state import Ticket, all_queries, draw_plan
from sharedlog._log.sweeper import Sweeper
from tests.helpers.waiting import until
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


def rounds(clock, seconds, *sweepers):
    """Let time pass, in which they make their rounds; what the last ones of each retired."""
    for _ in range(seconds // 5):
        clock.now += 5
        retired = [each.round() for each in sweepers]
    return retired


def test_who_is_silent_is_retired_and_who_appends_is_not(log):
    """After the time that the sweeper itself has measured, and not before (C2)."""
    log.stream("s", 1)
    silent, alive = left_open(log), left_open(log)
    clock = Clock()
    mine = sweeper(log, clock)
    assert (mine.round(), mine.works) == ([], True)
    assert rounds(clock, 55, mine) == [[]]
    for value in LARGE:
        alive.publish("s", value)
    assert rounds(clock, 5, mine) == [[silent._producer.sender.producer.id]]
    rounds(clock, 30, mine)
    alive.commit()
    assert mine.round() == []
    with pytest.raises(sharedlog.ProducerRetired):
        silent.commit()
    assert len(texts(log, "s")) == 2 * len(LARGE)
    assert log._engine.scan(OPEN) == {}


def test_a_write_whose_driver_was_killed_is_kept_for_a_day(log):
    """It may wait for its first task for hours; of what has a name nothing is removed (C2)."""
    log._run(begin_write("write-1"))
    log._run(join(Ticket("daily", "job", "", log._run(draw_plan()), 0)))
    clock = Clock()
    mine = sweeper(log, clock)
    for _ in range(23):
        clock.now += 3600
        mine.round()
    assert {each.name for each in log._run(all_queries())} == {"daily", "write-1"}
    for _ in range(2):
        clock.now += 3600
        mine.round()
    assert {each.name for each in log._run(all_queries())} == {"daily"}


def test_one_sweeper_works_until_another_sees_nothing_of_it(log, url):
    """Its beat is a sign of life; it learns at its next round that it was replaced (C2)."""
    log.stream("s", 1)
    with sharedlog.open(url) as other:
        clocks = Clock(), Clock()
        first, second = sweeper(log, clocks[0]), sweeper(other, clocks[1])
        first.round()
        rounds(clocks[1], 200, first, second)
        assert (first.works, second.works) == (True, False)
        transaction = left_open(log)
        first.round()
        # The first one hangs; what it saw is old when it comes back.
        clocks[0].now += 600
        assert rounds(clocks[1], 65, second) == [[]]
        assert second.works
        for value in LARGE:
            transaction.publish("s", value)
        assert first.round() == []
        assert not first.works
        assert second.round() == []
        transaction.commit()
    assert len(texts(log, "s")) == 2 * len(LARGE)


def test_time_in_which_a_sweeper_could_not_look_does_not_count(log):
    """The log may have been away for the producer, too, or both were stopped (C2)."""
    log.stream("s", 1)
    transaction = left_open(log)
    clock = Clock()
    mine = sweeper(log, clock)
    rounds(clock, 50, mine)
    clock.now += 3600
    assert mine.round() == []
    assert rounds(clock, 55, mine) == [[]]
    assert rounds(clock, 5, mine) == [[transaction._producer.sender.producer.id]]


def test_who_appends_between_the_look_and_the_retiring_is_not_retired(log):
    """The step that retires holds it to what was seen (C2)."""
    log.stream("s", 1)
    transaction = left_open(log)
    mine, engine = faulty(log)
    clock = Clock()
    sweeping = sweeper(mine, clock)
    rounds(clock, 60, sweeping)
    clock.now += 5

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
    rounds(clock, 60, sweeping)
    clock.now += 5

    def replace(commit) -> None:
        log._run(raise_fence("*sweeper"))

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


def test_a_sweeper_is_entered_once(log):
    """A second time, and when it was closed, is refused by a typed error (C2)."""
    with log.sweeper() as mine, pytest.raises(sharedlog.InvalidRequest, match="once"):
        mine.__enter__()
    with pytest.raises(sharedlog.InvalidRequest, match="once"), mine:
        pass


def test_a_round_may_come_once_in_a_lifetime(log):
    """A time longer than a thread can wait is for ever; it ends when it is closed (C2)."""
    with log.sweeper(timedelta.max) as longest, log.trim_every(timedelta.max):
        until(lambda: longest.works, "it looked")
    # Its thread lived, and has let go of the duty.
    assert not longest.works
