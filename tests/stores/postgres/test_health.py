"""Probes and metrics while PostgreSQL is away, is back, or has lost what it had (§6)."""

from __future__ import annotations

import grpc
import pytest

import rifl
from tests.stores.health import METHOD, served

_QUICK = {"timeout_s": 0.4, "beat_s": 0.05, "dead_after_s": 30, "max_connections": 4}


def test_health_follows_a_database_that_is_away(own_server, schema):
    """Unreachable is NOT_SERVING for probes and observers, and is over when it is (DESIGN §6)."""
    url = own_server.url(schema=schema, **_QUICK)
    with served(url) as server, rifl.connect(server.target) as channel:
        method = channel.unary_unary(METHOD)
        assert method(b"one", timeout=10) == b"one"
        assert server.healthy()
        own_server.crash()
        refusal = server.telling.wait_for(lambda told: told, "it is told")
        assert refusal.reason == "STORE_UNAVAILABLE"
        assert "cannot be reached" in str(refusal)
        assert not server.healthy()
        own_server.start()
        server.telling.wait_for(lambda told: told is None, "it is told")
        assert server.healthy()
        assert method(b"two", timeout=20) == b"two"
    told = [refusal and refusal.reason for refusal in server.telling.told]
    assert told == ["STORE_UNAVAILABLE", None, "DRAINING"]


def test_a_store_that_stopped_for_good_is_never_healthy_and_drains_at_once(own_server, schema):
    """A database that has lost beats: NOT_SERVING ever after, and nobody waits (DESIGN §6)."""
    url = own_server.url(schema=schema, **_QUICK)
    with served(url) as server, rifl.connect(server.target) as channel:
        method = channel.unary_unary(METHOD)
        assert method(b"one", timeout=10) == b"one"
        with own_server.connect() as connection:
            connection.execute(f"UPDATE {schema}.replicas SET beats = 0")
        server.telling.wait_for(lambda told: told and "is stopped" in str(told), "it is told")
        assert not server.healthy()
        with pytest.raises(grpc.RpcError):
            method(b"two", timeout=1)
        server.dedup.drain()
        assert server.dedup.drained(timeout_s=20) == 0
        assert not server.healthy()
