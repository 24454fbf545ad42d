"""A call of the log from within another one of the same thread: refused at once, or done."""

import asyncio
import gc
import logging
import signal
import sqlite3
import threading
from contextlib import closing, contextmanager
from datetime import timedelta

import pytest

import sharedlog
import sharedlog.aio
from sharedlog._log.appender import Publication
from tests.helpers.at_a_line import at_a_line, bounded
from tests.helpers.waiting import until
from tests.sharedlog.reads import texts


class Within:
    """Publishes, from within something; keeps what is published, and what is refused."""

    def __init__(self, log):
        self.log = log
        self.told = []
        self.refused = []

    def __call__(self, *_):
        text = f"within {len(self.told) + len(self.refused)}"
        try:
            self.log.publish("s", text)
        except sharedlog.ReentrantUse as error:
            self.refused.append(error.appended)
        else:
            self.told.append(text)


def _appends(file, function):
    return file.endswith("/appender.py") and function == "append"


def _note_of(directory):
    names = [each for each in directory.iterdir() if b"commits" in each.read_bytes()[:200]]
    (note,) = names
    return note


def _others_publish(log):
    log.publish("s", "another thread's")


@contextmanager
def _events_handled_by(handle):
    class Handler(logging.Handler):
        def emit(self, record):
            handle()

    handler = Handler()
    logging.getLogger("sharedlog").addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger("sharedlog").removeHandler(handler)


def _by_finalizer(within):
    class Dropped:
        def __del__(self):
            within()

    dropped = Dropped()
    dropped.itself = dropped
    del dropped
    # The youngest alone: a whole process is much.
    gc.collect(0)


@pytest.mark.parametrize("engine", ["memory", "sqlite"])
@pytest.mark.parametrize("by", ["call", "finalizer"])
def test_a_publish_at_any_line_of_a_publish(engine, by, tmp_path):
    """Refused with nothing sent, or done: the outer one, and all others, go on (L3)."""
    step = 1 if engine == "memory" else 5
    url = "memory:" if engine == "memory" else f"sqlite:///{tmp_path / 'log.db'}"
    with sharedlog.create(url) as log:
        log.stream("s", 1)
        within = Within(log)
        act = within if by == "call" else lambda: _by_finalizer(within)

        def walk():
            told, number = [], 1 - step
            while True:
                number += step
                with at_a_line(number, act) as line:
                    log.publish("s", f"outer {number}")
                told.append(f"outer {number}")
                if not line.came:
                    return told

        told = bounded(walk, 60)
        bounded(lambda: _others_publish(log))
        assert set(within.refused) == {False}
        assert within.told
        assert len(within.refused) + len(within.told) == len(told) - 1
        assert texts(log, "s") == sorted([*told, *within.told, "another thread's"])


def test_a_signals_handler_that_publishes_while_its_thread_does(tmp_path):
    """At each tenth line of ours (L3). The thread is the main one, which signals reach."""
    with sharedlog.create(f"sqlite:///{tmp_path / 'log.db'}") as log:
        log.stream("s", 1)
        within = Within(log)
        before = signal.signal(signal.SIGUSR1, within)
        told, number = [], 1
        try:
            while True:
                with at_a_line(number, lambda: signal.raise_signal(signal.SIGUSR1)) as line:
                    log.publish("s", f"outer {number}")
                told.append(f"outer {number}")
                number += 10
                if not line.came:
                    break
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert set(within.refused) == {False}
        assert texts(log, "s") == sorted([*told, *within.told])


def test_a_logging_handler_that_publishes_our_own_event(tmp_path):
    """``commit_note_gone``: the one that it is about is published, and so are all later ones."""
    path = tmp_path / "log.db"
    with sharedlog.create(f"sqlite:///{path}") as log:
        log.stream("s", 1)
        log.publish("s", "before")
        within = Within(log)
        _note_of(tmp_path).unlink()
        with _events_handled_by(within):
            bounded(lambda: log.publish("s", "outer"))
        assert within.refused == [False]
        bounded(lambda: _others_publish(log))
        assert texts(log, "s") == ["another thread's", "before", "outer"]


async def test_a_logging_handler_that_publishes_on_the_event_loop(tmp_path):
    """In the thread that appends, and waits for it: refused (L3); the tasks go on."""
    path = tmp_path / "log.db"
    async with await sharedlog.aio.create(f"sqlite:///{path}") as log:
        await log.stream("s", 1)
        await log.publish("s", "before")
        loop, refused = asyncio.get_running_loop(), []

        def handle():
            within = asyncio.run_coroutine_threadsafe(log.publish("s", "within"), loop)
            refused.append(within.exception(20))

        _note_of(tmp_path).unlink()
        with _events_handled_by(handle):
            async with asyncio.timeout(30):
                await log.publish("s", "outer")
        assert [type(each) for each in refused] == [sharedlog.ReentrantUse]
        async with asyncio.timeout(20):
            await log.publish("s", "after")
        found = await log.read("s", 0)
        assert [each.text for each in found] == ["before", "outer", "after"]


