"""The holds of a consumer's shards are moved together (DESIGN-LOG §14; §12, L6).

One by one, each is a commit of the log that every message waits for which came meanwhile.
"""

from sharedlog._core.commit import Commit
from sharedlog._core.consumer.checkpoint import Checkpoint
from sharedlog._core.consumer.holding import Done, ShardHold, move_holds
from sharedlog._core.fences import Fence
from sharedlog._core.holds import BEGINNING, all_holds
from sharedlog._core.producers import append
from sharedlog._engines.driving import carry_out
from sharedlog._engines.memory import MemoryEngine
from tests.sharedlog.consumer.world import World
from tests.sharedlog.logs import INCARNATION, message, producer, read

RETENTION_US = 1000


def test_all_shards_holds_are_moved_in_one_commit(tmp_path):
    """As often as before; and each to where its shard is done."""
    world = World(tmp_path, orders=0, substreams=8)
    now_s, moved = 100.0, []
    with world.consumer()._member(lambda: now_s) as work:
        work.round()
        act = work.carrier.act

        def noted(step):
            if isinstance(step, Commit):
                keys = [put.key for put in step.puts if put.key.startswith("hold/")]
                moved.extend([keys] if keys else [])
            return act(step)

        work.carrier.act = noted
        for _ in range(8):
            world.log.publish("orders", b'{"customer": "c0", "what": "w"}')
        now_s += 0.4
        assert work.round() == 8
        assert moved == []
        now_s += 0.2
        for _ in range(2):
            work.round()
        assert [len(each) for each in moved] == [8]
        done = {tag: own.shard.checkpoint.position for tag, own in work._own.items()}
        holds = world.log.holds("@consumer:billing")
        assert {each.tag: each.position for each in holds} == done


class _Holds:
    """A log of six messages in each of two substreams, and the holds of their shards."""

    def __init__(self):
        self.engine = MemoryEngine()
        mine = producer(self.engine)
        for seq in range(1, 7):
            both = [message(f"{seq}{at}", at) for at in range(2)]
            carry_out(self.engine, append(mine, seq, both))
        self.places = [[place for place, _ in read(self.engine, at)] for at in range(2)]

    def take(self, at, now_us=100):
        hold = ShardHold("c", f"s/{at}", INCARNATION)
        checkpoint = Checkpoint(1, self.places[at][0])
        rule = hold.take(Fence("f", 1), checkpoint, BEGINNING, now_us, RETENTION_US)
        carry_out(self.engine, rule)
        return hold

    def move(self, *done, now_us=110):
        carry_out(self.engine, move_holds(done, now_us))

    def places_held(self):
        return [each.position for each in carry_out(self.engine, all_holds("@consumer:c"))]


def test_a_successor_of_one_shard_keeps_no_other_s_hold_back():
    """Its own stays where the successor has moved it; who lost it learns so by its commits."""
    holds = _Holds()
    first, second = holds.take(0), holds.take(1)
    successor = holds.take(0)
    holds.move(Done(successor, holds.places[0][4]))
    holds.move(Done(first, holds.places[0][2]), Done(second, holds.places[1][3]))
    assert holds.places_held() == [holds.places[0][4], holds.places[1][3]]
    # As it is now known: nothing is to be moved.
    assert second.due(holds.places[1][3], 110) == {}


def test_a_hold_is_renewed_where_its_shard_stands_still():
    """Beside those that move, a quarter of its retention after the last time."""
    holds = _Holds()
    first, second = holds.take(0), holds.take(1)
    still, later = holds.places[0][0], 100 + RETENTION_US // 4 + 1
    holds.move(Done(first, still), Done(second, holds.places[1][3]), now_us=later)
    found = carry_out(holds.engine, all_holds("@consumer:c"))
    assert [each.renewed_us for each in found] == [later, later]
    assert holds.places_held() == [still, holds.places[1][3]]
