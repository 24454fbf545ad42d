"""A cluster of several nodes: a slot that moves, a primary that dies (DESIGN §6)."""

from __future__ import annotations

import contextlib

import pytest
import redis

import rifl
import sharedlog
from rifl._stores import UnsupportedStore
from rifl.core._serving.verdict import Verdict
from rifl.core._shared.errors import RecordPending, StoreUnavailable
from tests.helpers.waiting import until
from tests.stores.redis.replica import ATOMIC, FIRST, IDEMPOTENT, OTHER, Replica, call
from tests.stores.redis.servers import ClusterServers

pytestmark = [pytest.mark.slow, pytest.mark.faults]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Three primaries, each with a replica."""
    servers = ClusterServers(tmp_path_factory.mktemp("cluster"), replicated=True)
    yield servers
    servers.stop()


@pytest.fixture
def replicas(cluster, request):
    """Make replicas of ours over a store of the test's own."""
    opened = []
    name = request.node.originalname

    def make():
        url = cluster.url(namespace=name, beat_s=0.1, dead_after_s=30, timeout_s=2)
        opened.append(Replica(url))
        return opened[-1]

    yield make
    for replica in opened:
        replica.close()


class Move:
    """Moves the slot of a client from one primary to another, a key at a time."""

    def __init__(self, cluster, base):
        self.cluster, self.slot = cluster, cluster.slot_of(base + "client")
        self.source = cluster.primary_of(base + "client")
        self.target = next(node for node in cluster.primaries if node is not self.source)
        ids = {node: cluster.id_of(node) for node in (self.source, self.target)}
        self.target_id = ids[self.target]
        cluster.ask(self.target, "SETSLOT", self.slot, "IMPORTING", ids[self.source])
        cluster.ask(self.source, "SETSLOT", self.slot, "MIGRATING", self.target_id)

    def left(self):
        """Return the keys that are still at the source."""
        return self.cluster.ask(self.source, "GETKEYSINSLOT", self.slot, 100)

    def move(self, key):
        """Move one key."""
        with self.source.client() as client:
            client.migrate("127.0.0.1", self.target.port, key, 0, 5000)

    def end(self):
        """The target has the slot."""
        for node in (self.target, self.source):
            self.cluster.ask(node, "SETSLOT", self.slot, "NODE", self.target_id)


def answered(replica, arriving):
    """Claim a call; None where the store is away, and nothing has run."""
    try:
        return replica.claim(arriving, IDEMPOTENT)
    except StoreUnavailable:
        return None


def _ending(name):
    return lambda key: not key.endswith(name)


@pytest.mark.parametrize("first", [b"done", b"run", b"client", b"seqs"])
def test_while_a_slot_moves_nothing_is_half_done(cluster, replicas, first):
    """Calls are answered or told that the store is away; none runs twice, none is lost (§6)."""
    one = replicas()
    client = one.client()
    one.finish(one.begin(call(client, 1), IDEMPOTENT))
    running = one.begin(call(client, 2), IDEMPOTENT)
    moving = Move(cluster, one.store._redis.base(client))
    try:
        keys = sorted(moving.left(), key=_ending(first))
        assert len(keys) >= 4
        for number, key in enumerate(keys):
            moving.move(key)
            found = answered(one, call(client, 1))
            assert found is None or found.record == FIRST
            if number == 0:
                with contextlib.suppress(RecordPending):
                    one.finish(running, OTHER)
    finally:
        for key in moving.left():
            moving.move(key)
        moving.end()
    until(lambda: not one.store._attempts.unsettled(), "what was owed is recorded")
    assert one.claim(call(client, 1), IDEMPOTENT).record == FIRST
    assert one.claim(call(client, 2), IDEMPOTENT).record == OTHER
    two = replicas()
    assert two.claim(call(client, 2), IDEMPOTENT).record == OTHER
    assert two.claim(call(client, 3), IDEMPOTENT).verdict is Verdict.NEW


def test_a_transaction_while_a_slot_moves_commits_whole_or_not(cluster, replicas):
    """EXEC of effect and record together, or neither: the slot is on two servers (§6)."""
    one = replicas()
    client = one.client()
    attempt = one.begin(call(client, 1), ATOMIC)
    balance = f"{{{client % 256}}}:balance"
    moving = Move(cluster, one.store._redis.base(client))
    users = redis.cluster.RedisCluster(host="127.0.0.1", port=cluster.nodes[0].port)
    committed = True
    try:
        moving.move(next(key for key in moving.left() if key.endswith(b"client")))
        try:
            with users.pipeline(transaction=True) as transaction:
                one.store.transactions.record(attempt, FIRST, transaction)
                transaction.set(balance, 5)
                transaction.execute()
        except redis.RedisError:
            committed = False
    finally:
        for key in moving.left():
            moving.move(key)
        moving.end()
    read = until(lambda: _value(users, balance), "the client finds the slot")
    users.close()
    standing = one.store.committed(attempt).wait()
    assert (read == [b"5"]) == committed == (standing == FIRST)


def _value(users, key):
    try:
        return [users.get(key)]
    except redis.RedisError:
        return None


def test_a_primary_that_dies_is_replaced_by_its_replica(cluster, replicas):
    """What the replica had stands after the failover, and new calls are taken (DESIGN §6)."""
    one, two = replicas(), replicas()
    name = one.store._redis.key("meta")
    clients = [one.client() for _ in range(8)]
    base = one.store._redis.base
    dying = next(
        cluster.primary_of(base(client))
        for client in clients
        if cluster.primary_of(base(client)) is not cluster.primary_of(name)
    )
    for client in clients:
        one.finish(one.begin(call(client, 1), IDEMPOTENT))
    with dying.client() as direct:
        assert direct.wait(1, 10_000) == 1, "its replica has all that was acknowledged"
    dying.stop()
    for client in clients:
        found = until(
            lambda client=client: answered(two, call(client, 1)), "it is served again", 60
        )
        assert found.record == FIRST
        # The other replica's client has yet to find the new primary, too.
        found = until(
            lambda client=client: answered(one, call(client, 2)), "its own client finds it", 60
        )
        assert found.verdict is Verdict.NEW


def test_a_cluster_is_no_target(cluster):
    """A player's target is refused there before anything comes (DESIGN-LOG §15)."""
    method = "/shop.S/Reserve"
    url = cluster.url(namespace="target")
    with (
        rifl.Deduplicator(url, methods={method: "idempotent"}) as dedup,
        pytest.raises(UnsupportedStore, match="rows"),
    ):
        sharedlog.add_target_to_server(None, dedup, {"orders": method})