async def test_a_transaction_within_one_of_the_same_task(tmp_path):
    """Refused, as of threads, instead of waiting for itself (DESIGN-LOG §13)."""
    async with await sharedlog.aio.create("memory:") as log:
        await log.stream("s", 1)
        producer = log.producer()
        async with asyncio.timeout(20), producer.transaction() as transaction:
            await transaction.publish("s", "outer")
            with pytest.raises(sharedlog.InvalidRequest, match="is open"):
                await producer.publish("s", "within")
        async with asyncio.timeout(20):
            await producer.publish("s", "after")
        assert [each.text for each in await log.read("s", 0)] == ["outer", "after"]


def test_an_append_in_within_one_on_its_connection(tmp_path):
    """Refused with nothing written, or done before or after it (L3)."""
    path = tmp_path / "log.db"
    with (
        sharedlog.create(f"sqlite:///{path}") as log,
        closing(sqlite3.connect(path, check_same_thread=False)) as connection,
    ):
        log.stream("s", 1)
        told, refused = [], []

        def within():
            try:
                log.append_in(connection, "s", f"within {len(told)}")
            except sharedlog.ReentrantUse as error:
                refused.append(error.appended)
            else:
                told.append(f"within {len(told)}")

        def walk():
            number, line = 1, None
            while line is None or line.came:
                with connection, at_a_line(number, within) as line:
                    log.append_in(connection, "s", f"outer {number}")
                told.append(f"outer {number}")
                number += 7
            return number

        assert bounded(walk, 30) > 300
        assert set(refused) == {False}
        assert texts(log, "s") == sorted(told)


def test_a_follower_that_is_asked_within_itself(tmp_path):
    """``done`` and ``close`` by a signal's handler, at any line of ``poll``: no hang (L6)."""
    with sharedlog.create("memory:") as log:
        log.stream("s", 1)
        refused = []

        def walk():
            number = 0
            while True:
                number += 1
                position = log.publish("s", str(number))
                with log.follow("s", after="end", name=f"n{number}") as follower:
                    position = log.publish("s", str(number))

                    def act(follower=follower, number=number):
                        try:
                            follower.close()
                        except sharedlog.ReentrantUse:
                            refused.append(number)

                    with at_a_line(number, act) as line:
                        found = follower.poll()
                    assert [each.text for each in found] in ([], [str(number)])
                    if not line.came:
                        return position

        bounded(walk, 60)
        assert refused


@pytest.mark.parametrize("rides", [False, True], ids=["turn", "outcome"])
def test_a_wait_for_another_threads_append_ends(rides, monkeypatch):
    """After the log's own time, as its timeout: another thread's lead is no reentrance (L3)."""
    monkeypatch.setattr("sharedlog._log.publisher.LONGEST_S", 0.0)
    with sharedlog.create("memory:", timeout=timedelta(seconds=0.2)) as log:
        log.stream("s", 1)
        publisher, told = log._publisher, []

        def another():
            try:
                log.publish("s", "within")
            except sharedlog.LogUnavailable as error:
                told.append(error)

        thread = threading.Thread(target=another, daemon=True)
        gather, append = publisher._gather, publisher._appender.append

        def gathering(mine):
            if rides and not thread.ident:
                thread.start()
                until(lambda: publisher._lead.waiting, "it waits")
            return gather(mine)

        def appending(group):
            if not rides:
                thread.start()
            thread.join(20)
            publisher._appender.append = append
            append(group)

        publisher._gather, publisher._appender.append = gathering, appending
        bounded(lambda: log.publish("s", "outer"))
        (error,) = told
        if rides:
            assert isinstance(error, sharedlog.AppendUnknown)
            assert log.settle(error) is not None
        else:
            assert error.appended is False
        assert texts(log, "s") == ["outer", "within"][: 1 + rides]


def test_a_settle_within_a_publish_says_nothing_of_the_message():
    """It is refused, and the message may be there (L3)."""
    with sharedlog.create("memory:") as log:
        log.stream("s", 1)
        publisher, told = log._publisher, []
        publication = Publication(log._placing.placed("s", "other", None, None, None))
        publisher._appender.left(publication)

        def act():
            with pytest.raises(sharedlog.ReentrantUse) as raised:
                publisher.settle(publication.ticket)
            told.append(raised.value.appended)

        with at_a_line(1, act, _appends):
            log.publish("s", "outer")
        assert told == [None]
