"""Several functions of one process at once: ``Consumer(concurrency=...)`` (DESIGN-LOG §14)."""

import asyncio
import itertools
import logging
import os
import secrets
import signal
import subprocess
import sys
import threading
from collections import Counter
from contextlib import closing

import pytest
import redis

import rifl
import sharedlog
from sharedlog._consumer import hanging, postgres
from sharedlog._consumer.opening import store_of
from sharedlog._consumer.sharing import Sharing
from sharedlog._consumer.state import ShardState
from sharedlog._core.consumer.changelog import Changelog
from sharedlog._core.consumer.members import Gone, MemberTerm, join, leave, look, part, take
from sharedlog._core.consumer.state import Changes
from tests.echo import METHOD, served
from tests.helpers.log_servers import shared_postgres, shared_redis
from tests.helpers.waiting import until
from tests.sharedlog.consumer.world import PostgresDatabase, SqliteDatabase

__all__ = ["shared_postgres", "shared_redis"]

# A test that waits for what does not come fails then.
LONG_S = 20
NOTE = "INSERT INTO note (what) VALUES ('{}')"


class Tables:
    """Notes in a table."""

    serial = "id SERIAL"

    def __init__(self, database):
        self.url = database.url
        self.connect = database.connect
        with closing(self.connect()) as connection, connection:
            connection.execute(f"CREATE TABLE note ({self.serial}, what TEXT)")
            connection.execute("CREATE TABLE total (n INTEGER)")
            connection.execute("INSERT INTO total VALUES (0)")

    def write(self, effects, what):
        effects.connection.execute(NOTE.format(what))

    def notes(self):
        with closing(self.connect()) as connection:
            return [what for (what,) in connection.execute("SELECT what FROM note ORDER BY id")]


class File(Tables):
    """In SQLite."""

    serial = "id INTEGER PRIMARY KEY"


class Lists:
    """Notes in a list of Redis."""

    def __init__(self, server):
        self.url = server.url()
        self.key = f"notes:{secrets.token_hex(6)}"

    def write(self, effects, what):
        effects.connection.rpush(self.key, what)

    def notes(self):
        with closing(redis.Redis.from_url(self.url)) as client:
            return [each.decode() for each in client.lrange(self.key, 0, -1)]


class State:
    """Notes in the consumer's state, which the log has."""

    url = "log"

    def write(self, effects, what):
        effects.state[f"{len(effects.state):04}"] = what

    def notes(self):
        place, found = self.log._place, []
        for tag in self.tags:
            changes = Changelog(self.name, tag, place.incarnation, place.seals)
            while place.run(changes.read()):
                pass
            found += [what for _, what in sorted(ShardState(Changes(changes.table)).items())]
        return found


@pytest.fixture(params=["postgres", "redis", "log"])
def place(request, tmp_path):
    return place_of(request.param, request, tmp_path)


def place_of(kind, request, tmp_path):
    if kind == "log":
        return State()
    if kind == "redis":
        return Lists(request.getfixturevalue("shared_redis"))
    if kind == "sqlite":
        return File(SqliteDatabase(tmp_path))
    return Tables(PostgresDatabase(request.getfixturevalue("shared_postgres")))


class Shop:
    """Orders of substreams, each of which is noted once."""

    def __init__(self, place, substreams=2, orders=1):
        self.place = place
        self.name = place.name = f"noting-{secrets.token_hex(4)}"
        self.log = place.log = sharedlog.create("memory:")
        place.tags = [f"orders/{at}" for at in range(substreams)]
        self.log.stream("orders", substreams=substreams)
        self.log.stream("out", substreams=1)
        self.orders = []
        self.keys = self._keys(substreams)
        for number in range(orders):
            for at in range(substreams):
                self.order(at, number)

    def order(self, at, number):
        """Publish an order of a substream."""
        self.orders.append(f"{at}.{number}")
        self.log.publish("orders", f"{at}.{number}", key=self.keys[at])

    def _keys(self, substreams):
        """A key of each substream."""
        found = {}
        keys = map(str, itertools.count())
        while len(found) < substreams:
            key = next(keys)
            found.setdefault(self.log._placing.placed("orders", b"", key, None, None).tag, key)
        return [found[f"orders/{at}"] for at in range(substreams)]

    def consumer(self, handler, concurrency=2, **settings):
        consumer = sharedlog.Consumer(
            self.log, self.name, ["orders"], self.place.url, concurrency=concurrency, **settings
        )
        consumer.on("orders", str)(handler)
        return consumer

    def note(self, order, effects):
        self.place.write(effects, order)
        effects.publish("out", order)

    def check(self, orders=None):
        """Each is noted and published once, in the order of its substream."""
        outputs = [each.text for each in self.log.read("out", 0, limit=100_000)]
        for found in (self.place.notes(), outputs):
            assert by_substream(found) == by_substream(self.orders if orders is None else orders)


