"""Functions that are called with batches: lists of messages, in one transaction each."""

import asyncio
import itertools
import json

import pytest

import sharedlog
from sharedlog.testing import die, drain, driven
from tests.sharedlog.consumer.world import LogWorld, World


class BatchWorld(World):
    """Its orders are billed in batches."""

    # Of each call how many orders it had.
    calls: list

    def consumer(self, **settings):
        consumer = sharedlog.Consumer(
            self.log, "billing", ["orders"], self.database.url, **{**self.settings, **settings}
        )
        self.calls = []

        @consumer.on("orders", json.loads, batches=True)
        def bill(orders, effects):
            self.calls.append([each["what"] for each in orders])
            self.looks(orders, effects)
            for order in orders:
                if order["customer"] in self.refused:
                    raise ValueError(f"{order['customer']} is not billed")
                self.bill(order, effects)

        return consumer


class BatchLogWorld(BatchWorld, LogWorld):
    """The log has their state."""


@pytest.fixture(params=[BatchWorld, BatchLogWorld])
def world_of(request, tmp_path):
    """Makes worlds of batches, over a database and over the log."""
    directories = itertools.count()

    def make(**settings):
        place = tmp_path / f"{next(directories)}"
        return request.param(place if request.param is BatchWorld else None, **settings)

    return make


def test_a_function_gets_what_waits_in_lists_of_one_substream(world_of):
    """In its order, no more than ``batch``, and what it publishes is there once (T2)."""
    world = world_of(orders=12, batch=3)
    drain(world.consumer())
    world.check()
    assert max(map(len, world.calls)) == 3
    orders = [
        [json.loads(each.value)["what"] for each in world.log.read("orders", at)] for at in (0, 1)
    ]
    called = list(itertools.chain(*world.calls))
    assert sorted(called) == sorted(itertools.chain(*orders))
    for substream in orders:
        assert [each for each in called if each in substream] == substream


def test_effects_are_those_of_one_run_wherever_a_process_dies(world_of):
    """Killed before each step: a batch is there as a whole, or not at all (DESIGN-LOG §14, T1)."""
    for step in itertools.count(1):
        world = world_of(orders=3, batch=2, substreams=1)
        met = die(world.consumer(), before=step)
        drain(world.consumer())
        world.check()
        if not met:
            break
    assert step > 10


def test_a_message_that_fails_is_found_one_by_one_and_buried_alone(world_of):
    """The others of its batch have their effects, in order, and batches come again (T5)."""
    world = world_of(orders=12, substreams=1, attempts=2, dead_letters="dead")
    world.log.stream("dead", substreams=1)
    world.refused = {"c1"}
    drain(world.consumer())
    world.check()
    refused = [each for each in world.log.read("orders", 0) if b'"c1"' in each.value]
    assert [each.value for each in world.log.read("dead", 0)] == [each.value for each in refused]
    alone = [each for (each,) in filter(lambda call: len(call) == 1, world.calls)]
    assert {json.loads(each.value)["what"] for each in refused} <= {*alone}
    assert max(map(len, world.calls[1:])) > 1


def test_a_message_that_cannot_be_read_is_buried_alone(tmp_path):
    """``kind`` raises for it: as if the function had (T5)."""
    world = BatchWorld(tmp_path, orders=3, substreams=1, attempts=1, dead_letters="dead")
    world.log.stream("dead", substreams=1)
    world.log.publish("orders", b"{", key="c0")
    drain(world.consumer())
    (dead,) = world.log.read("dead", 0)
    assert dead.value == b"{"
    assert sum(map(len, world.bills().values())) == world.published


def test_an_async_function_takes_batches(tmp_path):
    """It is awaited, and its effects are those of one transaction."""
    world = World(tmp_path, orders=6, substreams=1)
    consumer = sharedlog.Consumer(world.log, "billing", ["orders"], world.database.url)

    @consumer.on("orders", json.loads, batches=True)
    async def bill(orders, effects):
        for order in orders:
            await asyncio.sleep(0)
            world.bill(order, effects)

    with driven(consumer) as process:
        assert process.drain() == world.published
        assert process.steps.count("handlers: run") == 1
    world.check()


def test_what_is_of_one_message_is_refused_and_of_all_is_there(tmp_path):
    """Messages have positions; a call would be of one of them, by a number that changes (T6)."""
    world = BatchWorld(tmp_path, orders=3, substreams=1)
    told = []

    def look(orders, effects):
        with pytest.raises(sharedlog.InvalidRequest, match=r"effects\.messages"):
            _ = effects.message
        with pytest.raises(sharedlog.InvalidRequest, match="once for each message"):
            effects.channel("rates:50051")
        told.append(len(effects.messages) == len(orders))
        effects.publish("copies", b"all")
        told.append(effects.messages[-1].position)

    world.looks = look
    drain(world.consumer())
    world.check()
    (copy,) = [each for at in range(2) for each in world.log.read("copies", at)]
    assert told[0]
    assert copy.causation_id == str(told[1])
    with pytest.raises(sharedlog.InvalidRequest, match="batches"):
        world.consumer().on("orders", batches=3)


def test_observers_are_told_of_all_messages_of_a_batch(tmp_path):
    """One run, and as many messages as it had are committed."""
    runs, committed = [], []

    class Observer(sharedlog.ConsumerObserver):
        def handled(self, report, begun, seconds, error):
            runs.append(report.position)

        def committed(self, reports):
            committed.extend(each.position for each in reports)

    world = BatchWorld(tmp_path, orders=6, substreams=1, observer=Observer())
    drain(world.consumer())
    world.check()
    positions = [each.position for each in world.log.read("orders", 0)]
    assert committed == positions
    assert runs == [positions[-1]]
