"""Settling unknown outcomes in Redis (DESIGN §4)."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rifl._stores import settle_unknown, unknown_calls
from rifl._stores.inspection import VERDICTS_KEPT_S
from rifl._stores.shared.backend import BackendError
from rifl.core._shared.identity import RpcId
from rifl.core._shared.observer import Observer
from tests.helpers.waiting import until
from tests.stores.left_thread import check_left_thread
from tests.stores.redis.servers import RedisServer
from tests.stores.settling import (
    BEGUN,
    GIVEN_UP,
    KEY,
    LOST,
    PLAIN,
    SettlesUnknown,
    _arrive,
    _call,
    _counted,
    _serving,
    check_count_that_hangs,
    check_given_up,
    end_client,
    make_lost,
)

_NAMES = itertools.count()


class TestRedis(SettlesUnknown):
    """See there."""

    def test_verdicts_are_forgotten_after_a_week(self, made: str) -> None:
        """By the time that was lived through, and the newest are kept (DESIGN §9)."""
        for rpc_id in (BEGUN, KEY):
            _arrive(made, rpc_id)
        with _serving(made) as store:
            end_client(store, 1)
            redis = store._backend.clients.blocking
            key = store._backend.key("unknown-at")
            store.expire_keys()
            assert redis.zcard(key) == 2
            redis.zincrby(key, -1000 * VERDICTS_KEPT_S - 1, b"1|s%016x" % 4)
            store.expire_keys()
            assert redis.zrange(key, 0, -1) == redis.hkeys(store._backend.key("unknown"))
        assert [call.rpc_id for call in unknown_calls(made)] == [KEY]

    def test_what_runs_is_in_one_place(self, made: str) -> None:
        """Plain calls alone, until they end: to count them no client is looked at (DESIGN §9)."""
        with _serving(made) as store:
            redis = store._backend.clients.blocking
            key = store._backend.key("intents")
            assert set(redis.hkeys(key)) == {b"1|s%016x" % 4, b"1025|klost"}
            end_client(store, 1)
        _arrive(made, KEY)
        with _serving(made) as store:
            assert not store._backend.clients.blocking.exists(key)

    def test_no_more_are_remembered_than_that(self, made: str) -> None:
        """The oldest go beyond ten thousand (DESIGN §9)."""
        with _serving(made) as store:
            redis = store._backend.clients.blocking
            names = [b"7|s%016x" % number for number in range(1, 10_005)]
            now_ms = 1000 * time.time()
            ages = {name: now_ms + number for number, name in enumerate(names)}
            redis.zadd(store._backend.key("unknown-at"), ages)
            redis.hset(store._backend.key("unknown"), mapping=dict.fromkeys(names, b"0\n/s/M\n"))
            store.expire_keys()
            assert redis.hlen(store._backend.key("unknown")) == 10_000
            assert not redis.hexists(store._backend.key("unknown"), b"7|s%016x" % 4)


@pytest.fixture(scope="module")
def cluster_of_one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A cluster of one server."""
    server = RedisServer(tmp_path_factory.mktemp("cluster"), **{"cluster-enabled": "yes"})
    try:
        with server.client() as client:
            client.execute_command("CLUSTER", "ADDSLOTS", *range(16384))
            info = partial(client.execute_command, "CLUSTER", "INFO")
            until(lambda: b"cluster_state:ok" in info(), "the cluster is up")
        yield server
    finally:
        server.stop()


@pytest.fixture
def on_a_cluster(cluster_of_one: RedisServer) -> str:
    """Return the URL of a store of its own, where calls are found in buckets of clients (§6)."""
    options = f"namespace=n{next(_NAMES)}&beat_s=0.05&dead_after_s=0.6"
    return f"redis+cluster://127.0.0.1:{cluster_of_one.port}?{options}"


