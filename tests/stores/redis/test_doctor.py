"""``rifl doctor`` of a Redis: what a start would refuse, or is weak; it only reads (DESIGN §6)."""

from __future__ import annotations

import pytest

from _rifl_ground.exits import ExitCode
from rifl._stores import StoreError, open_store
from tests.helpers.doctoring import goes_on, look
from tests.helpers.waiting import until
from tests.stores.redis.replica import Replica, call
from tests.stores.redis.servers import RedisServer, SentinelServer
from tests.stores.redis.test_rights import user

__all__ = ["user"]


def _kept(server):
    """All that a server has, and whether anything was written there."""
    with server.client() as client:
        offset = client.info("persistence").get("aof_current_size")
        return offset, {key: client.dump(key) for key in client.keys("*")}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server that the tests of this file change, and mend."""
    made = RedisServer(tmp_path_factory.mktemp("doctored"))
    yield made
    made.stop()


@pytest.fixture
def setting(server):
    """Change settings; they are as before afterwards."""
    changed = {}

    def change(name, value):
        with server.client() as client:
            changed.setdefault(name, client.config_get(name)[name])
            client.config_set(name, value)

    yield change
    with server.client() as client:
        for name, value in changed.items():
            client.config_set(name, value)


def test_a_store_that_is_not_there_yet_is_not_made(server, capsys):
    """It is told; the first server makes it."""
    before = _kept(server)
    found = look(server.url(namespace="none"), capsys)
    assert (found.code, found.bad) == (ExitCode.DONE, [])
    assert "the first server makes it" in found.found[-1][2]
    assert _kept(server) == before


def test_running_servers_go_on_and_nothing_is_written(server, capsys):
    """Calls are answered before, during and after (DESIGN §6)."""
    url = server.url(namespace="running")
    goes_on(url, capsys, lambda: _kept(server))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("appendonly", "no"),
        ("appendfsync", "everysec"),
        ("no-appendfsync-on-rewrite", "yes"),
        ("maxmemory-policy", "allkeys-lru"),
        ("replica-read-only", "no"),
    ],
)
def test_weak_settings_are_refused_or_weak_as_the_url_says(server, setting, name, value, capsys):
    """By the start's own check, a finding for each (DESIGN §6)."""
    setting(name, value)
    found = look(server.url(), capsys)
    assert found.code is ExitCode.REFUSED
    assert f"{name} is {value}" in found.only("error", "settings")
    found = look(server.url(durability="warn"), capsys)
    assert found.code is ExitCode.DEGRADED
    assert f"{name} is {value}" in found.only("warning", "settings")
    with pytest.raises(StoreError, match=f"{name} is {value}"):
        open_store(server.url())
    if name == "appendonly":
        setting(name, "yes")
        with server.client() as client:
            until(
                lambda: not client.info("persistence")["aof_rewrite_in_progress"], "it is written"
            )


def test_a_memory_that_is_nearly_full_or_full(server, setting, capsys):
    """A start writes, which a full server refuses (DESIGN §6)."""
    with server.client() as client:
        used = client.info("memory")["used_memory"]
    setting("maxmemory", used + used // 20)
    assert look(server.url(), capsys).only("warning", "memory")
    setting("maxmemory", "1")
    found = look(server.url(), capsys)
    assert found.code is ExitCode.REFUSED
    assert "it is full" in found.only("error", "memory")
    with pytest.raises(StoreError):
        open_store(server.url(namespace="full"))


def test_too_few_connections_are_left(server, setting, capsys):
    """A process may open as many as its pool has."""
    setting("maxclients", "40")
    found = look(server.url(), capsys)
    assert found.code is ExitCode.DEGRADED
    assert "may open 64" in found.only("warning", "connections")
    assert look(server.url(max_connections=8), capsys).bad == []


def test_a_replica_cannot_be_written(server, tmp_path, capsys):
    """A start would find that out by a write."""
    replica = RedisServer(tmp_path)
    try:
        with replica.client() as client:
            client.replicaof("127.0.0.1", server.port)
        found = look(replica.url(), capsys)
        assert found.code is ExitCode.REFUSED
        assert "it is a replica" in found.only("error", "server")
    finally:
        replica.stop()


@pytest.mark.parametrize(
    ("rules", "missing"),
    [
        ([], ""),
        (["-hset"], "HSET"),
        (["-unlink"], "UNLINK"),
        (["-evalsha"], "EVALSHA"),
        (["-script"], "SCRIPT LOAD"),
        (["-subscribe"], "SUBSCRIBE"),
        (["-info"], "INFO"),
        (["-eval"], "EVAL"),
        (["-publish"], "PUBLISH"),
        (["resetchannels"], "PUBLISH"),
        (["resetkeys", "~rifl:{store}:*"], "{0}:probe"),
    ],
)
def test_rights_are_asked_for_and_none_is_tried(shared_server, user, rules, missing, capsys):
    """The documented user has all; each that is missing is named as at a start (DESIGN §6)."""
    url = user(*rules)
    with shared_server.client() as client:
        before = client.info("persistence")["aof_current_size"]
        found = look(url, capsys)
        assert client.info("persistence")["aof_current_size"] == before
    if not missing:
        assert found.bad == []
        return
    assert found.code is ExitCode.REFUSED
    assert any(missing in each[2] for each in found.bad if each[:2] == ("error", "rights"))
    with pytest.raises(StoreError, match="may not"):
        open_store(url)


@pytest.mark.parametrize(
    ("field", "value", "text"), [("stopped", "1", "has lost records"), ("layout", "99", "upgrade")]
)
def test_a_store_that_stopped_or_is_newer(server, field, value, text, capsys):
    """As at a start (DESIGN §6)."""
    url = server.url(namespace=field)
    one = Replica(url)
    client_id = one.client()
    with server.client() as client:
        client.hset(f"{field}:{{store}}:meta", field, value)
    found = look(url, capsys)
    assert found.code is ExitCode.REFUSED
    assert text in found.only("error", "store")
    if field == "layout":
        # Another version did that beside a server, which goes on.
        assert one.finish(one.begin(call(client_id, 1))) is None
    one.close()


def test_a_sentinels_primary_is_looked_at(server, setting, tmp_path, capsys):
    """It, and not another server."""
    sentinel = SentinelServer(tmp_path, server.port)
    try:
        url = f"redis+sentinel://127.0.0.1:{sentinel.port}/main?timeout_s=5"
        until(lambda: look(url, capsys).code is ExitCode.DONE, "Sentinel names it")
        setting("appendfsync", "no")
        assert "appendfsync is no" in look(url, capsys).only("error", "settings")
    finally:
        sentinel.stop()


def test_each_server_of_a_cluster_is_looked_at(tmp_path, capsys):
    """Its settings and its memory, by its name."""
    server = RedisServer(tmp_path, **{"cluster-enabled": "yes"})
    try:
        with server.client() as client:
            client.response_callbacks.clear()
            client.execute_command("CLUSTER", "ADDSLOTS", *range(16384))
            until(
                lambda: b"cluster_state:ok" in client.execute_command("CLUSTER", "INFO"), "it is up"
            )
            url = f"redis+cluster://127.0.0.1:{server.port}?timeout_s=5"
            found = look(url, capsys)
            assert (found.code, found.bad) == (ExitCode.DONE, [])
            client.config_set("maxmemory", 1)
            client.config_set("appendfsync", "no")
        found = look(url, capsys)
        assert {each[:2] for each in found.bad} == {("error", "settings"), ("error", "memory")}
        assert any(f"127.0.0.1:{server.port}: maxmemory" in each[2] for each in found.bad)
    finally:
        server.stop()
