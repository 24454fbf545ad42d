"""A forked child has its own log and its own producers, or none (DESIGN-LOG §12, L3)."""

import gc
import os
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

import sharedlog
from tests.sharedlog.faulty import faulty
from tests.sharedlog.places import SHARED, url_of
from tests.sharedlog.reads import texts

LARGE = [f"{number:04}" + "x" * 60_000 for number in range(40)]


def in_child(called: Callable[[], object]) -> object:
    """What it returns, or raises, in a forked child."""
    reading, writing = os.pipe()
    # What other tests left is not to be finalized in the child: it may want a lock that a thread
    # of theirs had.
    gc.disable()
    child = os.fork()
    if child:
        gc.enable()
    else:
        try:
            found = called()
        except Exception as error:  # noqa: BLE001 - it is told
            found = error
        try:
            os.write(writing, pickle.dumps(found))
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as told:
        found = told.read()
    os.waitpid(child, 0)
    return pickle.loads(found)  # noqa: S301 - our own


def test_a_child_is_refused_what_it_inherited(log):
    """Even while a thread of the parent publishes: nobody hangs (L3)."""
    log.stream("s", 1)
    mine, engine = faulty(log)
    producer = mine.producer()
    open_one = producer.transaction()
    for value in LARGE:
        open_one.publish("s", value)
    under_way, release = threading.Event(), threading.Event()

    def hold(commit) -> None:
        under_way.set()
        assert release.wait(60)

    engine.before = hold
    with ThreadPoolExecutor(1) as pool:
        publishing = pool.submit(mine.publish, "s", "a")
        assert under_way.wait(60)
        uses = [
            lambda: mine.publish("s", "b"),
            lambda: mine.stream("t"),
            lambda: mine.producer(),
            lambda: producer.transaction(),
            lambda: producer.publish("s", "b"),
            lambda: open_one.commit(),
        ]
        for use in uses:
            error = in_child(use)
            assert isinstance(error, sharedlog.LogStopped), error
            assert error.appended is False
        assert in_child(lambda: mine.close()) is None
        release.set()
        publishing.result(60)
    engine.before = lambda commit: None
    open_one.commit()
    assert texts(log, "s") == sorted(["a", *LARGE])


@pytest.mark.parametrize("engine", SHARED)
def test_parent_and_child_publish_by_logs_of_their_own(engine, tmp_path, request):
    """Each opened after the fork; their producers are two (L3)."""
    url = url_of(engine, tmp_path, request.getfixturevalue)
    with sharedlog.create(url) as log:
        log.stream("s", 1)

    def publish(name: str) -> str:
        with sharedlog.open(url) as mine:
            positions = [mine.publish("s", f"{name}{number}") for number in range(10)]
            with mine.producer().transaction() as transaction:
                transaction.publish("s", f"{name}T")
        return str(positions[-1])

    child = in_child(lambda: publish("child"))
    assert sharedlog.Position.parse(child).lsn >= 10
    publish("parent")
    with sharedlog.open(url) as log:
        expected = [f"{name}{end}" for name in ("child", "parent") for end in [*range(10), "T"]]
        assert texts(log, "s") == sorted(expected)
