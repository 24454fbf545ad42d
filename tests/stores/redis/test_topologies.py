"""Sentinel, cluster, and how URLs are read (DESIGN §6)."""

from __future__ import annotations

import tempfile

import pytest
import redis

from lease_server import Standing
from rifl._stores import UnsupportedStore, open_store
from rifl._stores.redis import RedisStoreAddress
from rifl.core._serving.policy import MethodPolicy
from rifl.core._serving.verdict import Verdict
from tests.helpers.waiting import DEADLINE_S, until
from tests.stores.redis.replica import ATOMIC, FIRST, Replica, call, keyed
from tests.stores.redis.servers import RedisServer, SentinelServer


def test_urls_are_read_with_our_options_taken_out():
    """redis-py's schemes, and two of ours; no credentials in what is shown (DESIGN §6)."""
    one = RedisStoreAddress.parse(
        "rediss://u:p%40s@h:7/2?namespace=x&ssl_cert_reqs=none&timeout_s=1"
    )
    assert (one.hosts, one.db, one.tls, one.password) == ((("h", 7),), 2, True, "p@s")
    assert (one.namespace, one.timeout_s) == ("x", 1.0)
    assert one.url == "rediss://u:p%40s@h:7/2?ssl_cert_reqs=none"
    two = RedisStoreAddress.parse("redis+sentinel://u:p@a,b:1,[::1]:2/main/3?durability=warn")
    assert two.hosts == (("a", 26379), ("b", 1), ("::1", 2))
    assert (two.primary, two.db, two.durability.value) == ("main", 3, "warn")
    typed = "?health_check_interval=5&ssl_check_hostname=no&ssl_ca_certs=f"
    assert RedisStoreAddress.parse(f"rediss+sentinel://a/main{typed}").options == {
        "health_check_interval": 5,
        "ssl_check_hostname": False,
        "ssl_ca_certs": "f",
    }
    three = RedisStoreAddress.parse("rediss+cluster://a:1,b:2")
    assert (three.clustered, three.tls, three.hosts) == (True, True, (("a", 1), ("b", 2)))
    four = RedisStoreAddress.parse("unix://u:p%40s@/run/r%20s.sock?db=2&beat_s=1")
    assert (four.hosts, four.by_path, four.beat_s) == ((), True, 1.0)
    assert four.url == "unix://u:p%40s@/run/r%20s.sock?db=2"
    assert RedisStoreAddress.parse("unix:///run/r.sock").url == "unix:///run/r.sock"
    for address in (one, two, three, four):
        assert "p@s" not in f"{address} {address!r}"


async def test_a_server_is_reached_by_a_socket_in_the_file_system(tmp_path):
    """unix:// opens a store, for threads and for event loops (DESIGN §6)."""
    # A path in the file system may be a hundred bytes long, and tmp_path's is not bounded.
    with tempfile.TemporaryDirectory() as directory:
        server = RedisServer(tmp_path, unixsocket=f"{directory}/s")
        try:
            replica = Replica(f"unix://{directory}/s?timeout_s=10")
            attempt = replica.begin(call(replica.client(), 1))
            assert replica.finish(attempt) is None
            awaiting = replica.store._backend.clients.awaiting()
            assert await awaiting.ping()
            replica.close()
        finally:
            server.stop()


@pytest.mark.parametrize(
    "url",
    [
        "redis+sentinel://a:1",
        "redis+cluster://a:1/3",
        "redis+ring://a",
        "unix+cluster:///s",
        "redis://a:port",
        "redis://a/db",
        "redis://a?durability=maybe",
        "redis://a?namespace={x}",
        "redis://a?beat_s=soon",
        "redis+sentinel://a/p?health_check_interval=soon",
        "redis://a?decode_responses=True",
        "rediss+sentinel://a/p?encoding=latin-1",
        "mysql://u:hunter2@a",
    ],
)
def test_a_url_we_do_not_understand_is_refused(url):
    """A typed error at start, which does not repeat the URL's password (DESIGN §9)."""
    with pytest.raises(UnsupportedStore) as caught:
        open_store(url)
    assert "hunter2" not in str(caught.value)


def test_a_store_on_a_cluster(tmp_path):
    """All keys of a client are in one slot; replicas, leases and pipelines work (DESIGN §6)."""
    server = RedisServer(tmp_path, **{"cluster-enabled": "yes"})
    one = two = None
    try:
        with server.client() as client:
            client.execute_command("CLUSTER", "ADDSLOTS", *range(16384))
            until(lambda: _is_ok(client), "the cluster is up")
        url = f"redis+cluster://127.0.0.1:{server.port}?beat_s=0.05&dead_after_s=0.6"
        one, two = Replica(url), Replica(url)
        client = one.client()
        attempt = one.begin(call(client, 1))
        woken = two.woken(two.claim(attempt.call).attempt)
        one.finish(attempt)
        assert woken.wait(DEADLINE_S)
        assert two.claim(attempt.call).record == FIRST
        never = MethodPolicy(kind="idempotent", claim="never")
        one.finish(one.store.claim(call(client, 3), never).attempt)
        assert two.claim(call(client, 3, attempt=2), never).record == FIRST
        session = one.authority.open_session("s").client_id
        two.finish(two.begin(keyed(session, b"k")))
        two.authority.close_session("s")
        one.authority.expire()
        assert one.store.leases.renew(session) is Standing.CLOSED
        atomic = one.begin(call(client, 2), ATOMIC)
        users = redis.cluster.RedisCluster(host="127.0.0.1", port=server.port)
        pipe = users.pipeline(transaction=True)
        one.store.transactions.record(atomic, FIRST, pipe)
        pipe.set(f"{{{client % 256}}}:balance", 5)
        pipe.execute()
        assert two.claim(atomic.call, ATOMIC).record == FIRST
        users.close()
    finally:
        for replica in (one, two):
            if replica is not None:
                replica.close()
        server.stop()


def test_a_store_behind_sentinel(tmp_path):
    """The primary is asked of Sentinel by its name (DESIGN §6)."""
    (tmp_path / "server").mkdir()
    server = RedisServer(tmp_path / "server")
    sentinel = SentinelServer(tmp_path, server.port)
    one = None
    try:
        one = Replica(f"redis+sentinel://127.0.0.1:{sentinel.port}/main/0?beat_s=0.1")
        client = one.client()
        one.finish(one.begin(call(client, 1)))
        assert one.claim(call(client, 1)).verdict is Verdict.COMPLETED
    finally:
        if one is not None:
            one.close()
        sentinel.stop()
        server.stop()


def _is_ok(client):
    info = str(client.execute_command("CLUSTER", "INFO"))
    return "cluster_state:ok" in info or "'cluster_state': 'ok'" in info
