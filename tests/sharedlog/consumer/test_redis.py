"""A consumer whose store is Redis (DESIGN-LOG §14, T1, T2, T5, T6)."""

import itertools
import json
import secrets
from contextlib import closing

import pytest
import redis

import rifl
import sharedlog
from sharedlog import NotDurable, StoreWentBack
from sharedlog._core.consumer.members import Gone, look, resume
from sharedlog._core.errors import Fenced
from sharedlog.testing import die, drain, driven, lose
from tests.echo import METHOD, served
from tests.helpers.log_servers import own_redis, shared_redis
from tests.sharedlog.consumer.each_step import (
    meets_a_fault_at_each_step,
    meets_a_zombie_at_each_step,
)
from tests.sharedlog.consumer.test_zombies import lapsed
from tests.sharedlog.consumer.world import World, by_customer
from tests.stores.redis.servers import Backup

__all__ = ["own_redis", "shared_redis"]


class RedisWorld(World):
    """Orders of customers; the bills of one are a list, whose length the handler reads."""

    def __init__(self, server, reads=True, **settings):
        self.server = server
        self.reads = reads
        self.name = secrets.token_hex(6)
        super().__init__(self, **settings)

    @property
    def url(self):
        return self.server.url()

    def connect(self):
        return _Nothing()

    def client(self):
        return closing(redis.Redis.from_url(self.server.url()))

    def consumer(self, **settings):
        made = sharedlog.Consumer(
            self.log, self.name, ["orders"], self.url, **{**self.settings, **settings}
        )

        @made.on("orders", json.loads)
        def bill(order, effects):
            self.looks(order, effects)
            if order["customer"] in self.refused:
                raise ValueError(f"{order['customer']} is not billed")
            key = f"bills:{self.name}:{order['customer']}"
            bills = effects.connection
            number = 0
            if self.reads:
                bills.watch(key)
                number = 1 + bills.llen(key)
                bills.multi()
            bills.rpush(key, order["what"])
            invoice = {"customer": order["customer"], "number": number, "what": order["what"]}
            effects.publish("invoices", json.dumps(invoice), key=order["customer"])

        return made

    def bills(self):
        with self.client() as client:
            return {
                key.decode().rpartition(":")[2]: [
                    (number, what.decode())
                    for number, what in enumerate(client.lrange(key, 0, -1), 1)
                ]
                for key in client.scan_iter(f"bills:{self.name}:*")
            }

    def invoices(self):
        found = super().invoices()
        if self.reads:
            return found
        return by_customer(
            (customer, number, what)
            for customer, rows in found.items()
            for number, (_, what) in enumerate(rows, 1)
        )

    def lapsed(self):
        lapsed(self, self.name)

    def row(self, tag="orders/0"):
        with self.client() as client:
            return client.hgetall(f"sharedlog:consumer:{self.name}:{tag}")


class _Nothing:
    """In place of a connection of SQL, to a database that needs no tables."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def execute(self, _):
        return None

    def close(self):
        return None


@pytest.mark.parametrize("reads", [True, False])
@pytest.mark.parametrize("fault", [die, lose])
def test_effects_are_those_of_one_run_wherever_a_process_dies(shared_redis, fault, reads):
    """Killed before each step, or with the answer to it lost (T1, T2, T3)."""
    meets_a_fault_at_each_step(
        lambda: RedisWorld(shared_redis, reads, orders=2, substreams=1), fault
    )


def test_a_zombie_at_each_step_changes_nothing(shared_redis):
    """Its commit is judged by the fence, in the script that would carry it out (T1)."""
    meets_a_zombie_at_each_step(
        lambda: RedisWorld(shared_redis, orders=2, substreams=1), RedisWorld.lapsed
    )


def test_the_fence_only_rises(shared_redis):
    """In one step with the reading of the checkpoint (T1)."""
    world = RedisWorld(shared_redis, orders=1)
    with (
        closing(world.consumer()._open_store()) as one,
        closing(world.consumer()._open_store()) as other,
    ):
        assert one.take("orders/0", 3, gone=Gone.LEFT, anew=False).number == 3
        for number in (3, 2):
            with pytest.raises(Fenced):
                other.take("orders/0", number, gone=Gone.LEFT, anew=False)
        assert other.take("orders/0", 4, gone=Gone.DIED, anew=False).takeovers == 1
        with pytest.raises(Fenced):
            one.note("orders/0", 3, 1)
        assert other.take("orders/0", 5, gone=Gone.LEFT, anew=True).takeovers == 0


def test_messages_share_a_transaction_and_one_that_watches_begins_its_own(shared_redis):
    """What others queued would not be in what it reads."""
    for reads, runs in ((False, 1), (True, 3)):
        world = RedisWorld(shared_redis, reads, orders=2, substreams=1)
        world.order(1)
        with driven(world.consumer()) as process:
            process.drain()
            assert process.steps.count("handlers: run") == runs
        world.check()


def test_a_watched_key_that_changes_has_the_handler_run_again(shared_redis):
    """As redis-py's users expect, and without an attempt that counts (T5)."""
    world = RedisWorld(shared_redis, orders=1, substreams=1, attempts=1)
    key = f"bills:{world.name}:c0"

    with driven(world.consumer()) as process:
        changed = []

        def change(_, name):
            if name == "store: commit" and not changed:
                changed.append(name)
                with world.client() as client:
                    client.rpush(key, "another's")

        process.before = change
        process.drain()
    assert world.bills() == {"c0": [(1, "another's"), (2, "order 1")]}
    assert world.invoices() == {"c0": [(2, "order 1")]}


