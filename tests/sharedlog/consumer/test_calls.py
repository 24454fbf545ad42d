"""Calls of handlers to other services happen once (DESIGN-LOG §14, T6)."""

import asyncio
import itertools
import json
import threading
from contextlib import closing, nullcontext

import grpc
import pytest

import rifl
import sharedlog
from sharedlog import CallAfterWrite, CallForgotten, CallMismatch, InvalidRequest
from sharedlog._core.consumer.call_keys import read_calls
from sharedlog.testing import die, drain, driven, lose
from tests.echo import METHOD, served
from tests.helpers.log_servers import shared_postgres
from tests.sharedlog.consumer.test_zombies import lapsed
from tests.sharedlog.consumer.world import LogWorld, NoDatabase, PostgresDatabase, World

__all__ = ["shared_postgres"]


class Rates:
    """A service that answers each request with how many it has had."""

    def __init__(self):
        self.ran = []
        self.refuses = set()
        self.goes_on = threading.Event()
        self.goes_on.set()

    def __call__(self, request, context):
        self.ran.append(request)
        self.goes_on.wait(30)
        if request in self.refuses:
            context.abort(grpc.StatusCode.NOT_FOUND, f"no rate for {request.decode()}")
        return str(len(self.ran)).encode()


@pytest.fixture
def rates(monkeypatch):
    """A service that runs, and is deduplicated."""
    monkeypatch.setenv("RIFL_SESSION_SECRET", "known to the tests")
    handler = Rates()
    with rifl.Deduplicator("memory:") as dedup, served(dedup, handler) as target:
        handler.target = target
        yield handler


@pytest.fixture(params=["sqlite", "postgres", "log"])
def new_world(request, tmp_path):
    """Make worlds over a store, whose handler calls the service of ``rates``, and notes it."""
    return worlds(request, tmp_path)


@pytest.fixture(params=["sqlite", "postgres"])
def new_database(request, tmp_path):
    """As ``new_world``, for tests that look into the database."""
    return worlds(request, tmp_path)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.long), "log"])
def many_worlds(request, tmp_path):
    """As ``new_world``, for tests that make one for each step."""
    return worlds(request, tmp_path)


def worlds(request, tmp_path):
    count = itertools.count()
    server = request.getfixturevalue("shared_postgres") if request.param == "postgres" else None

    def make(rates, **settings):
        settings = {"orders": 2, "substreams": 1, **settings}
        if request.param == "log":
            return CallingLog(rates, **settings)
        place = tmp_path / f"{next(count)}" if server is None else PostgresDatabase(server)
        return Calling(rates, place, **settings)

    return make


class Calling(World):
    """Each order is called for first, and the answer is part of its bill."""

    def __init__(self, rates, *given, **settings):
        super().__init__(*given, **settings)
        self.rates = rates
        self.looks = self.call
        self.answers = {}

    def call(self, order, effects):
        found = stub(effects, self.rates.target)(order["what"].encode())
        order["what"] += f" at {found.decode()}"
        self.answers.setdefault(order["customer"], []).append(order["what"])

    def check_called(self):
        """Each order was called for once, and billed with the first answer, in order."""
        orders = [
            json.loads(message.value)["what"]
            for substream in range(self.substreams)
            for message in self.log.read("orders", substream)
        ]
        assert sorted(each.decode() for each in self.rates.ran) == sorted(orders)
        at = {each.decode(): number for number, each in enumerate(self.rates.ran, 1)}
        expected = {
            customer: [(number, f"{what} at {at[what]}") for number, what in rows]
            for customer, rows in self.expected().items()
        }
        assert self.bills() == expected
        assert self.invoices() == expected

    def kept(self):
        """The calls that the store keeps, by message and number: whether there is an answer."""
        with closing(self.connect()) as connection:
            rows = connection.execute(
                "SELECT lsn, number, answer IS NOT NULL FROM sharedlog_consumer_call "
                "ORDER BY serial"
            )
            return [tuple(map(int, row)) for row in rows.fetchall()]


class CallingLog(Calling, LogWorld):
    """With its state in the log."""

    def __init__(self, rates, **settings):
        super().__init__(rates, NoDatabase(), **settings)

    def kept(self):
        found = self.log._place.run(read_calls("billing", "orders/0", None))
        return [(each.position.lsn, each.number, int(each.answer is not None)) for each in found]