def by_substream(orders):
    found = {}
    for each in orders:
        found.setdefault(each.partition(".")[0], []).append(each)
    return found


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_as_many_functions_run_at_once_as_concurrency_says(place, kind):
    """Eight of 40 substreams' wait until eight do; never more, and never two of a substream."""
    shop = Shop(place, substreams=40, orders=2)
    running, most = Counter(), []
    meets, waits = asyncio.Barrier(8), threading.Barrier(8)

    def begin(order):
        running[order.partition(".")[0]] += 1
        most.append((sum(running.values()), max(running.values())))

    def end(order, effects):
        shop.note(order, effects)
        running[order.partition(".")[0]] -= 1

    async def note(order, effects):
        begin(order)
        async with asyncio.timeout(LONG_S):
            await meets.wait()
        end(order, effects)

    def note_in_thread(order, effects):
        begin(order)
        waits.wait(LONG_S)
        end(order, effects)

    consumer = shop.consumer(note if kind == "async" else note_in_thread, 8, batch=1)
    assert consumer.once() == 80
    assert max(most) == (8, 1)
    shop.check()


def test_over_sqlite_one_function_runs_at_a_time(request, tmp_path):
    """The file has one writer (DESIGN-LOG §14)."""
    shop = Shop(place_of("sqlite", request, tmp_path), substreams=4)
    running, most = [], []

    async def note(order, effects):
        running.append(order)
        most.append(len(running))
        shop.note(order, effects)
        await asyncio.sleep(0)
        running.pop()

    assert shop.consumer(note, concurrency=4).once() == 4
    assert set(most) == {1}
    shop.check()


@pytest.mark.parametrize("concurrency", [0, 1001, 2.0, None])
def test_concurrency_is_a_whole_number(concurrency):
    """From 1 to 1000: each is a thread, and a session."""
    shop = Shop(State())
    with pytest.raises(sharedlog.InvalidRequest, match="concurrency"):
        shop.consumer(shop.note, concurrency)


def test_a_function_that_waits_keeps_only_its_own_substream_back(place, monkeypatch, caplog):
    """Others go through all that they have, and an event tells which one hangs."""
    monkeypatch.setattr(hanging, "TOLD_AFTER_S", 0.0)
    shop = Shop(place, orders=5)
    others, told = asyncio.Event(), threading.Event()
    done = []

    class Told(logging.Handler):
        def emit(self, record):
            if "consumer_hangs" in record.getMessage():
                told.set()

    logger, handler = logging.getLogger("sharedlog"), Told()
    logger.addHandler(handler)

    async def note(order, effects):
        if order == "0.0":
            async with asyncio.timeout(LONG_S):
                await others.wait()
            assert await asyncio.to_thread(told.wait, LONG_S)
        shop.note(order, effects)
        done.append(order)
        if order == "1.4":
            others.set()

    try:
        assert shop.consumer(note).once() == 10
    finally:
        logger.removeHandler(handler)
    assert done.index("1.4") < done.index("0.0")
    assert any(
        "consumer_hangs" in each and "orders/0" in each
        for each in (record.getMessage() for record in caplog.records)
    )
    shop.check()


class Meeting:
    """The first function of each of two substreams waits until the other runs, too."""

    def __init__(self):
        self.both = asyncio.Barrier(2)
        self.seen = set()

    async def met(self, order):
        """Wait, the first time; whether it was that."""
        if order in self.seen or not order.endswith(".0"):
            return False
        self.seen.add(order)
        async with asyncio.timeout(LONG_S):
            await self.both.wait()
        return True


def test_what_a_function_raises_undoes_no_other(place):
    """Its neighbour, which was in the midst of its transaction, commits."""
    shop, meeting = Shop(place, orders=3), Meeting()

    async def note(order, effects):
        shop.note(order, effects)
        first = await meeting.met(order)
        if first and order == "0.0":
            raise ValueError("the first time")

    shop.consumer(note).once()
    shop.check()