def test_a_command_that_fails_midway_stops_the_shard_and_is_not_repeated(shared_redis):
    """What a script did before stays done: no try repeats it, until an operator says so (T5)."""
    world = RedisWorld(shared_redis, False, orders=1, substreams=1)
    key = f"counted:{world.name}"

    def fail(order, effects):
        effects.connection.incr(key)
        effects.connection.lpush(key, "is a number")

    world.looks = fail
    for _ in range(2):
        drain(world.consumer())
        seen = world.log._place.run(look(world.name))
        assert "WRONGTYPE" in seen.stopped["orders/0"]
    assert world.log._place.run(resume(world.name)) == ["orders/0"]
    with world.client() as client:
        assert client.get(key) == b"1"
    world.looks = lambda order, effects: effects.connection.incr(key)
    drain(world.consumer())
    with world.client() as client:
        assert client.get(key) == b"2"
    world.check()


def test_what_is_broken_is_known_to_who_takes_over(shared_redis):
    """The mark is in the store, in the same step (T5)."""
    world = RedisWorld(shared_redis, False, orders=1, substreams=1)
    key = f"counted:{world.name}"

    def fail(order, effects):
        effects.connection.incr(key).lpush(key, "is a number")

    world.looks = fail
    with driven(world.consumer()) as process:
        process.before = kill_after_commit(process)
        process.drain()
    assert process.dead
    drain(world.consumer())
    assert "WRONGTYPE" in world.log._place.run(look(world.name)).stopped["orders/0"]
    with world.client() as client:
        assert client.get(key) == b"1"


def kill_after_commit(process):
    def kill(number, _):
        if "store: commit" in process.steps[: number - 1]:
            process.die()

    return kill


def test_a_first_command_that_fails_is_the_handlers_error(shared_redis):
    """Nothing of it is there: it is tried again, and becomes a dead letter (T5)."""
    world = RedisWorld(
        shared_redis, False, orders=1, substreams=1, attempts=2, dead_letters="orders.dead"
    )
    world.log.stream("orders.dead", substreams=1)
    key = f"counted:{world.name}"
    with world.client() as client:
        client.set(key, "text")
    world.looks = lambda order, effects: effects.connection.lpush(key, "x")
    drain(world.consumer())
    (dead,) = world.log.read("orders.dead", 0)
    assert b"WRONGTYPE" in dead.headers["dead-letter-error"]
    assert dead.headers["dead-letter-attempts"] == b"2"
    assert world.bills() == {}


@pytest.mark.parametrize(
    "wrong",
    [
        lambda bills: bills.execute(),
        lambda bills: bills.reset(),
        lambda bills: bills.flushall(),
        lambda bills: bills.eval("return 1", 0),
        lambda bills: bills.blpop("x"),
        lambda bills: bills.execute_command("NOSUCH", "x"),
        lambda bills: bills.execute_command("SET", "x"),
        lambda bills: bills.rpush("x", *range(6000)),
        lambda bills: bills.delete("sharedlog:consumer:another:orders/0"),
        lambda bills: (bills.watch("x"), bills.set("x", 1)),
    ],
)
def test_what_would_be_there_without_the_commit_is_refused(shared_redis, wrong):
    """By ``InvalidRequest``, where the handler says it."""
    world = RedisWorld(shared_redis, False, orders=1, substreams=1, attempts=1)
    told = []

    def refused(order, effects):
        with pytest.raises(sharedlog.InvalidRequest) as raised:
            wrong(effects.connection)
        told.append(raised.value)
        raise ValueError("enough")

    world.looks = refused
    drain(world.consumer())
    assert told
    assert world.bills() == {}


