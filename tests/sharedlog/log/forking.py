"""A process that forks with a log open: ``... -m tests.sharedlog.log.forking SCENARIO URL``.

Of its own, since whoever forks beside the threads of other tests' servers may wait in the child for
a lock that one of these held. It makes the log; it exits with 0 if all was as it should be.
"""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import sqlite3
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg

import sharedlog
import sharedlog.aio
from tests.helpers.forked import Forked
from tests.sharedlog.faulty import faulty
from tests.sharedlog.reads import texts

LARGE = [f"{number:04}" + "x" * 60_000 for number in range(40)]


def forks(scenario: str, url: str) -> None:
    """Have a process do it; raises what it printed if something was not as it should be."""
    arguments = ["tests.sharedlog.log.forking", scenario, url]
    with tempfile.TemporaryFile() as errors:
        with Forked(arguments, stderr=errors, text=True) as process:
            try:
                code = process.wait(100)
            finally:
                process.kill()
            said = process.stdout.read()
        errors.seek(0)
        assert code == 0, said + errors.read().decode()


def _in_child(called: Callable[[], object]) -> object:
    """What it returns, or raises, in a forked child."""
    reading, writing = os.pipe()
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


def _refused(use: Callable[[], object]) -> None:
    error = _in_child(use)
    assert type(error) is sharedlog.LogStopped, error
    assert error.appended is False


def _publisher(url: str) -> None:
    """It publishes, has a transaction open, and a thread's message is on its way."""
    with sharedlog.create(url) as log:
        log.stream("s", 1)
        mine, engine = faulty(log)
        producer = mine.producer()
        open_one = producer.transaction()
        for value in LARGE:
            open_one.publish("s", value)
        under_way, release = threading.Event(), threading.Event()

        def hold(commit: object) -> None:
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
                _refused(use)
            assert _in_child(lambda: mine.close()) is None
            release.set()
            publishing.result(60)
        engine.before = lambda commit: None
        open_one.commit()
        assert texts(log, "s") == sorted(["a", *LARGE])


def _follower(url: str) -> None:
    """It follows, and another thread of its does so at the moment of the fork.

    Two messages are read ahead.
    """
    with sharedlog.create(url) as log:
        log.stream("s", 1)
        for text in "abc":
            log.publish("s", text)
        following = log.follow("s")
        assert next(following).text == "a"
        uses = [lambda: next(following), following.poll, lambda: log.read("s", 0)]
        with following._lock:
            if url.startswith("sqlite"):
                uses.append(lambda: sharedlog.open(url))
            for use in uses:
                _refused(use)
        assert [next(following).text for _ in range(2)] == ["b", "c"]


def _both(url: str) -> None:
    """Parent and child publish, each by a log that it opened after the fork."""

    def create() -> None:
        with sharedlog.create(url) as log:
            log.stream("s", 1)

    if url.startswith("etcd"):
        # A process that has used gRPC, which closes channels in threads, does not fork.
        assert _in_child(create) is None
    else:
        create()

    def publish(name: str) -> str:
        with sharedlog.open(url) as mine:
            positions = [mine.publish("s", f"{name}{number}") for number in range(10)]
            with mine.producer().transaction() as transaction:
                transaction.publish("s", f"{name}T")
        return str(positions[-1])

    child = _in_child(lambda: publish("child"))
    assert isinstance(child, str), child
    assert sharedlog.Position.parse(child).lsn >= 10
    publish("parent")
    with sharedlog.open(url) as log:
        expected = [f"{name}{end}" for name in ("child", "parent") for end in [*range(10), "T"]]
        assert texts(log, "s") == sorted(expected)


def _append_in(url: str) -> None:
    """It forks in a transaction that a message commits with; the child inherits the connection."""
    place, _, _ = url.partition("?")
    with sharedlog.create(url) as log:
        log.stream("s", 1)
        connection: Any
        if url.startswith("sqlite"):
            connection = sqlite3.connect(place.removeprefix("sqlite:///"), isolation_level=None)
        else:
            connection = psycopg.connect(place, autocommit=True)
        connection.execute("BEGIN")
        log.append_in(connection, "s", "first")
        _refused(lambda: log.append_in(connection, "s", "child"))
        log.append_in(connection, "s", "second")
        connection.execute("COMMIT")
        _refused(lambda: log.append_in(connection, "s", "child"))
        connection.close()
        assert texts(log, "s") == ["first", "second"]


def _aio(url: str) -> None:
    """A loop's log has a transaction open, and a follower that has read ahead."""
    asyncio.run(_aio_uses(url))


async def _aio_uses(url: str) -> None:
    async with await sharedlog.aio.create(url) as log:
        await log.stream("s", 1)
        for text in "abc":
            await log.publish("s", text)
        producer = log.producer()
        async with log.follow("s") as following, producer.transaction() as transaction:
            assert (await anext(following)).text == "a"
            idle = log.follow("s")

            async def publish() -> None:
                async with producer.transaction() as mine:
                    await mine.publish("s", "b")

            uses: list[Callable[[], Awaitable[object]]] = [
                lambda: anext(following),
                lambda: anext(idle),
                lambda: following.done(position),
                lambda: log.publish("s", "b"),
                lambda: log.streams(),
                lambda: producer.publish("s", "b"),
                lambda: transaction.publish("t", "b"),
                publish,
            ]
            position = (await log.read("s", 0))[0].position
            for use in uses:
                _refused(lambda: _in_a_loop(use))  # noqa: B023 - of this turn
            for close in (following.close, log.close):
                assert _in_child(lambda: _in_a_loop(close)) is None  # noqa: B023 - of this turn
            assert [(await anext(following)).text for _ in range(2)] == ["b", "c"]
            await transaction.publish("s", "d")
        assert [each.text for each in await log.read("s", 0)] == [*"abcd"]


def _in_a_loop(use: Callable[[], Awaitable[object]]) -> object:
    """What it gives, on a loop of the child's own."""

    async def wait() -> object:
        return await asyncio.wait_for(use(), 20)

    # The parent's is still the one that runs in this thread, as the child has it.
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, wait()).result()


_SCENARIOS = {
    "aio": _aio,
    "publisher": _publisher,
    "follower": _follower,
    "both": _both,
    "append_in": _append_in,
}

if __name__ == "__main__":
    _SCENARIOS[sys.argv[1]](sys.argv[2])