@pytest.mark.parametrize(
    ("kind", "way"), [("postgres", "close"), ("postgres", "execute"), ("redis", "reset")]
)
def test_what_a_function_does_to_its_transaction_touches_no_other(request, tmp_path, kind, way):
    """It is refused, and its message fails; the neighbour's effects are there."""
    shop, meeting = Shop(place_of(kind, request, tmp_path), orders=2), Meeting()
    shop.log.stream("dead", substreams=1)

    async def note(order, effects):
        shop.note(order, effects)
        await meeting.met(order)
        if order == "0.0":
            connection = effects.connection
            getattr(connection, way)(*(["COMMIT"] if way == "execute" else []))

    shop.consumer(note, attempts=1, dead_letters="dead").once()
    assert [each.text for each in shop.log.read("dead", 0)] == ["0.0"]
    shop.check(["0.1", "1.0", "1.1"])


@pytest.mark.parametrize(
    ("ends", "kind"),
    [
        (SystemExit, "function"),
        (SystemExit, "task"),
        (KeyboardInterrupt, "function"),
        (asyncio.CancelledError, "function"),
    ],
)
def test_what_ends_the_process_waits_for_the_others(place, ends, kind):
    """It is raised once the neighbour has committed; who comes next does the rest."""
    shop, meeting = Shop(place, orders=2), Meeting()
    begun, raised = [], []

    async def end():
        raise ends(3)

    async def note(order, effects):
        shop.note(order, effects)
        begun.append(order)
        await meeting.met(order)
        if order == "0.0" and len(raised) < 2:
            raised.append(order)
            await (end() if kind == "function" else asyncio.gather(end(), asyncio.sleep(0)))

    consumer = shop.consumer(note)
    with pytest.raises(ends):
        consumer.run()
    noted = shop.place.notes()
    # Ctrl-C, wherever it comes, cancels the others, too.
    assert "1.0" in noted or ends is KeyboardInterrupt
    assert "0.0" not in noted
    shop.consumer(shop.note).once()
    shop.check()


def test_close_waits_for_all_that_run(place):
    """What they have done is committed, and no other one begins."""
    shop, meeting = Shop(place, orders=3), Meeting()

    async def note(order, effects):
        shop.note(order, effects)
        await meeting.met(order)
        if order == "0.0":
            consumer.close()

    consumer = shop.consumer(note, batch=1)
    consumer.run()
    assert set(shop.place.notes()) >= {"0.0", "1.0"}
    shop.consumer(shop.note).once()
    shop.check()


def test_an_interrupt_cancels_what_runs_and_undoes_it(place):
    """Ctrl-C comes in the thread that runs the consumer (as to one function, which it ends)."""
    shop, meeting = Shop(place, orders=2), Meeting()
    cancelled = []

    async def note(order, effects):
        shop.note(order, effects)
        if not await meeting.met(order):
            return
        if order == "0.0":
            os.kill(os.getpid(), signal.SIGINT)
        try:
            await asyncio.sleep(LONG_S)
        except asyncio.CancelledError:
            cancelled.append(order)
            raise

    with pytest.raises(KeyboardInterrupt):
        shop.consumer(note).run()
    assert sorted(cancelled) == ["0.0", "1.0"]
    assert shop.place.notes() == []
    shop.consumer(shop.note).once()
    shop.check()


def test_tasks_that_a_function_leaves_are_told_from_its_neighbours(place, caplog):
    """The event names its own; they write into no other transaction (T1, T2)."""
    caplog.set_level(logging.WARNING, logger="sharedlog")
    shop, meeting = Shop(place, orders=2), Meeting()
    lent, goes_on, refused = [], asyncio.Event(), []

    async def stay(effects):
        await goes_on.wait()
        for way in (shop.place.write, lambda effects, what: effects.publish("out", what)):
            try:
                way(effects, "left")
            except sharedlog.HandlerEnded:
                refused.append(way)

    async def grow():
        # What a task begins is the function's, too.
        await asyncio.create_task(goes_on.wait(), name="a grandchild")

    async def over():
        while not lent[0]._loan.over:
            await asyncio.sleep(0.001)

    async def note(order, effects):
        if order == "0.0":
            lent.append(effects)
            left.update(asyncio.create_task(each) for each in (stay(effects), grow()))
            await asyncio.sleep(0)
        await meeting.met(order)
        if order == "1.0":
            async with asyncio.timeout(LONG_S), asyncio.TaskGroup() as tasks:
                tasks.create_task(over(), name="its neighbour's")
        if order == "1.1":
            goes_on.set()
            await asyncio.wait(left)
        shop.note(order, effects)

    left = set()
    shop.consumer(note, batch=1).once()
    (event,) = [
        each.getMessage() for each in caplog.records if "consumer_left_tasks" in each.getMessage()
    ]
    assert "a grandchild (" in event
    assert "its neighbour's" not in event
    assert "count=3" in event
    assert "orders/0" in event
    assert len(refused) == 2
    shop.check()


