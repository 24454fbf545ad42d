"""Followers of a served log share the reads of its end, and nothing else (DESIGN-LOG §12, L8)."""

import asyncio
import itertools
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import SimpleNamespace

import grpc
import pytest

import sharedlog
from sharedlog._core.errors import LogUnavailable
from sharedlog._service import shared_tail
from sharedlog._service.settings import ServerLimits, ServerSettings
from sharedlog._service.shared_tail import SharedTail
from sharedlog.v1 import log_pb2 as pb
from tests.helpers.waiting import until
from tests.sharedlog.served import served

LIMITS = ServerSettings(ServerLimits(caller_followers=0, caller_unanswered=0, caller_steps_per_s=0))


@pytest.fixture
def _no_clock(monkeypatch):
    """No follower looks since it is time to, and no append of ours is taken for another's."""
    for name in ("_EVERY_S", "_OURS_S"):
        monkeypatch.setattr(f"sharedlog._service.tail.{name}", 3600.0)


@pytest.fixture
def server(behind):
    behind.stream("s", 4)
    with served(behind, settings=LIMITS) as found:
        yield found


@pytest.fixture
def log(server):
    with sharedlog.open(f"grpc://{server.address}") as opened:
        yield opened


def tails(server):
    return server.server._followers._tails._tails


@pytest.mark.usefixtures("_no_clock")
def test_what_is_new_is_read_once_however_many_follow(behind, log, monkeypatch):
    """Each message reaches all, by about one read of the engine."""
    reads, read = [], behind._engine.read

    def counted(*given):
        reads.append(given)
        return read(*given)

    with ExitStack() as stack:
        followers = [stack.enter_context(log.follow("s", after="end")) for _ in range(20)]
        log.publish("s", "first")
        assert {next(each).text for each in followers} == {"first"}
        log.publish("s", "second")
        assert {next(each).text for each in followers} == {"second"}
        monkeypatch.setattr(behind._engine, "read", counted)
        for number in range(30):
            log.publish("s", f"{number}", key=f"{number}")
            assert {next(each).text for each in followers} == {f"{number}"}
    assert len(reads) <= 3 * 30


def test_each_follower_gets_what_is_its_own_in_order_once(behind, log, server):
    """Whatever its substreams, where it begins, and whether it follows what is pending (C3, C4)."""
    dice = random.Random(39)
    first = [behind.publish("s", f"first {n}", key=f"{n}") for n in range(10)]
    chosen = [None, (0,), (1, 3), (0, 1, 2), (3,)]
    starts = ["beginning", "end", first[4], {0: "end", 1: "beginning"}]

    def followed(of, number):
        substreams, after = chosen[number % 5], starts[number % 4]
        if isinstance(after, dict) and substreams is not None:
            after = {at: place for at, place in after.items() if at in substreams}
        if after is first[4] and substreams is not None:
            # A position says its own substream alone.
            substreams = sorted({*substreams, after.substream})
        return of.follow("s", substreams, after, committed=number % 3 > 0)

    def publish(number):
        if dice.random() < 0.4:
            with log.producer().transaction() as transaction:
                for at in range(dice.randrange(1, 5)):
                    transaction.publish("s", f"{number}.{at}", key=f"{dice.random()}")
                if dice.random() < 0.5:
                    transaction.pend()
                    behind.publish("s", f"{number} between")
                if dice.random() < 0.3:
                    transaction.roll_back()
        else:
            log.publish("s", f"{number}", key=f"{dice.random()}")

    with ExitStack() as stack:
        pairs = [
            tuple(stack.enter_context(followed(of, number)) for of in (log, behind))
            for number in range(12)
        ]
        mine = [[] for _ in pairs]
        for number in range(40):
            publish(number)
            for at in range(number % 3, len(pairs), 3):
                mine[at] += pairs[at][0].poll()
        assert any(each.through for each in tails(server).values())
        for at, (remote, there) in enumerate(pairs):
            expected = []
            while found := there.poll():
                expected += found
            while len(mine[at]) < len(expected) and (found := remote.poll(30)):
                mine[at] += found
            assert [(each.position, each.text) for each in mine[at]] == [
                (each.position, each.text) for each in expected
            ]
            assert not remote.poll()
    until(lambda: not tails(server), "a tail without followers is closed")


def test_a_follower_that_reads_nothing_delays_no_other_and_loses_nothing(behind, server, log):
    """What is kept for it is bounded: it reads what it has missed by itself."""
    count, body = 150, bytes(50_000)
    follow = pb.FollowRequest(incarnation=behind.incarnation, stream="s", start=pb.Start(end=True))
    with (
        grpc.insecure_channel(server.address) as channel,
        log.follow("s", after="end") as quick,
    ):
        slow = channel.unary_stream(
            "/sharedlog.v1.Log/Follow",
            pb.FollowRequest.SerializeToString,
            pb.FollowReply.FromString,
        )(follow)
        assert next(slow).HasField("begun")
        placed = []
        for _ in range(count):
            placed.append(behind.publish("s", body))
            assert next(quick).position == placed[-1]
        (tail,) = tails(server).values()
        assert tail._bytes <= shared_tail._MOST_BYTES + len(body) + 1000
        assert not tail.covers(0)
        found = []
        while len(found) < count:
            found += [(each.place.lsn, each.place.ordinal) for each in next(slow).messages]
        assert found == [each[:2] for each in placed]
        slow.cancel()


