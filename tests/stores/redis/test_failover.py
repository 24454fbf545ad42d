"""Real failovers by Sentinel: to a replica that has everything, and to a stale one (§6)."""

from __future__ import annotations

import pytest

from _rifl_ground.refusals import Outcome
from rifl._stores import StoreCorrupt, StoreNotDurable, open_store
from rifl.core._shared.errors import RecordPending, StoreUnavailable
from tests.helpers.waiting import until
from tests.stores.redis.replica import FIRST, IDEMPOTENT, OTHER, Replica, call
from tests.stores.redis.servers import RedisServer, SentinelServer

pytestmark = [pytest.mark.slow, pytest.mark.faults]


class Watched:
    """A primary, its replica, and a Sentinel that watches both."""

    def __init__(self, directory, **of_the_replica):
        for name in ("primary", "replica"):
            (directory / name).mkdir()
        self.primary = RedisServer(directory / "primary")
        replicaof = f"127.0.0.1 {self.primary.port}"
        self.replica = RedisServer(directory / "replica", replicaof=replicaof, **of_the_replica)
        with self.replica.client() as client:
            until(
                lambda: client.info("replication")["master_link_status"] == "up", "it follows", 60
            )
        self.sentinel = SentinelServer(directory, self.primary.port)
        until(lambda: self.sentinel.told("REPLICAS", "main"), "Sentinel knows the replica", 60)

    def cut_off(self):
        """The replica gets nothing from now on."""
        with self.replica.client() as replica, self.primary.client() as primary:
            # Refused by a primary that has no password.
            replica.config_set("masterauth", "none")
            primary.execute_command("CLIENT", "KILL", "TYPE", "replica")
            until(
                lambda: replica.info("replication")["master_link_status"] == "down", "it is cut off"
            )

    def fail_over(self):
        """The primary dies; wait until the replica has taken over."""
        self.primary.stop()
        until(
            lambda: (
                int(self.sentinel.told("GET-MASTER-ADDR-BY-NAME", "main")[1]) == self.replica.port
            ),
            "Sentinel fails over",
            60,
        )

    @property
    def url(self):
        """The store's."""
        where = f"redis+sentinel://127.0.0.1:{self.sentinel.port}/main/0"
        return f"{where}?beat_s=0.1&dead_after_s=30&timeout_s=2"

    def stop(self):
        """End all three."""
        self.sentinel.stop()
        self.primary.stop()
        self.replica.stop()


@pytest.fixture
def watched(tmp_path, request):
    """A set of servers that the test may break; its parameter: settings of the replica."""
    servers = Watched(tmp_path, **getattr(request, "param", {}))
    yield servers
    servers.stop()


def _answer(replica, arriving):
    """Claim until the new primary answers; the decision, or what is refused for good."""
    try:
        return replica.claim(arriving, IDEMPOTENT)
    except StoreUnavailable as away:
        return away if "lost what it acknowledged" in str(away) else None


def test_a_failover_to_a_replica_that_has_everything(watched):
    """Replicas of ours go on where they were: records, leases, calls in progress (DESIGN §6)."""
    one, two = Replica(watched.url), Replica(watched.url)
    client = one.client()
    one.finish(one.begin(call(client, 1), IDEMPOTENT))
    running = one.begin(call(client, 2), IDEMPOTENT)
    with watched.primary.client() as direct:
        assert direct.wait(1, 10_000) == 1
    watched.fail_over()
    found = until(lambda: _answer(two, call(client, 1)), "the new primary answers", 60)
    assert found.record == FIRST
    one.finish(running, OTHER)
    assert two.claim(call(client, 2), IDEMPOTENT).record == OTHER
    one.close()
    two.close()


def test_a_failover_to_a_stale_replica_stops_all_of_ours(watched):
    """An acknowledged record is missing: nobody runs a call again, nobody opens it (§6)."""
    one, two = Replica(watched.url), Replica(watched.url)
    client = one.client()
    one.finish(one.begin(call(client, 1), IDEMPOTENT))
    with watched.primary.client() as direct:
        # Stale, and not empty: then it would be no store at all.
        assert direct.wait(1, 10_000) == 1
    watched.cut_off()
    one.finish(one.begin(call(client, 2), IDEMPOTENT))
    watched.fail_over()
    for replica in (one, two):
        refused = until(
            lambda replica=replica: _answer(replica, call(client, 2)), "it is told what is lost", 60
        )
        assert isinstance(refused, StoreUnavailable)
    with pytest.raises(StoreCorrupt, match="had acknowledged"):
        open_store(watched.url)
    one.close()
    two.close()


@pytest.mark.parametrize("watched", [{"appendonly": "no"}], indirect=True)
async def test_a_promoted_replica_without_an_append_only_file_is_refused(watched):
    """It has every record, and keeps nothing: no call begins on it until it does (DESIGN §6)."""
    one = Replica(watched.url)
    told = []
    one.store.on_refusal = told.append
    client = one.client()
    one.finish(one.begin(call(client, 1), IDEMPOTENT))
    running = one.begin(call(client, 2))
    with watched.primary.client() as direct:
        assert direct.wait(1, 10_000) == 1
    watched.fail_over()
    until(lambda: told and "appendonly is no" in str(told[-1]), "health is told", 60)
    with watched.replica.client() as promoted:
        before = promoted.dbsize()
        with pytest.raises(StoreUnavailable, match="appendonly is no") as refused:
            one.claim(call(client, 3))
        assert refused.value.outcome is Outcome.NOT_EXECUTED
        with pytest.raises(StoreUnavailable, match="appendonly is no"):
            await one.store.claim(call(client, 3), IDEMPOTENT)
        with pytest.raises(RecordPending):
            one.finish(running)
        with pytest.raises(StoreNotDurable, match="appendonly is no"):
            open_store(watched.url)
        assert promoted.dbsize() == before
        promoted.config_set("appendonly", "yes")
    until(lambda: told[-1] is None, "it is told", 60)
    until(lambda: one.claim(call(client, 2)).record == FIRST, "the record is retried", 60)
    one.finish(one.begin(call(client, 3)))
    one.close()