def test_one_that_is_fenced_loses_its_substream_and_no_other(place):
    """Another process takes it over while the function runs: it commits nothing of that (T1)."""
    shop, meeting = Shop(place, orders=2), Meeting()
    runs = Counter()

    def take_over():
        carry = shop.log._place.run
        (owner,) = carry(look(shop.name)).members
        carry(join(MemberTerm(shop.name, "another", b"{}", consumer._streams, LONG_S)))
        carry(leave(shop.name, "orders/0", owner))
        lease = carry(take(shop.name, "orders/0", "another"))
        if place.url != "log":
            store = store_of(place.url, shop.name, shop.log._place)()
            store.take("orders/0", lease.fence.number, gone=Gone.LEFT, anew=False)
            store.close()

    async def note(order, effects):
        runs[order] += 1
        shop.note(order, effects)
        if await meeting.met(order) and order == "0.0":
            await asyncio.to_thread(take_over)

    consumer = shop.consumer(note, batch=1)
    consumer.once()
    assert shop.place.notes() == ["1.0", "1.1"]
    shop.log._place.run(leave(shop.name, "orders/0", "another"))
    shop.log._place.run(part(shop.name, "another"))
    consumer.once()
    assert runs == {"0.0": 2, "0.1": 1, "1.0": 1, "1.1": 1}
    shop.check()


def test_who_comes_gets_its_share_of_substreams_that_are_always_busy(monkeypatch):
    """One that runs at each look is left as soon as its turn is over (T1)."""
    shop, looks = Shop(State()), Counter()
    shared, share = threading.Event(), Sharing.share

    def looking(self):
        looks.setdefault(self, 0)
        share(self)
        looks[self] += 1

    monkeypatch.setattr(Sharing, "share", looking)

    async def note(order, effects):
        busy = next(iter(looks))
        before = looks[busy]
        while looks[busy] == before and not shared.is_set():
            await asyncio.sleep(0.001)
        shop.note(order, effects)
        if not shared.is_set():
            at, number = map(int, order.split("."))
            shop.order(at, number + 1)

    def note_other(order, effects):
        shared.set()
        shop.note(order, effects)

    consumers = [shop.consumer(each, batch=1) for each in (note, note_other)]
    threads = [threading.Thread(target=each.run) for each in consumers]
    threads[0].start()
    until(lambda: looks, "the first one has the substreams")
    threads[1].start()
    try:
        assert shared.wait(LONG_S)
    finally:
        shared.set()
        for consumer, thread in zip(consumers, threads, strict=True):
            consumer.close()
            thread.join(LONG_S)
    shop.consumer(shop.note).once()
    shop.check()


def test_async_functions_call_services_at_once(place, monkeypatch):
    """Two are answered once both have asked; each call happens once (T6)."""
    monkeypatch.setenv("RIFL_SESSION_SECRET", "known to the tests")
    shop, both, ran = Shop(place, orders=2), threading.Barrier(2), []

    def answer(request, context):
        ran.append(request.decode())
        if request.endswith(b".0"):
            both.wait(LONG_S)
        return request

    with rifl.Deduplicator("memory:") as dedup, served(dedup, answer) as target:

        async def note(order, effects):
            answered = await effects.channel(target).unary_unary(METHOD)(order.encode())
            assert answered.decode() == order
            shop.note(order, effects)

        shop.consumer(note).once()
    assert sorted(ran) == sorted(shop.orders)
    shop.check()


def test_functions_that_lock_one_row_do_not_wait_for_ever(request, tmp_path, monkeypatch):
    """One that waits for a lock keeps the loop from the one that has it: it is tried again."""
    monkeypatch.setattr(postgres, "LANE_WAITS_MS", 50)
    shop = Shop(place_of("postgres", request, tmp_path), substreams=4, orders=2)

    async def note(order, effects):
        effects.connection.execute("UPDATE total SET n = n + 1")
        await asyncio.sleep(0.01)
        shop.note(order, effects)

    shop.consumer(note, concurrency=4, batch=1, attempts=1).once()
    with closing(shop.place.connect()) as connection:
        assert connection.execute("SELECT n FROM total").fetchone() == (8,)
    shop.check()


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_a_child_that_a_function_forks_commits_nothing(tmp_path, kind):
    """It ends, and says why; the parent goes on with its own transaction (T1)."""
    module = "tests.sharedlog.consumer.forking_lanes"
    command = [sys.executable, "-m", module, kind, str(tmp_path / "log.db")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ["child 1 noted 4"], done.stderr
    assert "LogStopped" in done.stderr
