"""A consumer's processes share its shards, whoever comes and goes (DESIGN-LOG §14)."""

import random

import pytest

import sharedlog
from sharedlog._core.consumer.members import (
    MemberTerm,
    Seen,
    join,
    leave,
    look,
    part,
    plan,
    renew,
    resume,
    stop,
    take,
)
from sharedlog._engines.driving import carry_out
from sharedlog._engines.memory import MemoryEngine, MemoryLog
from tests.sharedlog.consumer.world import World

TAGS = [f"orders/{each}" for each in range(7)]


class Clock:
    now_s = 0.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def engine(clock):
    return MemoryEngine(MemoryLog(clock=clock))


def joined(engine, who, streams=b"orders/7"):
    carry_out(engine, join(MemberTerm("billing", who, b"{}", streams, 1.0)))


def test_shards_are_taken_by_one_while_its_lease_lasts(engine, clock):
    """And by another one once it is over, by the engine's clock; with a higher fence (T1, L4)."""
    joined(engine, "a")
    first = carry_out(engine, take("billing", "orders/0", "a"))
    assert (first.fence.number, first.before) == (1, "")
    clock.now_s = 0.9
    joined(engine, "b")
    assert carry_out(engine, take("billing", "orders/0", "b")) is None
    carry_out(engine, renew(MemberTerm("billing", "a", b"{}", b"orders/7", 1.0)))
    clock.now_s = 1.8
    assert carry_out(engine, take("billing", "orders/0", "b")) is None
    clock.now_s = 2.0
    second = carry_out(engine, take("billing", "orders/0", "b"))
    assert (second.fence.number, second.before) == (2, "a")
    carry_out(engine, leave("billing", "orders/0", "a"))
    assert carry_out(engine, look("billing")).owners == {"orders/0": "b"}
    carry_out(engine, leave("billing", "orders/0", "b"))
    third = carry_out(engine, take("billing", "orders/0", "a"))
    assert (third.fence.number, third.before) == (3, "")


def test_who_takes_its_own_shard_again_raises_the_fence(engine):
    """As after a lost reply, or a commit of unknown fate (T1, T5)."""
    joined(engine, "a")
    numbers = [carry_out(engine, take("billing", "orders/0", "a")).fence.number for _ in range(3)]
    assert numbers == [1, 2, 3]


def test_a_consumer_that_runs_follows_no_other_streams(engine, clock):
    """It is told, and so is one whose consumer was started anew meanwhile (T1)."""
    joined(engine, "a")
    with pytest.raises(sharedlog.InvalidRequest, match="follows orders/7"):
        joined(engine, "b", b"orders/7,payments/2")
    clock.now_s = 2.0
    joined(engine, "b", b"orders/7,payments/2")
    with pytest.raises(sharedlog.InvalidRequest, match="another process started it anew"):
        carry_out(engine, renew(MemberTerm("billing", "a", b"{}", b"orders/7", 1.0)))


def test_a_shard_that_is_stopped_is_nobodys(engine):
    """Until it is resumed; only who has it stops it (T5)."""
    joined(engine, "a")
    fence = carry_out(engine, take("billing", "orders/0", "a")).fence
    carry_out(engine, stop("billing", "orders/0", "b", fence, "not its"))
    assert not carry_out(engine, look("billing")).stopped
    carry_out(engine, stop("billing", "orders/0", "a", fence, "why"))
    seen = carry_out(engine, look("billing"))
    assert (seen.stopped, seen.owners) == ({"orders/0": "why"}, {})
    assert carry_out(engine, take("billing", "orders/0", "a")) is None
    assert carry_out(engine, resume("billing")) == ["orders/0"]
    assert carry_out(engine, take("billing", "orders/0", "a")).fence.number == 2


def test_shards_are_shared_evenly_whoever_comes_and_goes():
    """After some looks of each nobody moves any more, and numbers differ by one at most."""
    chance = random.Random(7)
    members, owners = set(), {}

    def seen():
        return Seen(dict.fromkeys(members, b""), dict(owners), {}, (), None)

    for _ in range(200):
        # Somebody comes, goes, or dies, which leaves its shards as they are.
        who = f"m{chance.randrange(5)}"
        if who in members and len(members) > 1:
            members.remove(who)
            if chance.random() < 0.5:
                owners = {tag: each for tag, each in owners.items() if each != who}
        else:
            members.add(who)
        for _ in range(2 * len(members)):
            moved = False
            for each in sorted(members, key=lambda _: chance.random()):
                mine = {tag for tag, owner in owners.items() if owner == each}
                planned = plan(seen(), each, TAGS, mine)
                assert not planned.lost
                moved = moved or bool(planned.take or planned.leave)
                for tag in planned.leave:
                    del owners[tag]
                for tag in planned.take:
                    assert owners.get(tag) not in members - {each}
                    owners[tag] = each
        assert not moved
        counts = [sum(owner == each for owner in owners.values()) for each in members]
        assert sum(counts) == len(TAGS)
        assert max(counts) - min(counts) <= 1


def test_a_shard_that_a_member_was_given_unknowingly_is_taken_or_left():
    """The answer to its step was lost: nobody else takes it from who is there."""
    first, other, *_ = TAGS
    owners = {first: "a", other: "a"}
    for members, planned in (
        (("a",), ([other], [])),
        (("a", "b"), ([], [other])),
    ):
        found = plan(
            Seen(dict.fromkeys(members, b""), owners, {}, (), None), "a", [first, other], {first}
        )
        assert (found.take, found.leave) == planned
        assert not found.lost


def test_a_process_leaves_a_shard_that_it_was_given_unknowingly(tmp_path):
    """Another one has joined meanwhile, and has it then (T1)."""
    world = World(tmp_path, orders=4)
    with world.consumer()._member(iter(range(0, 10**9, 1000)).__next__) as one:
        one.round()
        # As if its last step had not been answered.
        del one.sharing.owned["orders/1"]
        with world.consumer()._member(iter(range(0, 10**9, 1000)).__next__) as other:
            for _ in range(4):
                one.round()
                other.round()
            assert (one.shards, other.shards) == (["orders/0"], ["orders/1"])
            for _ in range(20):
                one.round()
                other.round()
            world.check()


def test_processes_give_up_what_is_too_much_and_nothing_is_done_twice(tmp_path):
    """One alone has all; two share; the one that stays has all again (T1)."""
    world = World(tmp_path, orders=4)
    with world.consumer()._member(iter(range(0, 10**9, 1000)).__next__) as one:
        one.round()
        assert one.shards == ["orders/0", "orders/1"]
        with world.consumer()._member(iter(range(0, 10**9, 1000)).__next__) as other:
            for _ in range(3):
                one.round()
                other.round()
            assert (len(one.shards), len(other.shards)) == (1, 1)
            world.order(4)
            for _ in range(20):
                one.round()
                other.round()
            world.check()
        world.order(4)
        for _ in range(20):
            one.round()
        assert one.shards == ["orders/0", "orders/1"]
    world.check()


def test_a_member_that_parts_is_no_longer_counted(engine):
    """Its shards are free at once where it left them."""
    joined(engine, "a")
    joined(engine, "b")
    carry_out(engine, part("billing", "a"))
    assert set(carry_out(engine, look("billing")).members) == {"b"}
