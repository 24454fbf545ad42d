"""Settling unknown outcomes in Redis (DESIGN §4)."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from rifl._stores import Settled, UnknownState, settle_unknown, unknown_calls
from rifl._stores.inspection import VERDICTS_KEPT_S
from tests.stores.left_thread import check_left_thread
from tests.stores.redis.servers import ClusterServers
from tests.stores.settling import (
    BEGUN,
    KEY,
    LOST,
    SettlesUnknown,
    _arrive,
    _serving,
    end_client,
    make_lost,
)


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


@pytest.mark.slow
def test_on_a_cluster_a_verdict_outlives_its_client(tmp_path: Path) -> None:
    """There it stays beside the keys of the client, which are gone (DESIGN §4, §6)."""
    servers = ClusterServers(tmp_path, replicated=False)
    try:
        _outlives(make_lost(servers.url(namespace="a*[b]", beat_s=0.05, dead_after_s=0.6)))
    finally:
        servers.stop()


def _outlives(made: str) -> None:
    for told in (False, True):
        rpc_id = KEY if told else BEGUN
        if told:
            _arrive(made, rpc_id)
        with _serving(made) as store:
            end_client(store, rpc_id.client_id)
        (verdict,) = [call for call in unknown_calls(made) if call.rpc_id == rpc_id]
        assert (verdict.state, verdict.method) == (UnknownState.OVER, "/bank.Bank/Deposit")
        assert settle_unknown(made, [rpc_id], LOST) == {rpc_id: Settled.GONE}
        (verdict,) = [call for call in unknown_calls(made) if call.rpc_id == rpc_id]
        assert (verdict.state, verdict.method) == (UnknownState.SETTLED, "/bank.Bank/Deposit")


@pytest.mark.parametrize("how", ["closing", "ending"])
@pytest.mark.parametrize("declared", ["plain", "idempotent"])
def test_a_thread_that_was_left_behind_may_run_still(
    url: str, tmp_path: Path, declared: str, how: str
) -> None:
    """An event loop's end cancels its handler, and not what that began (DESIGN §4, §6)."""
    check_left_thread(url, tmp_path, declared, how)
