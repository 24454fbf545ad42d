"""A task of a log's that is cancelled at any await, or interrupted at any line: others go on.

``make test`` tries some lines, and ``make test-long`` all; all awaits are few.
"""

import asyncio
import secrets
from contextlib import closing
from datetime import timedelta

import aiosqlite
import pytest

import sharedlog
import sharedlog.aio
from tests.helpers.at_a_line import bounded
from tests.helpers.at_an_await import WAYS, strike
from tests.sharedlog.faulty import answers_lost

# Every so many lines of the event loop's thread.
STEPS = {"memory": 7, "sqlite": 29}
# Of what a task is told that nobody waits for any more.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
MESSAGES = [str(each) for each in range(4)]


class Handle:
    """A log on an event loop, with one operation that is struck."""

    def __init__(self, url, number, way):
        self.loop = asyncio.new_event_loop()
        self._number = number
        self._way = way
        self.line = None
        self.url, self.path = url, url.removeprefix("sqlite:///")
        self.log = self.run(sharedlog.aio.create(url))
        self.run(self.log.stream("s", 1))

    def run(self, act):
        """Do it to its end, which comes soon."""

        async def soon():
            async with asyncio.timeout(20):
                return await act

        return self.loop.run_until_complete(soon())

    def struck(self, act):
        """What an operation returns, None where it did not."""
        expected = (sharedlog.LogUnavailable,)
        self.line, found = strike(self.loop, act, self._number, self._way, expected)
        return found

    def publish(self, *texts):
        for each in texts:
            self.run(self.log.publish("s", each))

    def texts(self):
        return [each.text for each in self.run(self.log.read("s", 0))]

    def close(self):
        """Nothing of the log's is left on the loop."""
        self.run(self.log.close())
        left = asyncio.all_tasks(self.loop)
        if left:
            _, left = self.run(asyncio.wait(left, timeout=10))
        assert not left
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()


def _published_at_most_once(handle, *mine):
    handle.publish("after")
    found = handle.texts()
    assert [each for each in found if each not in mine] == ["before", "after"]
    for each in mine:
        assert found.count(each) <= 1
    # After it nothing of the one that was struck comes.
    assert found[-1] == "after"
    return found


def publish(handle):
    """It is in the log or it is not, and all later ones are, in order."""
    handle.publish("before")
    position = handle.struck(handle.log.publish("s", "mine"))
    assert ("mine" in _published_at_most_once(handle, "mine")) or position is None


def publish_together(handle):
    """As ``publish``; of two tasks' messages that travel in one append."""
    handle.publish("before")
    log = handle.log

    async def both():
        other = asyncio.ensure_future(log.publish("s", "other"))
        await log.publish("s", "mine")
        await other

    handle.struck(both())
    _published_at_most_once(handle, "mine", "other")


def publish_by_a_producer(handle):
    """A transaction of its own: the producer goes on."""
    producer = handle.log.producer()
    handle.run(producer.publish("s", "before"))
    position = handle.struck(producer.publish("s", "mine"))
    handle.run(producer.publish("s", "next"))
    found = handle.texts()
    assert [each for each in found if each != "mine"] == ["before", "next"]
    assert found.count("mine") <= 1
    assert found.count("mine") == 1 or position is None


def _transaction(handle, name):
    producer = handle.log.producer(name)
    handle.run(producer.publish("s", "before"))

    async def transact():
        async with producer.transaction() as transaction:
            await transaction.publish("s", "a")
            await transaction.publish("s", "b")
        return transaction.committed

    committed = handle.struck(transact())
    handle.run(producer.publish("s", "next"))
    handle.publish("after")
    assert handle.texts() in (
        [["before", "a", "b", "next", "after"]]
        if committed
        else [["before", "a", "b", "next", "after"], ["before", "next", "after"]]
    )


def transaction(handle):
    """All of it is there, or nothing; its producer, and others, go on."""
    _transaction(handle, None)


def named_transaction(handle):
    """Under a name, too, whose next number is known."""
    _transaction(handle, "n")


def iterate(handle):
    """It delivers what it was struck with, and its hold is not beyond that."""
    handle.publish(*MESSAGES)

    async def rest(follower, found):
        async with follower:
            while len(found) < len(MESSAGES):
                found.append(await anext(follower))
                await follower.done(found[-1])

    follower = handle.log.follow("s", name="f")
    first = handle.struck(anext(follower))
    found = [first] if first else []
    handle.run(rest(follower, found))
    assert [each.text for each in found] == MESSAGES
    _goes_on_behind(handle)


def _goes_on_behind(handle):
    async def next_of():
        async with handle.log.follow("s", name="f") as follower:
            return (await anext(follower)).text

    handle.publish("the next")
    assert handle.run(next_of()) == "the next"


def follow(handle):
    """A follower's whole life: the next one of its name gets all that it was not given."""
    handle.publish(*MESSAGES)
    found = []

    async def life():
        async with handle.log.follow("s", name="f") as follower:
            for _ in range(2):
                found.append(await anext(follower))
                await follower.done(found[-1])

    async def others():
        async with handle.log.follow("s", name="f") as follower:
            return [(await anext(follower)).text for _ in MESSAGES[len(found) :]]

    handle.struck(life())
    # What was given and not done may be delivered again.
    more = handle.run(others())
    begins = MESSAGES.index(more[0])
    assert begins <= len(found)
    assert more == MESSAGES[begins:][: len(more)]