def test_calls_of_handlers_over_redis_happen_once(shared_redis, monkeypatch):
    """Killed before each step: the answers are kept, and go with the position (T6)."""
    monkeypatch.setenv("RIFL_SESSION_SECRET", "known to the tests")
    ran = []

    def count(request, context):
        ran.append(request)
        return str(len(ran)).encode()

    with rifl.Deduplicator("memory:") as dedup, served(dedup, count) as target:
        for step in itertools.count(1):
            ran.clear()
            world = RedisWorld(shared_redis, orders=2, substreams=1)

            def call(order, effects, target=target):
                method = effects.channel(target).unary_unary(METHOD)
                order["what"] += f" at {method(order['what'].encode()).decode()}"

            world.looks = call
            died = die(world.consumer(), before=step)
            drain(world.consumer())
            assert ran == [b"order 1", b"order 2"]
            assert world.bills() == world.invoices()
            assert {what for rows in world.bills().values() for _, what in rows} == {
                "order 1 at 1",
                "order 2 at 2",
            }
            with world.client() as client:
                assert client.hlen(f"sharedlog:consumer:{world.name}:orders/0:calls") == 1
            if not died:
                break
    assert step > 15


@pytest.mark.parametrize("lost", ["restored", "flushed"])
def test_a_redis_that_was_restored_is_told(own_redis, tmp_path, lost):
    """It has done less than the log knows: nothing is done again (T1)."""
    world = RedisWorld(own_redis, orders=2, substreams=1)
    drain(world.consumer())
    backup = Backup(own_redis, tmp_path / "backup")
    world.order(2)
    drain(world.consumer())
    if lost == "restored":
        backup.restore()
    else:
        with world.client() as client:
            client.flushall()
    with pytest.raises(StoreWentBack):
        drain(world.consumer())


def test_a_redis_that_may_forget_is_refused_unless_one_says_so(own_redis):
    """The settings are looked at when it is opened (DESIGN §6)."""
    with closing(redis.Redis.from_url(own_redis.url())) as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
    world = RedisWorld(own_redis, orders=1, substreams=1)
    with pytest.raises(NotDurable, match="noeviction"):
        drain(world.consumer())


def test_a_redis_that_is_away_is_waited_for(own_redis):
    """The commit whose answer was lost is found out before anything else (T5)."""
    world = RedisWorld(own_redis, orders=2, substreams=1, attempts=1)
    with driven(world.consumer()) as process:
        stopped = []

        def stop(_, name):
            if name == "store: commit" and not stopped:
                stopped.append(name)
                own_redis.stop()
            elif name == "store: commit":
                return

        process.before = stop
        process.round()
        own_redis.start()
        process.drain()
    world.check()


@pytest.mark.parametrize("asked", [b"EXEC", b"LLEN", b"\nINFO\r"], ids=["EXEC", "LLEN", "INFO"])
def test_a_connection_that_is_lost_while_it_watches_does_nothing_twice(
    shared_redis, monkeypatch, asked
):
    """A commit of which nothing was heard is of unknown fate, and a read is tried again (T5)."""
    world = RedisWorld(shared_redis, orders=2, substreams=1, attempts=1)
    send = redis.connection.Connection.send_packed_command
    lost = []

    def lose_it(self, command, check_health=True):
        send(self, command, check_health)
        sent = b"".join(bytes(each) for each in command)
        if asked in sent and (asked == b"\nINFO\r") == (b"INFO" in sent) and not lost:
            lost.append(sent)
            # The server has done it.
            for _ in range(3 if asked == b"EXEC" else 1):
                self.read_response()
            self.disconnect()
            raise redis.TimeoutError("nothing was heard")

    monkeypatch.setattr(redis.connection.Connection, "send_packed_command", lose_it)
    drain(world.consumer())
    assert lost
    world.check()
    assert world.row()[b"attempts"] == b"0"
    assert not world.log._place.run(look(world.name)).stopped


@pytest.mark.parametrize("hides", [True, False])
def test_a_handler_that_hides_a_lost_connection_commits_nothing(shared_redis, monkeypatch, hides):
    """What it watched nobody watches any more; it is no attempt, also as a cause (T5)."""
    world = RedisWorld(shared_redis, False, orders=1, substreams=1, attempts=1)
    key = f"seen:{world.name}"
    send = redis.connection.Connection.send_packed_command
    lost = []

    def lose_it(self, command, check_health=True):
        send(self, command, check_health)
        sent = b"".join(bytes(each) for each in command)
        if b"STRLEN" in sent and b"INFO" not in sent and len(lost) < 4:
            lost.append(self.read_response())
            self.disconnect()
            raise redis.TimeoutError("nothing was heard")

    def hide(_, effects):
        effects.connection.watch(key)
        try:
            effects.connection.strlen(key)
        except redis.RedisError as error:
            if not hides:
                raise ValueError("it did not work") from error
        effects.connection.multi()
        effects.connection.append(key, "x")

    world.looks = hide
    monkeypatch.setattr(redis.connection.Connection, "send_packed_command", lose_it)
    drain(world.consumer())
    assert len(lost) == 4
    with world.client() as client:
        assert client.get(key) == b"x"
    world.check()


