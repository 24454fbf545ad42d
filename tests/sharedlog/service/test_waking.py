"""Wake-ups of a served log's waiters, by what is for them and nothing else (DESIGN-LOG §12)."""

import asyncio
import itertools

import pytest

import sharedlog
from sharedlog._core.commit import Commit, NewEntry
from sharedlog._engines.memory import MemoryEngine, MemoryLog
from sharedlog._service.tail import Tail
from tests.sharedlog.served import served


@pytest.fixture(autouse=True)
def _no_clock(monkeypatch):
    """Nobody looks since it is time to, and nothing of ours is taken for another's."""
    for name in ("_EVERY_S", "_OURS_S"):
        monkeypatch.setattr(f"sharedlog._service.tail.{name}", 3600.0)


class Waking:
    """A tail, and what is appended behind it or through it."""

    def __init__(self):
        self.engine = MemoryEngine(MemoryLog({}))
        self.tail = Tail(self.engine, lambda _: None)

    def append(self, *tags):
        """By somebody else."""
        return self.engine.commit(Commit(entries=tuple(NewEntry(b"", (tag,)) for tag in tags)))

    def append_here(self, *tags):
        """Through the server."""
        self.tail.begins()
        lsns = self.append(*tags)
        self.tail.ended(lsns.first, lsns.last, tags)
        return lsns.last

    def waits(self, *tags):
        """From the log's end on."""
        return asyncio.ensure_future(self.tail.above(self.engine.tail(), tags))


def played(play):
    """Play on an event loop, with a tail that is watched."""

    async def run():
        waking = Waking()
        waking.append("s/0")
        waking.tail.start()
        try:
            # Whoever read nothing yet is woken by what is there.
            await waking.tail.above(0, ("s/9",))
            await play(waking)
        finally:
            await asyncio.to_thread(waking.tail.stop)
            waking.engine.close()

    asyncio.run(asyncio.wait_for(run(), 30))


def test_an_append_through_the_server_wakes_those_of_its_tags():
    """Others wait on, until something is for them, or they are to look."""

    async def play(waking):
        for number in range(20):
            mine, both, other = waking.waits("s/0"), waking.waits("s/1", "s/0"), waking.waits("t/0")
            await asyncio.sleep(0)
            last = waking.append_here("s/0", "s/2") if number % 2 else waking.append_here("s/0")
            await mine
            await both
            assert not other.done()
            if number % 3 == 0:
                waking.append_here("t/0")
            else:
                waking.tail.look("t", last)
            await other

    played(play)


def test_an_append_of_somebody_else_wakes_everybody():
    """Nobody knows for whom it is: also beside appends through the server, once those are known."""

    async def play(waking):
        for _ in range(10):
            waiting = [waking.waits(tag) for tag in ("s/0", "t/0", "u/3")]
            await asyncio.sleep(0)
            waking.append_here("s/0")
            waking.append("t/0")
            await asyncio.gather(*waiting)

    played(play)


def test_an_append_that_was_not_answered_wakes_everybody():
    """It may be in the log (L3)."""

    async def play(waking):
        waiting = [waking.waits(tag) for tag in ("s/0", "t/0")]
        await asyncio.sleep(0)
        waking.tail.begins()
        waking.append("s/0")
        waking.tail.ended(0, 0, ("s/0",))
        await asyncio.gather(*waiting)

    played(play)


def test_who_came_late_misses_nothing():
    """What was appended between the read and the wait wakes at once."""

    async def play(waking):
        before = waking.engine.tail()
        waking.append_here("s/0")
        waking.append_here("t/0")
        await waking.tail.above(before, ("s/0",))
        await waking.tail.above(before + 1, ("t/0",))
        late = asyncio.ensure_future(waking.tail.above(before + 1, ("s/0",)))
        await asyncio.sleep(0)
        waking.append_here("s/0")
        await late

    played(play)


def test_followers_of_other_streams_are_current_when_they_are_asked(behind):
    """``poll`` returns what is there, and waits for no second; holds move with the log (L6)."""
    for name in ("busy", "idle"):
        behind.stream(name, 2)
    with (
        served(behind) as server,
        sharedlog.open(f"grpc://{server.address}") as log,
        log.follow("idle", name="me") as idle,
        log.follow("busy") as busy,
    ):
        assert idle.poll() == []
        for number in range(20):
            position = log.publish("busy", f"{number}")
            assert idle.poll() == []
            assert idle._follower.through >= position.lsn
        assert [each.text for each in itertools.islice(busy, 20)] == [f"{n}" for n in range(20)]
        with log.producer().transaction() as transaction:
            transaction.publish("idle", "of a transaction")
            transaction.pend()
            transaction.publish("idle", "and the rest")
            transaction.pend()
        assert [next(idle).text, next(idle).text] == ["of a transaction", "and the rest"]
        # By somebody else than the server.
        behind.publish("idle", "beside it")
        assert next(idle).text == "beside it"
        # By a name, as outboxes and restarted programs do.
        log.producer("n").publish("idle", "named")
        assert next(idle).text == "named"
