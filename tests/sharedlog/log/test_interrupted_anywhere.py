"""An interrupt at any line of ours, in each operation of a log: nothing lost, doubled or hung.

An operation is repeated with an exception at its first line, its second one, and so on. Each time
the handle, other threads and the log are looked at. ``make test`` tries some lines, and
``make test-long`` all.
"""

import secrets
import sqlite3
import threading
from contextlib import closing
from datetime import timedelta

import pytest

import sharedlog
from tests.helpers.at_a_line import Interrupted, at_a_line, bounded, interrupting
from tests.sharedlog.faulty import answers_lost
from tests.sharedlog.reads import texts

# Every so many lines.
STEPS = {"memory": 47, "sqlite": 349}
# Of an interrupt within a finalizer, which Python tells of.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
MESSAGES = [str(each) for each in range(6)]


class Handle:
    """A log with one interrupted operation."""

    def __init__(self, url, number):
        self.url, self.path = url, url.removeprefix("sqlite:///")
        self.log = sharedlog.create(url)
        self.log.stream("s", 1)
        self._number = number
        self.line = None

    def interrupted(self, act):
        """What an operation returns, None where it was interrupted."""
        with at_a_line(self._number, interrupting) as self.line:
            try:
                return act()
            except (Interrupted, sharedlog.LogUnavailable):
                return None

    def goes_on(self):
        """Whoever publishes, in another thread, too, is not kept waiting."""
        bounded(lambda: self.log.publish("s", "another thread's"))
        self.log.publish("s", "after")


def publish(handle):
    """It is in the log or it is not, and all later ones are, in order."""
    log = handle.log
    log.publish("s", "before")
    handle.interrupted(lambda: log.publish("s", "mine"))
    handle.goes_on()
    found = [each.text for each in log.read("s", 0)]
    assert [each for each in found if each != "mine"] == ["before", "another thread's", "after"]
    assert found.count("mine") <= 1
    assert "mine" not in found or found[1] == "mine"


def _published(log):
    for each in MESSAGES:
        log.publish("s", each)


def iterate(handle):
    """``next`` delivers what it was interrupted with, and its hold is not beyond that."""
    log = handle.log
    _published(log)
    found = []
    with log.follow("s", name="f") as follower:
        first = handle.interrupted(lambda: next(follower))
        found += [first] if first else []
        while len(found) < len(MESSAGES):
            found.append(bounded(lambda: next(follower)))
            follower.done(found[-1])
        assert [each.text for each in found] == MESSAGES
    _goes_on_behind(log)


def poll(handle):
    """As ``next``."""
    log = handle.log
    _published(log)
    with log.follow("s", name="f") as follower:
        found = handle.interrupted(lambda: follower.poll(1)) or []
        while len(found) < len(MESSAGES):
            more = follower.poll(5)
            assert more
            found += more
        assert [each.text for each in found] == MESSAGES
        follower.done(found[-1])
    _goes_on_behind(log)


def _goes_on_behind(log):
    with log.follow("s", name="f") as follower:
        assert follower.poll() == []
        log.publish("s", "the next")
        assert bounded(lambda: next(follower)).text == "the next"


def follow(handle):
    """A follower's whole life: who comes next under its name gets all that it was not given."""
    log = handle.log
    _published(log)
    found = []

    def life():
        with log.follow("s", name="f") as follower:
            for _ in range(2):
                found.append(next(follower))
                follower.done(found[-1])

    handle.interrupted(life)
    with log.follow("s", name="f") as follower:
        more = [each.text for each in follower.poll(5)]
    assert more == MESSAGES[-len(more) :]
    assert len(more) >= len(MESSAGES) - len(found)


def close(handle):
    """It can be closed again, and then its hold is behind what was done."""
    log = handle.log
    _published(log)
    follower = log.follow("s", name="f")
    next(follower)
    follower.done(next(follower))
    handle.interrupted(follower.close)
    follower.close()
    with log.follow("s", name="f") as follower:
        assert [each.text for each in follower.poll(5)] == MESSAGES[2:]


def _transaction(handle, name):
    log = handle.log
    producer = log.producer(name)
    producer.publish("s", "before")

    def transact():
        with producer.transaction() as transaction:
            transaction.publish("s", "a")
            transaction.publish("s", "b")

    def go_on():
        try:
            return producer.publish("s", "after")
        except sharedlog.InvalidRequest as error:
            # Told once.
            if "was dropped" not in str(error):
                raise
            return producer.publish("s", "after")

    handle.interrupted(transact)
    bounded(go_on)
    producer.publish("s", "at last")
    found = [each.text for each in log.read("s", 0)]
    assert found in (
        ["before", "a", "b", "after", "at last"],
        ["before", "after", "at last"],
    )