def test_errors_of_another_redis_count(shared_redis):
    """They were tried again for ever, and held all behind them up (T5)."""
    world = RedisWorld(
        shared_redis, False, orders=1, substreams=1, attempts=2, dead_letters="orders.dead"
    )
    world.log.stream("orders.dead", substreams=1)
    failures = []

    def asks(*_):
        failures.append(1)
        assert len(failures) < 10, "tried for ever"
        with closing(redis.Redis(port=1, socket_connect_timeout=1)) as other:
            other.get("x")

    world.looks = asks
    drain(world.consumer())
    (dead,) = world.log.read("orders.dead", 0)
    assert dead.headers["dead-letter-error"].startswith(b"ConnectionError")
    assert len(failures) == 3


def sixty(shared_redis, **settings):
    """A world of sixty orders of one substream, each counted, that share a transaction."""
    world = RedisWorld(shared_redis, False, orders=0, substreams=1, **settings)
    for at in range(60):
        order = json.dumps({"customer": "c0", "what": f"order {at}"})
        world.log.publish("orders", order, key="c0")
    with world.client() as client:
        client.set(f"text:{world.name}", "no number")
    return world


def counted(world):
    """How often each order was counted."""
    with world.client() as client:
        found = client.hgetall(f"counted:{world.name}")
    return {what.decode(): int(times) for what, times in found.items()}


@pytest.mark.parametrize("dies", [False, True])
def test_a_message_that_is_done_in_part_is_tried_anew_by_itself(shared_redis, dies):
    """Those before it are done, with what they published, and none behind it has run (T5)."""
    world = sixty(shared_redis)
    wrong = [True]

    def count(order, effects):
        effects.connection.hincrby(f"counted:{world.name}", order["what"], 1)
        if order["what"] == "order 17" and wrong:
            effects.connection.incr(f"text:{world.name}")

    world.looks = count
    with driven(world.consumer()) as process:
        if dies:
            process.before = kill_after_commit(process)
        process.drain()
    assert process.dead is dies
    drain(world.consumer())
    why = world.log._place.run(look(world.name)).stopped["orders/0"]
    failed = world.log.read("orders", 0)[17].position
    assert f"a part of the message {failed}" in why
    assert "not an integer" in why
    # Only what it had written itself is there of it.
    assert counted(world) == {f"order {at}": 1 for at in range(18)}
    assert len(world.invoices()["c0"]) == 17
    with world.client() as client:
        client.hdel(f"counted:{world.name}", "order 17")
    wrong.clear()
    assert world.log._place.run(resume(world.name)) == ["orders/0"]
    drain(world.consumer())
    assert counted(world) == {f"order {at}": 1 for at in range(60)}
    world.check()


def test_a_message_of_which_nothing_was_written_keeps_no_other_back(shared_redis):
    """It is a dead letter, after the attempts that it has; its neighbours have run once (T5)."""
    world = sixty(shared_redis, attempts=2, dead_letters="orders.dead")
    world.log.stream("orders.dead", substreams=1)
    runs = []

    def count(order, effects):
        runs.append(order["what"])
        if order["what"] == "order 17":
            effects.connection.incr(f"text:{world.name}")
        effects.connection.hincrby(f"counted:{world.name}", order["what"], 1)

    world.looks = count
    drain(world.consumer())
    expected = {f"order {at}": 1 for at in range(60) if at != 17}
    assert counted(world) == expected
    (dead,) = world.log.read("orders.dead", 0)
    assert dead.headers["dead-letter-attempts"] == b"2"
    assert [runs.count(f"order {at}") for at in (16, 17, 18)] == [1, 3, 2]
    assert len(world.invoices()["c0"]) == 59


@pytest.mark.parametrize("kind", ["batches", "travels"])
def test_the_unit_of_a_batch_and_of_large_outputs_is_the_transaction(shared_redis, kind):
    """All of its messages are done again, which the reason says (T5)."""
    world = sixty(shared_redis)
    consumer = sharedlog.Consumer(world.log, world.name, ["orders"], world.url)
    pipeline = f"counted:{world.name}"

    def count(order, effects):
        effects.connection.hincrby(pipeline, order["what"], 1)
        if order["what"] == "order 3":
            effects.connection.incr(f"text:{world.name}")

    if kind == "batches":

        @consumer.on("orders", json.loads, batches=True)
        def all_of(orders, effects):
            for order in orders:
                count(order, effects)

    else:

        @consumer.on("orders", json.loads)
        def each_of(order, effects):
            count(order, effects)
            for _ in range(2 if order["what"] in ("order 0", "order 3") else 0):
                effects.publish("copies", b"x" * 1_000_000)

    drain(consumer)
    why = world.log._place.run(look(world.name)).stopped["orders/0"]
    assert "a part of the transaction through" in why
    assert "which is done again as a whole" in why
    assert counted(world)["order 3"] == 1
