"""Servers for logs, as fixtures: one of each kind for the whole run, and some to be broken."""

from __future__ import annotations

import pytest

from chaos.etcd_cluster import EtcdCluster
from tests.stores.postgres.servers import PostgresServer
from tests.stores.redis.servers import RedisServer


@pytest.fixture(scope="session")
def shared_redis(tmp_path_factory):
    """One durable server; tests keep apart by group."""
    server = RedisServer(tmp_path_factory.mktemp("log-redis"))
    yield server
    server.stop()


@pytest.fixture
def own_redis(tmp_path):
    """A durable server that the test may stop, fill, or break."""
    server = RedisServer(tmp_path)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def shared_etcd(tmp_path_factory):
    """A cluster of three nodes; tests keep apart by group."""
    with EtcdCluster(tmp_path_factory.mktemp("log-etcd")) as cluster:
        yield cluster


@pytest.fixture
def own_etcd(tmp_path):
    """A cluster that the test may break, kill or cut off; once its own engines are closed."""
    with EtcdCluster(tmp_path / "etcd") as cluster:
        yield cluster


@pytest.fixture(scope="session")
def shared_postgres():
    """One server; tests keep apart by group or log."""
    server = PostgresServer()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def own_postgres():
    """A server that a test may crash or weaken, if it mends it afterwards."""
    server = PostgresServer()
    yield server
    server.stop()