def test_a_client_that_says_it_has_what_is_not_there_shares_nothing(behind, server, log):
    """Where others go on is not its to say."""
    with grpc.insecure_channel(server.address) as channel:
        follow = channel.unary_stream(
            "/sharedlog.v1.Log/Follow",
            pb.FollowRequest.SerializeToString,
            pb.FollowReply.FromString,
        )
        ahead = follow(
            pb.FollowRequest(incarnation=behind.incarnation, stream="s", through=1 << 40)
        )
        assert next(ahead).HasField("begun")
        with log.follow("s", after="end") as messages:
            for number in range(10):
                log.publish("s", f"{number}")
                assert next(messages).text == f"{number}"
            (tail,) = tails(server).values()
            assert tail.covers(5)
        ahead.cancel()


@pytest.mark.parametrize("harm", ["hangs", "fails"])
def test_a_shared_read_that_ends_badly_stops_no_follower(behind, server, log, harm, monkeypatch):
    """Each reads by itself, and they share again afterwards."""
    monkeypatch.setattr(shared_tail, "_PATIENCE_S", 0.05)
    ours, over, harmed = server.server._followers._tails, threading.Event(), []
    read = ours._read

    async def harm_it(follower):
        if len(harmed) < 3:
            harmed.append(follower)
            if harm == "fails":
                raise LogUnavailable("away")
            await asyncio.to_thread(over.wait, 60)
        return await read(follower)

    monkeypatch.setattr(ours, "_read", harm_it)
    with ExitStack() as stack:
        stack.callback(over.set)
        followers = [stack.enter_context(log.follow("s", after="end")) for _ in range(5)]
        for number in range(20):
            log.publish("s", f"{number}", key="k")
            assert {next(each).text for each in followers} == {f"{number}"}
        assert len(harmed) == 3

        def shares():
            log.publish("s", "again")
            assert {next(each).text for each in followers} == {"again"}
            return any(not each.over and each._pieces for each in tails(server).values())

        until(shares, "they share a read again")


def test_many_begin_at_once(behind, server, log):
    """While messages come; each has all of them (L8)."""
    closing_it, placed = threading.Event(), []

    def publish():
        for number in itertools.count():
            placed.append(behind.publish("s", f"{number}", key="k"))
            if closing_it.wait(0.001):
                return

    def follow(number):
        with log.follow("s", after="beginning" if number % 2 else None) as messages:
            return [each.position for each in itertools.islice(messages, 50)]

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        with ThreadPoolExecutor(16) as pool:
            found = list(pool.map(follow, range(16)))
    finally:
        closing_it.set()
        thread.join()
    assert all(each == placed[:50] for each in found)


# One shared tail, by itself.


class Reading:
    """A follower whose reads are told when they end, and with what."""

    def __init__(self):
        self.follower = SimpleNamespace(through=10)
        self.begun = []
        self.tail = SharedTail(self.follower, self.read)

    async def read(self, follower):
        assert follower is self.follower
        ends = asyncio.get_running_loop().create_future()
        self.begun.append(ends)
        found, follower.through = await ends
        return found

    async def until_begun(self, count):
        while len(self.begun) < count:
            await asyncio.sleep(0)


def message(lsn, substream=0):
    position = sharedlog.Position(lsn, 0, 0, "log", substream)
    return SimpleNamespace(
        position=position, envelope=b"x", at_us=0, state=sharedlog.State.COMMITTED
    )


def played(play):
    asyncio.run(asyncio.wait_for(play(Reading()), 30))


def test_who_comes_during_a_read_gets_what_it_finds_or_another_one():
    """A read that began before a follower was woken may have missed the entry that woke it."""

    async def play(reading):
        first = asyncio.ensure_future(reading.tail.beyond(10))
        await reading.until_begun(1)
        late = asyncio.ensure_future(reading.tail.beyond(10))
        gone = asyncio.ensure_future(reading.tail.beyond(10))
        await asyncio.sleep(0)
        gone.cancel()
        reading.begun[0].set_result(([], 10))
        assert await first == []
        await reading.until_begun(2)
        reading.begun[1].set_result(([message(11)], 12))
        (piece,) = await late
        assert (piece.after, piece.through) == (10, 12)
        # What is known needs no read.
        assert await reading.tail.beyond(11) == [piece]
        assert len(reading.begun) == 2
        assert await reading.tail.beyond(9) is None

    played(play)


def test_what_a_follower_is_sent_is_above_what_it_has():
    """The last reply says through where."""

    async def play(reading):
        asking = asyncio.ensure_future(reading.tail.beyond(10))
        await reading.until_begun(1)
        found = [message(11), message(11, 1), message(13), message(14, 2)]
        reading.begun[0].set_result((found, 15))
        (piece,) = await asking

        def sent(above):
            replies = [pb.FollowReply.FromString(each) for each in piece.replies(above)]
            assert not replies or replies[-1].through == 15
            return [
                (each.place.lsn, each.place.substream)
                for reply in replies
                for each in reply.messages
            ]

        for _ in range(2):
            assert sent(10) == sent(5) == [(11, 0), (11, 1), (13, 0), (14, 2)]
            assert sent(11) == sent(12) == [(13, 0), (14, 2)]
            assert sent(14) == []
        # Who has the same gets the same.
        assert piece.replies(10) is piece.replies(10)

    played(play)