def kill_before(process, step):
    """Have a process die before a step of this name."""

    def kill(_, name):
        if name == step:
            process.die()

    process.before = kill


def stub(effects, target, method=METHOD):
    return effects.channel(target).unary_unary(method)


@pytest.mark.parametrize("fault", [die, lose])
def test_calls_happen_once_wherever_a_process_dies(many_worlds, rates, fault):
    """Killed before each step, or with the answer to it lost: a successor has the answers (T6)."""
    for step in itertools.count(1):
        rates.ran.clear()
        world = many_worlds(rates)
        met = fault(world.consumer(), **{"before" if fault is die else "of": step})
        drain(world.consumer())
        world.check_called()
        if not met:
            break
    assert step > 15


def test_a_successor_sends_what_has_no_answer_before_anything_else(new_world, rates):
    """Also where the handler would not call any more: it may have run, and is answered (T6)."""
    world = new_world(rates, orders=1)
    with driven(world.consumer()) as process:
        kill_before(process, "service: call")
        process.drain()
    assert process.dead
    assert [each[1:] for each in world.kept()] == [(1, 0)]
    assert rates.ran == []
    world.looks = lambda order, effects: None
    with driven(world.consumer()) as successor:
        successor.before = lambda _, name: name != "handlers: run" or check_answered(world)
        successor.drain()
    assert successor.steps.index("service: call") < successor.steps.index("handlers: run")
    assert len(rates.ran) == 1
    world.check()


def check_answered(world):
    assert [each[1:] for each in world.kept()] == [(1, 1)]


def test_a_zombie_at_each_step_of_a_call_changes_nothing(many_worlds, rates):
    """A late copy of its call is answered as the first was, and what it intends is fenced (T6)."""
    for step in itertools.count(1):
        rates.ran.clear()
        world = many_worlds(rates, batch=1)
        met = False

        def overtaken(number, name, world=world, step=step):
            nonlocal met
            if number == step and not met:
                met = True
                if name == "store: commit" and world.database.url.startswith("sqlite"):
                    return
                lapsed(world)
                drain(world.consumer())
                world.check_called()

        with driven(world.consumer()) as zombie:
            zombie.before = overtaken
            zombie.drain()
        world.check_called()
        if not met:
            break
    assert step > 15


def test_what_a_zombie_intends_is_fenced_and_not_sent(new_world, rates):
    """Its successor's handler makes no call for the message any more (T6)."""
    world = new_world(rates, orders=1)
    met = []

    def overtaken(_, name):
        if name == "store: intend" and not met:
            met.append(name)
            lapsed(world)
            world.looks = lambda order, effects: None
            drain(world.consumer())

    with driven(world.consumer()) as zombie:
        zombie.before = overtaken
        zombie.drain()
    assert met
    assert rates.ran == []
    world.check()


def test_an_answer_is_kept_until_the_position_has_passed_and_no_longer(new_world, rates):
    """Never by time; only the newest row stays, by which calls are counted (T6)."""
    world = new_world(rates, orders=2, batch=1)
    with driven(world.consumer()) as process:
        seen = []

        def look(_, name):
            if name == "handlers: run":
                seen.append(len(world.kept()))

        process.before = look
        process.drain()
    assert seen[:2] == [0, 1]
    assert len(world.kept()) == 1


def test_a_handler_that_fails_gets_the_first_answers_when_it_runs_again(new_world, rates):
    """The service is asked once, and its second answer would be another one (T6)."""
    world = new_world(rates, orders=1)
    failures = iter([ValueError("no"), ValueError("no")])

    def fail(order, effects):
        world.call(order, effects)
        for error in failures:
            raise error

    world.looks = fail
    drain(world.consumer())
    world.check_called()


def test_an_error_that_a_service_has_answered_is_an_answer(new_world, rates):
    """It is raised each time, of the same kind; a handler may go on from it (T6)."""
    world = new_world(rates, orders=1)
    rates.refuses.add(b"order 1")
    told = []

    def call(order, effects):
        with pytest.raises(rifl.CallError) as raised:
            stub(effects, rates.target)(order["what"].encode())
        told.append((raised.value.code(), raised.value.details()))
        if len(told) == 1:
            raise ValueError("once more")

    world.looks = call
    drain(world.consumer())
    assert told == [(grpc.StatusCode.NOT_FOUND, "no rate for order 1")] * 2
    assert len(rates.ran) == 1
    world.check()