@pytest.mark.parametrize(
    "test",
    [
        SettlesUnknown.test_what_is_not_settled_is_counted,
        SettlesUnknown.test_a_verdict_outlives_its_client,
        SettlesUnknown.test_a_verdict_outlives_its_acknowledgement,
    ],
)
def test_on_a_cluster(on_a_cluster: str, test: Any) -> None:
    """The same."""
    test(SettlesUnknown(), make_lost(on_a_cluster), told=True)


def test_on_a_cluster_verdicts_are_forgotten_after_a_week(on_a_cluster: str) -> None:
    """Those of one bucket when another one is remembered, and all when none is (§9)."""
    made, later = make_lost(on_a_cluster), RpcId(KEY.client_id, None, b"later")
    _arrive(made, KEY)
    with _serving(made) as store:
        redis, key = store._backend.clients.blocking, store._backend.index_key
        ages = key(KEY.client_id, "unknown-at")
        redis.zincrby(ages, -1000 * VERDICTS_KEPT_S - 1, b"1025|klost")
        assert 0 < redis.pttl(ages) <= 1000 * VERDICTS_KEPT_S
        settle_unknown(made, [later], LOST)
        assert redis.hkeys(key(KEY.client_id, "unknown")) == [b"1025|klater"]
        assert redis.zrange(ages, 0, -1) == [b"1025|klater"]


@pytest.mark.parametrize("where", ["url", "on_a_cluster"])
@pytest.mark.parametrize("ends", GIVEN_UP)
def test_what_a_caller_gave_up_is_unknown_once_its_replica_is_gone(
    request: pytest.FixtureRequest, where: str, ends: str
) -> None:
    """See there."""
    check_given_up(request.getfixturevalue(where), ends)


@pytest.mark.parametrize("where", ["url", "on_a_cluster"])
def test_a_count_that_hangs_is_anothers(request: pytest.FixtureRequest, where: str) -> None:
    """See there."""
    check_count_that_hangs(request.getfixturevalue(where))


@pytest.mark.parametrize("where", ["url", "on_a_cluster"])
def test_a_replica_that_dies_in_the_middle_of_a_count(
    request: pytest.FixtureRequest, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was alive, or its calls are unknown; if it counted, another one does (DESIGN §9)."""
    made = request.getfixturevalue(where)
    with ExitStack() as stack:
        three = [stack.enter_context(_serving(made, Observer())) for _ in range(3)]
        counts, runs, other = sorted(three, key=lambda each: each.owner)
        runs.claim(_call(RpcId(-7, None, b"k")), PLAIN).wait()
        until(lambda: all(len(each._heartbeat.living()) == 3 for each in three), "all see all")
        assert [_counted(each) for each in (counts, runs, other)] == [(0, 0.0), None, None]
        runs._heartbeat.stop()
        backend, key = counts._backend, counts._backend.key("replicas")
        run, redis = backend.run, backend.clients.blocking

        def changing(change: Any) -> int:
            def in_the_middle(*given: Any) -> Any:
                change()
                return run(*given)

            with monkeypatch.context() as patch:
                patch.setattr(backend, "run", in_the_middle)
                return int(backend.unresolved().calls)

        redis.hincrby(key, runs.owner)
        assert changing(lambda: redis.hdel(key, runs.owner)) == 0
        assert changing(lambda: redis.hincrby(key, runs.owner)) == 0
        redis.hdel(key, runs.owner)
        assert backend.unresolved().calls == 1

        def dies() -> Any:
            counts._heartbeat.stop()
            raise BackendError("killed")

        counts._ask_unresolved = dies
        assert _counted(counts) == (0, 0.0), "as it was"
        until(lambda: (found := _counted(other)) and found.calls == 1, "another one counts")


@pytest.mark.parametrize("how", ["closing", "ending"])
@pytest.mark.parametrize("declared", ["plain", "idempotent"])
def test_a_thread_that_was_left_behind_may_run_still(
    url: str, tmp_path: Path, declared: str, how: str
) -> None:
    """An event loop's end cancels its handler, and not what that began (DESIGN §4, §6)."""
    check_left_thread(url, tmp_path, declared, how)
