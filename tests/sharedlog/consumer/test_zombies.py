"""Zombies: processes taken for dead come back, and change nothing (DESIGN-LOG §14, T1)."""

import itertools
from contextlib import closing
from datetime import timedelta

import pytest

import sharedlog
from sharedlog._core.consumer.asked import TakeStore
from sharedlog._core.consumer.members import Gone, all_consumers, look, part, take
from sharedlog._core.consumer.shard import Shard
from sharedlog._core.errors import Fenced, TrimmedLog
from sharedlog._core.fences import Fence, fence_key
from sharedlog.testing import drain, driven
from tests.sharedlog.consumer.each_step import meets_a_zombie_at_each_step
from tests.sharedlog.consumer.world import World


def lapsed(world, name="billing"):
    """The leases of a consumer's processes are over, as their engine's clock says."""
    place = world.log._place
    for who in place.run(look(name)).members:
        place.run(part(name, who))


def test_a_zombie_at_each_step_changes_nothing(tmp_path):
    """Stopped before each step, and taken over from; it then goes on where it was (T1)."""
    numbers = itertools.count(1)
    meets_a_zombie_at_each_step(
        lambda: World(tmp_path / f"{next(numbers)}", orders=3, batch=2),
        lapsed,
        alone="store: commit",
        steps=15,
    )


def test_a_zombie_whose_successor_has_appended_more_appends_nothing(tmp_path):
    """Its output is in the log by its successor, and then others are (T1, L3, L4)."""
    world = World(tmp_path, orders=3)
    met = False

    def overtaken(_, name):
        nonlocal met
        if name == "log: append" and not met:
            met = True
            lapsed(world)
            drain(world.consumer())
            world.order(3)
            drain(world.consumer())

    with driven(world.consumer()) as zombie:
        zombie.before = overtaken
        zombie.drain()
    assert met
    world.check()


def test_a_zombie_whose_messages_are_trimmed_by_now_is_fenced(tmp_path):
    """What its successor has done may be gone: that does not end its process (T1, L6)."""
    world = World(tmp_path, orders=0)
    world.log = sharedlog.create("memory:")
    world.log.stream("short", 1, timedelta(0))

    def short():
        consumer = sharedlog.Consumer(world.log, "quick", ["short"], world.database.url)
        consumer.on("short", bytes)(lambda *_: None)
        return consumer

    world.log.publish("short", b"1")
    with driven(short()) as zombie:
        assert zombie.drain() == 1
        lapsed(world, "quick")
        for _ in range(2):
            world.log.publish("short", b"more")
            drain(short())
        world.log.trim(timedelta(0))
        # It does not look who has what.
        zombie._work.sharing.look = lambda: None
        assert zombie.round() == 0
        assert zombie.shards == []


def test_the_fence_of_a_store_only_rises(tmp_path):
    """In one step with the reading of the checkpoint (T1)."""
    world = World(tmp_path, orders=1)
    with (
        closing(world.consumer()._open_store()) as one,
        closing(world.consumer()._open_store()) as other,
    ):
        assert one.take("orders/0", 3, gone=Gone.LEFT, anew=False).number == 3
        with pytest.raises(Fenced):
            other.take("orders/0", 3, gone=Gone.LEFT, anew=False)
        with pytest.raises(Fenced):
            other.take("orders/0", 2, gone=Gone.LEFT, anew=False)
        assert other.take("orders/0", 4, gone=Gone.LEFT, anew=False).number == 4
        with pytest.raises(Fenced):
            one.note("orders/0", 3, 1)


def test_a_shard_is_taken_in_the_log_before_its_store_is_read(tmp_path):
    """The lease's number is the fence's, in the store, too (T1)."""
    world = World(tmp_path, orders=2)
    for number in (1, 2, 3):
        with driven(world.consumer()) as process:
            taken = []
            act = process._do

            def spy(step, act=act, taken=taken):
                if isinstance(step, TakeStore):
                    found = world.log._engine.get((f"fence/*consumer/billing/{step.tag}",))
                    taken.append((step.number, *(int.from_bytes(each) for each in found.values())))
                return act(step)

            process._do = spy
            process.drain()
        assert taken == [(number, number)] * 2
    assert world.log._place.run(all_consumers()) == ["billing"]


def test_what_a_zombie_owes_is_its_successors_to_append(tmp_path):
    """Each append is judged under the lease's number, too (T1, L4)."""
    world = World(tmp_path, orders=3)
    with driven(world.consumer()) as zombie:

        def overtaken(_, name):
            if name == "log: append":
                lapsed(world)
                for tag in zombie.shards:
                    world.log._place.run(take("billing", tag, "another"))

        zombie.before = overtaken
        zombie.round()
        assert "log: append" in zombie.steps
        assert world.bills()
        assert not world.invoices()
        zombie.before = lambda *_: None
        world.log._place.run(part("billing", "another"))
    drain(world.consumer())
    world.check()


class _Trimmed:
    """A keeper whose log was trimmed beyond what it knows of."""

    def tend(self, now_us):
        yield from ()
        raise TrimmedLog("what follows LSN 819 was trimmed", 1006)


@pytest.mark.parametrize(("number", "expected"), [(8, Fenced), (7, TrimmedLog)])
def test_what_is_trimmed_while_a_zombie_tends_its_state_is_its_successors_doing(number, expected):
    """Overtaken it gives the shard up; only who still has it tells of the trim (T1)."""
    shard = Shard.__new__(Shard)
    shard.keeper = _Trimmed()
    shard._fence = Fence("consumer/billing/orders/0", 7)
    steps = shard.tend(0)
    assert next(steps).keys == (fence_key(shard._fence.name),)
    with pytest.raises(expected):
        steps.send({fence_key(shard._fence.name): number.to_bytes(8, "big")})