def test_a_service_that_is_away_is_waited_for_and_counts_for_nothing(new_world, rates):
    """However often: nothing is committed, also where the handler hides the error (T6, T5)."""
    world = new_world(rates, orders=1, attempts=2)
    met = []
    away = {"target": "127.0.0.1:1", "timeout": 0.2}
    there = {"target": rates.target, "timeout": 60}

    def call(order, effects):
        # Who is away is so however long one waits; who is there may be slow.
        service = away if len(met) < 4 else there
        try:
            stub(effects, service["target"])(order["what"].encode(), timeout=service["timeout"])
        except grpc.RpcError as error:
            met.append(error)

    world.looks = call
    drain(world.consumer())
    assert len(met) == 4
    assert len(rates.ran) == 1
    world.check()


def test_a_handler_that_makes_another_call_when_it_runs_again_is_given_up_at_once(new_world, rates):
    """It is not tried again: what it called has happened (T6, T5)."""
    world = new_world(rates, orders=1, dead_letters="orders.dead")
    world.log.stream("orders.dead", substreams=1)
    runs = []

    def call(order, effects):
        runs.append(order["what"])
        with pytest.raises(CallMismatch) if len(runs) > 1 else nullcontext():
            stub(effects, rates.target)(f"call {min(len(runs), 2)}".encode())
        raise ValueError("not yet")

    world.looks = call
    drain(world.consumer())
    assert len(runs) == 2
    assert rates.ran == [b"call 1"]
    (dead,) = world.log.read("orders.dead", 0)
    assert "CallMismatch" in dead.headers["dead-letter-error"].decode()
    world.refused.add("c0")
    world.check()


def test_a_call_that_a_service_has_forgotten_is_not_sent_again(new_database, rates):
    """Its records are gone: whether it ran, nobody knows (T6)."""
    world = new_database(rates, orders=1, attempts=2)
    with driven(world.consumer()) as process:
        kill_before(process, "store: answer")
        process.drain()
    assert len(rates.ran) == 1
    with rifl.Deduplicator("memory:") as wiped, served(wiped, rates) as target:
        with closing(world.connect()) as connection, connection:
            connection.execute(
                world.database.of("UPDATE sharedlog_consumer_call SET target = ?"), (target,)
            )
        rates.target, told = target, []

        def call(order, effects):
            with pytest.raises(CallForgotten) as raised:
                stub(effects, target)(order["what"].encode())
            told.append(raised.value)

        world.looks = call
        drain(world.consumer())
    assert len(told) == 1
    assert len(rates.ran) == 1
    assert world.bills() == {}


def test_nothing_commits_while_a_call_of_its_message_has_no_answer(new_database, rates):
    """Also where the handler does not make it any more, and the service refuses it (T6)."""
    world = new_database(rates, orders=1, attempts=2, dead_letters="orders.dead")
    world.log.stream("orders.dead", substreams=1)
    with driven(world.consumer()) as process:
        kill_before(process, "service: call")
        process.drain()
    with rifl.Deduplicator("memory:") as wiped, served(wiped, rates) as target:
        with closing(world.connect()) as connection, connection:
            connection.execute(
                world.database.of("UPDATE sharedlog_consumer_call SET target = ?"), (target,)
            )
        world.looks = lambda order, effects: None
        drain(world.consumer())
    assert world.bills() == {}
    (dead,) = world.log.read("orders.dead", 0)
    assert "has no answer" in dead.headers["dead-letter-error"].decode()
    assert rates.ran == []


def test_calls_come_before_the_first_write_where_a_store_has_one_writer(new_database, rates):
    """``CallAfterWrite`` over SQLite, for which others would wait; PostgreSQL has room (T6)."""
    world = new_database(rates, orders=1, attempts=1)
    one_writer = world.database.url.startswith("sqlite")
    told = []

    def call(order, effects):
        effects.connection.execute("INSERT INTO bill VALUES (0, 'c9', 0, 'early')")
        try:
            stub(effects, rates.target)(order["what"].encode())
        except InvalidRequest as error:
            told.append(error)

    world.looks = call
    drain(world.consumer())
    assert {type(each) for each in told} == ({CallAfterWrite} if one_writer else set())
    assert len(rates.ran) == (not one_writer)
    assert ("c9" in world.bills()) is not one_writer