def transaction(handle):
    """All of it or nothing, and its producer goes on."""
    _transaction(handle, None)


def named_transaction(handle):
    """Under a name, too, whose next number is known."""
    _transaction(handle, "n")


def trim(handle):
    """It is done, or can be done again; what is kept is whole."""
    log = handle.log
    _published(log)
    handle.interrupted(log.trim)
    log.trim()
    handle.goes_on()
    assert texts(log, "s") == sorted([*MESSAGES, "another thread's", "after"])


def settle(handle):
    """It tells where the message is, and so it does when it is asked again."""
    with sharedlog.open(handle.url, timeout=timedelta(seconds=0.02)) as log:
        log.publish("s", "before")
        with answers_lost(log), pytest.raises(sharedlog.AppendUnknown) as unknown:
            log.publish("s", "mine")
        position = handle.interrupted(lambda: log.settle(unknown.value))
        assert position in (None, log.settle(unknown.value))
        log.publish("s", "next")
    assert [each.text for each in handle.log.read("s", 0)] == ["before", "mine", "next"]


def append_in(handle):
    """With the transaction, or not at all; nobody waits for it afterwards."""
    log = handle.log
    log.publish("s", "before")

    def append():
        with closing(sqlite3.connect(handle.path)) as connection, connection:
            log.append_in(connection, "s", "mine")
        return True

    appended = handle.interrupted(append)
    handle.goes_on()
    found = [each.text for each in log.read("s", 0)]
    after = ["another thread's", "after"]
    assert found in (["before", "mine", *after], ["before", *after])
    assert "mine" in found or not appended


def outbox(handle):
    """With the transaction, or not at all; a relay that is interrupted goes on."""
    log, path = handle.log, f"{handle.path}.box"

    def put(*texts):
        with closing(sqlite3.connect(path)) as connection, connection:
            sharedlog.create_outbox(connection, log)
            for each in texts:
                sharedlog.outbox(connection, log).publish("s", each)

    def act():
        put("mine")
        relay.round()
        return True

    put("before")
    with closing(sharedlog.relay(f"sqlite:///{path}", log)) as relay:
        acted = handle.interrupted(act)
        put("next")
        relay.round()
        relay.round()
    handle.goes_on()
    found = [each.text for each in log.read("s", 0)]
    after = ["next", "another thread's", "after"]
    assert found in (["before", "mine", *after], ["before", *after])
    assert "mine" in found or not acted


OPERATIONS = [
    *(publish, iterate, poll, follow, close, transaction, named_transaction, trim),
    *(settle, append_in, outbox),
]
# What is in transactions of the application's.
OVER_FILES = (append_in, outbox)
EVERYWHERE = pytest.mark.parametrize(
    ("engine", "operation"),
    [
        pytest.param(engine, each, id=f"{each.__name__}-{engine}")
        for engine in STEPS
        for each in OPERATIONS
        if engine == "sqlite" or each not in OVER_FILES
    ],
)


def _walk(engine, operation, directory, step):
    """Interrupt it at every so many lines; how many it has."""
    number = 1
    while True:
        name = secrets.token_hex(4)
        url = f"memory:{name}" if engine == "memory" else f"sqlite:///{directory}/{name}.db"
        handle = Handle(url, number)
        try:
            with handle.log:
                operation(handle)
        except BaseException as error:
            raise AssertionError(f"interrupted at {handle.line}: {error!r}") from error
        if not handle.line.came:
            return number
        number += step


@EVERYWHERE
def test_an_interrupt_at_some_lines(tmp_path, engine, operation):
    """See above (DESIGN-LOG §12, L2, L3, L6)."""
    lines = bounded(lambda: _walk(engine, operation, tmp_path, STEPS[engine]), 100)
    assert lines > 100


@pytest.mark.long
@pytest.mark.timeout(900)
@EVERYWHERE
def test_an_interrupt_at_every_line(tmp_path, engine, operation):
    """See above (DESIGN-LOG §12, L2, L3, L6)."""
    bounded(lambda: _walk(engine, operation, tmp_path, 1), 800)


def test_an_interrupted_main_thread(tmp_path):
    """By a real signal, while it waits for a message: the next call gets that."""
    del tmp_path
    import signal

    with sharedlog.create("memory:") as log:
        log.stream("s", 1)
        with log.follow("s") as follower:
            before = signal.signal(signal.SIGALRM, lambda *_: interrupting())
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.05)
                with pytest.raises(Interrupted):
                    next(follower)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, before)
            threading.Thread(target=log.publish, args=("s", "late"), daemon=True).start()
            assert next(follower).text == "late"
