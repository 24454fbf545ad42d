"""Connections of the Redis store: one server, behind Sentinel, a cluster (DESIGN §6, §9)."""

from __future__ import annotations

import threading
from contextlib import AsyncExitStack, ExitStack, contextmanager

import pytest

from rifl.core._serving.verdict import Verdict
from tests.stores.hostile import Hostile
from tests.stores.limits import Limits
from tests.stores.redis.replica import call
from tests.stores.redis.servers import ClusterServers, RedisServer, SentinelServer

_PLACES = 3


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Three primaries."""
    servers = ClusterServers(tmp_path_factory.mktemp("cluster"), replicated=False)
    yield servers
    servers.stop()


class TestServer(Limits):
    """``redis://``: redis-py's pool waits, and calls need none of its connections."""

    # Of calls that wait for a connection.
    test_a_connection_that_comes_back_is_waited_for = None
    test_callers_are_told_that_nothing_was_executed = None
    test_the_same_on_an_event_loop = None

    def test_without_a_connection_nothing_has_run(self, replicas, narrow):
        """Calls have a connection of their own: what else is asked holds none of them up (§9)."""
        one = replicas(narrow)
        client = one.client()
        running = one.begin(call(client, 1))
        with self.taken(one.store):
            assert one.claim(call(client, 2)).verdict is Verdict.NEW
            assert one.finish(running) is None

    def test_of_a_burst_none_is_refused(self, replicas, narrow):
        """More callers than connections, while none of them is free: all travel (§9)."""
        one = replicas(narrow)
        client = one.client()
        found = []

        def claim(seq):
            found.append(one.claim(call(client, seq)).verdict)

        threads = [threading.Thread(target=claim, args=(seq,)) for seq in range(1, 8)]
        with self.taken(one.store):
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert found == [Verdict.NEW] * 7

    def taken(self, store):
        """All but the one that listens."""
        stack = ExitStack()
        pool = store._redis.clients.blocking.connection_pool
        for _ in range(_PLACES - 1):
            stack.callback(pool.release, pool.get_connection())
        return stack


@contextmanager
def _within(places):
    with places:
        yield


class _Rooms(Limits):
    def taken(self, store):
        """Enter as often as there is room."""
        stack = ExitStack()
        for _ in range(_PLACES):
            stack.enter_context(_within(store._redis.clients._places))
        return stack

    async def taken_awaiting(self, store):
        """The same on the loop."""
        stack = AsyncExitStack()
        for _ in range(_PLACES):
            await stack.enter_async_context(store._redis.clients.room_awaiting())
        return stack


class TestSentinel(_Rooms):
    """``redis+sentinel://``: redis-py's pool would refuse at once."""

    @pytest.fixture
    def url(self, tmp_path):
        """Return the URL of a store of its own behind Sentinel."""
        (tmp_path / "server").mkdir()
        server = RedisServer(tmp_path / "server")
        sentinel = SentinelServer(tmp_path, server.port)
        yield f"redis+sentinel://127.0.0.1:{sentinel.port}/main/0?beat_s=0.1"
        sentinel.stop()
        server.stop()


class TestCluster(_Rooms):
    """``redis+cluster://``: so would those of a cluster's nodes."""

    @pytest.fixture
    def url(self, cluster, request):
        """Return the URL of a store of its own."""
        return cluster.url(namespace=request.node.name[-30:], beat_s=0.1)


class TestHostile(Hostile):
    """``redis://``: callers at their worst."""