def test_others_write_the_database_while_a_service_is_called(new_database, rates):
    """Each message with calls has a transaction of its own where there is one writer (T6)."""
    world = new_database(rates, orders=3)
    call = rates.__call__

    def slow(request, context):
        with closing(world.connect()) as connection, connection:
            connection.execute("INSERT INTO bill VALUES (-1, 'another', 0, 'written')")
        return call(request, context)

    with rifl.Deduplicator("memory:") as dedup, served(dedup, slow) as target:
        rates.target = target
        drain(world.consumer())
    bills = world.bills()
    assert len(bills.pop("another")) == len(rates.ran) == 4
    assert bills == world.invoices()


def test_what_a_handler_has_read_before_a_call_holds_when_it_writes(new_database, rates):
    """Where others wrote meanwhile it runs again, without a call: as one transaction (T6)."""
    world = new_database(rates, orders=1)
    call, runs = rates.__call__, []

    def slow(request, context):
        with closing(world.connect()) as connection, connection:
            connection.execute("INSERT INTO bill VALUES (-1, 'another', 0, 'written')")
        return call(request, context)

    def read_and_call(order, effects):
        read = "SELECT count(*) FROM bill"
        (before,) = effects.connection.execute(read).fetchone()
        stub(effects, rates.target)(order["what"].encode())
        (behind,) = effects.connection.execute(read).fetchone()
        runs.append((before, behind))

    world.looks = read_and_call
    with rifl.Deduplicator("memory:") as dedup, served(dedup, slow) as target:
        rates.target = target
        drain(world.consumer())
    one_writer = world.database.url.startswith("sqlite")
    # PostgreSQL's transactions see what others commit, statement by statement.
    assert runs == ([(1, 1)] if one_writer else [(0, 1)])
    assert len(rates.ran) == 1


def test_messages_without_calls_share_a_transaction_up_to_the_first_with_one(tmp_path, rates):
    """What they published before is not lost, nor is anything of it there twice (T6)."""
    world = Calling(rates, tmp_path, orders=4, substreams=1)
    whole = []

    def call(order, effects):
        effects.publish("invoices", json.dumps({**order, "number": 0}), key="early")
        if order["what"] in ("order 3", "order 4"):
            world.call(order, effects)
        whole.append(order["what"])

    world.looks = call
    with driven(world.consumer()) as process:
        process.drain()
        assert process.steps.count("handlers: run") == 4
    assert [each.split(" at ")[0] for each in whole] == [f"order {n}" for n in range(1, 6)]
    assert rates.ran == [b"order 3", b"order 4"]
    assert world.bills() == {
        customer: [(number, what) for number, what in rows if number]
        for customer, rows in world.invoices().items()
    }
    assert sum(not number for rows in world.invoices().values() for number, _ in rows) == 5


def test_an_async_handler_makes_calls_at_once(many_worlds, rates):
    """Gathered, they keep their numbers; killed at any step, each happens once (T6)."""
    for step in itertools.count(1):
        rates.ran.clear()
        world = many_worlds(rates, orders=1)

        def consumer(world=world):
            made = sharedlog.Consumer(world.log, "billing", ["orders"], world.database.url)

            @made.on("orders", json.loads)
            async def bill(order, effects):
                call = stub(effects, rates.target)
                found = await asyncio.gather(*(call(f"{at}".encode()) for at in range(3)))
                order["what"] = " ".join(sorted(each.decode() for each in found))
                world.bill(order, effects)

            return made

        died = die(consumer(), before=step)
        drain(consumer())
        assert sorted(rates.ran) == [b"0", b"1", b"2"]
        assert world.bills() == world.invoices() == {"c0": [(1, "1 2 3")]}
        if not died:
            break
    assert step > 10


