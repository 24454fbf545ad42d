"""A log is trimmed on a schedule by one of those that were asked to (DESIGN-LOG §12, L4, L6)."""

import itertools
import threading
from datetime import timedelta

import pytest

import sharedlog
from sharedlog._core.commit import Refused
from sharedlog._core.errors import Fenced
from sharedlog._core.fences import Fence, raise_fence
from sharedlog._core.trim import Committers, trim
from sharedlog._engines.driving import do
from sharedlog._log import trimming
from tests.helpers.waiting import until
from tests.sharedlog.logs import carry_out_from, to_commit


@pytest.fixture
def filled(log):
    log.stream("s", 1, timedelta(0))
    for number in range(10):
        log.publish("s", f"{number}")
    return log


def test_who_was_replaced_trims_no_more(filled):
    """By a fence, so that one that was only slow does not (L4)."""
    first = Fence("*trimmer", filled._run(raise_fence("*trimmer")))
    second = Fence("*trimmer", filled._run(raise_fence("*trimmer")))
    with pytest.raises(Fenced):
        filled._run(trim(Committers(), 10**17, 0, fence=first))
    assert filled._run(trim(Committers(), 10**17, 0, fence=second)).rows == 9


def test_a_trim_on_its_way_is_refused_once_another_took_over(filled):
    """Judged in the step that would declare it (L4)."""
    fence = Fence("*trimmer", filled._run(raise_fence("*trimmer")))
    rule = trim(Committers(), 10**17, 0, fence=fence)
    declaring = to_commit(filled._engine, rule)
    filled._run(raise_fence(fence.name))
    with pytest.raises(Refused) as caught:
        do(filled._engine, declaring)
    with pytest.raises(Fenced):
        carry_out_from(filled._engine, rule, caught.value)
    assert len(filled.follow("s").poll()) == 10


def test_wall_clocks_that_jump_move_the_turn_to_nobody(filled, url, monkeypatch):
    """Neither the one's that trims nor the other's: turns are measured, not dated (L4)."""
    every, told = timedelta(milliseconds=5), {"first": 0, "second": 0}

    def teller(name):
        def tell(found):
            assert not isinstance(found, Exception)
            told[name] += 1

        return tell

    days = itertools.cycle((0, 40, -40))
    monkeypatch.setattr(trimming, "_now_us", lambda: next(days) * 86_400_000_000 + 2 * 10**15)
    with filled.trim_every(every, told=teller("first")), sharedlog.open(url) as other:
        until(lambda: told["first"], "it trims")
        with other.trim_every(every, told=teller("second")):
            before = told["first"]
            until(lambda: told["first"] > before + 10, "it goes on")
            assert told["second"] == 0


def test_threads_of_two_programs_trim_in_turn(filled, url):
    """One does, and is followed by the other at once when it is closed; each round is told."""
    told = {"first": [], "second": []}
    came = {name: threading.Event() for name in told}

    def teller(name):
        def tell(found):
            told[name].append(found)
            came[name].set()

        return tell

    every = timedelta(milliseconds=20)
    first = filled.trim_every(every, told=teller("first"))
    assert came["first"].wait(30)
    with sharedlog.open(url) as other, other.trim_every(every, told=teller("second")):
        came["first"].clear()
        assert came["first"].wait(30)
        assert told["second"] == []
        first.close()
        assert came["second"].wait(30)
    assert not any(isinstance(each, Exception) for each in told["first"] + told["second"])
    assert len(filled.follow("s").poll()) == 1


def test_a_trimmer_whose_clock_jumped_ahead_takes_nothing_young(log, monkeypatch):
    """Three days, with a retention of a day: no clock alone makes anything old (L6)."""
    log.stream("s", 1)
    for number in range(20):
        log.publish("s", f"{number}")
    now_us = trimming._now_us
    monkeypatch.setattr(trimming, "_now_us", lambda: now_us() + 3 * 86_400_000_000)
    outcome = log.trim()
    assert (outcome.rows, outcome.kept_by) == (0, "the retention")
    assert len(log.follow("s").poll()) == 20


def test_a_retention_is_longer_than_the_streams_or_refused(filled):
    """And what is younger stays (L6)."""
    filled.stream("t", 1, timedelta(hours=1))
    with pytest.raises(sharedlog.InvalidRequest):
        filled.trim(timedelta(minutes=1))
    assert filled.trim().rows == 0
    assert filled.trim(timedelta(days=1)).rows == 0
    with pytest.raises(sharedlog.InvalidRequest):
        filled.trim_every(timedelta(0))