def close_a_follower(handle):
    """It can be closed again, its thread ends, and its hold is behind what was done."""
    handle.publish(*MESSAGES)
    follower = handle.log.follow("s", name="f")
    message = handle.run(anext(follower))
    handle.run(follower.done(message))
    handle.struck(follower.close())
    handle.run(follower.close())
    assert follower._threads._pool._shutdown
    with pytest.raises(StopAsyncIteration):
        handle.run(_drained(follower))
    with handle.log._inner.follow("s", name="f") as follower:
        assert [each.text for each in follower.poll(5)] == MESSAGES[1:]


async def _drained(follower):
    while True:
        await anext(follower)


def ask(handle):
    """What only asks, or can be done again, is."""
    log = handle.log
    handle.publish(*MESSAGES)

    async def asked():
        await log.stream("t", 2)
        await log.raise_fence("x")
        await log.trim()
        async with log.sweeper() as sweeper:
            await sweeper.round()
        return [each.text for each in await log.read("s", 0)]

    assert handle.struck(asked()) in (None, MESSAGES)
    assert handle.run(asked()) == MESSAGES
    handle.publish("after")
    assert handle.texts() == [*MESSAGES, "after"]


def settle(handle):
    """It tells where the message is, and so it does when it is asked again."""
    log = handle.run(sharedlog.aio.open(handle.url, timeout=timedelta(seconds=0.02)))
    handle.run(log.publish("s", "before"))
    with answers_lost(log._inner), pytest.raises(sharedlog.AppendUnknown) as unknown:
        handle.run(log.publish("s", "mine"))
    position = handle.struck(log.settle(unknown.value))
    settled = handle.run(log.settle(unknown.value))
    assert position in (None, settled)
    handle.run(log.publish("s", "next"))
    handle.run(log.close())
    assert handle.texts() == ["before", "mine", "next"]


def append_in(handle):
    """With the transaction, or not at all; nobody waits for it afterwards."""

    async def append():
        async with aiosqlite.connect(handle.path, isolation_level=None) as connection:
            await connection.execute("BEGIN IMMEDIATE")
            await handle.log.append_in(connection, "s", "mine")
            await connection.commit()
        return True

    handle.publish("before")
    appended = handle.struck(append())
    assert ("mine" in _published_at_most_once(handle, "mine")) or not appended


def outbox(handle):
    """With the transaction, or not at all; a relay goes on."""
    path = f"{handle.path}.box"

    async def put(*texts):
        async with aiosqlite.connect(path) as connection:
            await sharedlog.aio.create_outbox(connection, handle.log)
            for each in texts:
                await sharedlog.aio.outbox(connection, handle.log).publish("s", each)
            await connection.commit()
        return True

    def relayed():
        with closing(sharedlog.relay(f"sqlite:///{path}", handle.log._inner)) as relay:
            relay.once()

    handle.run(put("before"))
    put_there = handle.struck(put("mine"))
    relayed()
    handle.run(put("next"))
    relayed()
    handle.publish("after")
    found = handle.texts()
    assert found in (["before", "mine", "next", "after"], ["before", "next", "after"])
    assert "mine" in found or not put_there


OPERATIONS = [
    publish,
    publish_together,
    publish_by_a_producer,
    transaction,
    named_transaction,
    iterate,
    follow,
    close_a_follower,
    ask,
    settle,
    append_in,
    outbox,
]
# What is in transactions of the application's.
OVER_FILES = (append_in, outbox)


def _walk(engine, operation, way, directory, step):
    """Strike it at every so many places; how many it has."""
    number = 1
    while True:
        name = secrets.token_hex(4)
        url = f"memory:{name}" if engine == "memory" else f"sqlite:///{directory}/{name}.db"
        handle = Handle(url, number, way)
        try:
            operation(handle)
            handle.close()
        except BaseException as error:
            raise AssertionError(f"{way} at {handle.line}: {error!r}") from error
        if not handle.line.came:
            return number
        number += step


EVERYWHERE = pytest.mark.parametrize(
    ("engine", "operation"),
    [
        pytest.param(engine, each, id=f"{each.__name__}-{engine}")
        for engine in STEPS
        for each in OPERATIONS
        if engine == "sqlite" or each not in OVER_FILES
    ],
)


@EVERYWHERE
@pytest.mark.parametrize("way", WAYS)
def test_a_task_that_is_struck_somewhere(tmp_path, engine, way, operation):
    """See above (DESIGN-LOG §12, L2, L3, L6)."""
    step = STEPS[engine] if way == "interrupted" else 1
    assert bounded(lambda: _walk(engine, operation, way, tmp_path, step), 100) > 1


@pytest.mark.long
@pytest.mark.timeout(900)
@EVERYWHERE
def test_a_task_that_is_interrupted_at_every_line(tmp_path, engine, operation):
    """See above (DESIGN-LOG §12, L2, L3, L6)."""
    bounded(lambda: _walk(engine, operation, "interrupted", tmp_path, 1), 800)
