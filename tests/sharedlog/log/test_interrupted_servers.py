"""An interrupt within a log's server's driver, or ours: the handle, and others, go on.

``make test`` tries some lines, and ``make test-long`` more.
"""

import contextlib

import pytest

import sharedlog
from tests.helpers.at_a_line import DRIVERS, OURS, Interrupted, at_a_line, bounded, interrupting
from tests.sharedlog.places import url_of
from tests.sharedlog.served import served

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
EXPECTED = (Interrupted, sharedlog.LogUnavailable)
SERVERS = ("redis", "etcd", "postgres", "served")


@pytest.fixture(params=SERVERS)
def log(request, tmp_path):
    """A log that a server has."""
    if request.param == "served":
        with (
            sharedlog.create("memory:") as inner,
            served(inner) as server,
            sharedlog.open(f"grpc://{server.address}") as outer,
        ):
            yield outer
        return
    with sharedlog.create(url_of(request.param, tmp_path, request.getfixturevalue)) as made:
        yield made


def _each(first, step, act):
    """Interrupt it at every so many lines, of ours and of drivers."""
    number = first
    while True:
        tracing = at_a_line(number, interrupting, files=(*OURS, *DRIVERS))
        with tracing as line, contextlib.suppress(*EXPECTED):
            act(number)
        yield number, line
        if not line.came:
            return
        number += step


def _publish(log, step):
    told = []
    for number, line in _each(1, step, lambda number: log.publish("s", f"mine {number}")):
        bounded(lambda: log.publish("s", f"another thread's {number}"))  # noqa: B023 - at once
        log.publish("s", f"after {number}")
        told += [f"another thread's {number}", f"after {number}"]
        assert line.number == number
    found = []
    while more := log.read("s", 0, found[-1] if found else None):
        found += more
    texts = [each.text for each in found]
    assert [each for each in texts if not each.startswith("mine")] == told
    assert len(set(texts)) == len(texts)


def _follow(log, step):
    found, published = [], []
    with log.follow("s", name="f") as follower:
        # Their texts are read without interrupts: what poll has returned is the test's.
        def read(_):
            found.extend(follower.poll(5))

        for number, line in _each(1, step, read):
            # Told by what is delivered, whatever was interrupted before.
            log.publish("s", str(number))
            published.append(str(number))
            while len(found) < len(published):
                found.extend(bounded(lambda: follower.poll(5)))
            assert [each.text for each in found] == published, line
            log.publish("s", f"next to {number}")
            published.append(f"next to {number}")
    assert published[: len(found)] == [each.text for each in found]


@pytest.mark.parametrize("step", [107, pytest.param(13, marks=pytest.mark.long)])
def test_an_interrupted_publish(log, step):
    """Its message is there once or not at all, and no reply is taken for another's (L2, L3)."""
    log.stream("s", 1)
    log.publish("s", "mine 0")
    bounded(lambda: _publish(log, step), 100)


@pytest.mark.parametrize("step", [83, pytest.param(29, marks=pytest.mark.long)])
def test_an_interrupted_follower(log, step):
    """What it was about to deliver it delivers next (L6)."""
    log.stream("s", 1)
    bounded(lambda: _follow(log, step), 100)