def test_an_async_handler_awaits_the_calls_that_it_makes(new_world, rates):
    """One that it leaves, or waits for no longer, undoes its transaction (T6)."""
    world = new_world(rates, orders=1, attempts=3, dead_letters="orders.dead")
    world.log.stream("orders.dead", substreams=1)
    consumer = sharedlog.Consumer(
        world.log, "billing", ["orders"], world.database.url, attempts=1, dead_letters="orders.dead"
    )

    @consumer.on("orders", json.loads)
    async def bill(order, effects):
        stub(effects, rates.target)(b"left")
        await asyncio.sleep(0)

    drain(consumer)
    (dead,) = world.log.read("orders.dead", 0)
    assert "not awaited a call" in dead.headers["dead-letter-error"].decode()


def test_a_gathered_calls_end_does_not_hide_what_the_handler_raised(new_world, rates):
    """The other call is in flight when the handler fails: the letter has the handler's error."""
    world = new_world(rates, orders=1, attempts=1, dead_letters="orders.dead")
    world.log.stream("orders.dead", substreams=1)
    consumer = sharedlog.Consumer(
        world.log, "billing", ["orders"], world.database.url, attempts=1, dead_letters="orders.dead"
    )
    rates.goes_on.clear()

    async def fail():
        raise ValueError("no price")

    @consumer.on("orders", json.loads)
    async def bill(order, effects):
        await asyncio.gather(stub(effects, rates.target)(b"slow"), fail())

    try:
        drain(consumer)
    finally:
        rates.goes_on.set()
    (dead,) = world.log.read("orders.dead", 0)
    assert dead.headers["dead-letter-error"].decode() == "ValueError: no price"


def test_calls_are_unary_and_their_channel_is_the_consumers(new_world, rates):
    """Others are refused by ``InvalidRequest``, where they are made, and not where stubs are."""
    world = new_world(rates, orders=1, dead_letters="orders.dead", attempts=1)
    world.log.stream("orders.dead", substreams=1)
    told = []

    def call(order, effects):
        channel = effects.channel(rates.target)
        for method in (channel.unary_stream, channel.stream_unary, channel.stream_stream):
            with pytest.raises(InvalidRequest, match="unary"):
                method(METHOD)(b"")
        with pytest.raises(InvalidRequest, match="unary"):
            channel.unary_unary(METHOD).future(b"")
        with pytest.raises(InvalidRequest, match="timeout=-1"):
            channel.unary_unary(METHOD)(b"", timeout=-1)
        with pytest.raises(InvalidRequest, match="credentials"):
            channel.unary_unary(METHOD)(b"", credentials=object())
        with pytest.raises(InvalidRequest):
            channel.subscribe(print)
        reply, status = channel.unary_unary(METHOD).with_call(b"x", metadata=[("a", "b")])
        told.append((reply, status.code(), effects))

    world.looks = call
    drain(world.consumer())
    ((reply, code, effects),) = told
    assert (reply, code) == (b"1", grpc.StatusCode.OK)
    with pytest.raises(InvalidRequest, match="has ended"):
        effects.channel(rates.target)
    world.check()


def test_a_service_that_does_not_deduplicate_is_not_called(new_world, monkeypatch):
    """A call that could happen twice does not happen (T6)."""
    monkeypatch.setenv("RIFL_SESSION_SECRET", "known to the tests")
    rates = Rates()
    with (
        rifl.Deduplicator("memory:", methods={METHOD: None}) as dedup,
        served(dedup, rates) as target,
    ):
        rates.target = target
        world = new_world(rates, orders=1, attempts=1, dead_letters="orders.dead")
        world.log.stream("orders.dead", substreams=1)
        drain(world.consumer())
        (dead,) = world.log.read("orders.dead", 0)
    assert "NOT_DEDUPLICATED" in dead.headers["dead-letter-error"].decode()
    assert rates.ran == []


def test_a_shard_goes_on_to_another_session_and_closes_the_one_before(
    new_database, rates, monkeypatch
):
    """A service keeps so many keys of one, and all until it is closed (T6)."""
    from sharedlog._core.consumer import calls

    monkeypatch.setattr(calls, "SESSION_CALLS", 2)
    world = new_database(rates, orders=4, batch=1)
    sessions = []

    def look(order, effects):
        world.call(order, effects)
        with closing(world.connect()) as connection:
            rows = connection.execute("SELECT session FROM sharedlog_consumer_call")
            sessions.append(sorted(row[0].rpartition("#")[2] for row in rows.fetchall())[-1])

    world.looks = look
    drain(world.consumer())
    assert sessions == ["0", "1", "1", "2", "2"]
    world.check_called()
