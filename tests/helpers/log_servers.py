"""Servers for logs, as fixtures: one of each kind for the whole run, and some to be broken.

Each imports what it starts when it is asked for: every test's conftest reads this, also
that of a virtual environment which has no driver of these servers (tests/libraries).
"""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def shared_redis(tmp_path_factory):
    """One durable server; tests keep apart by group."""
    from tests.stores.redis.servers import RedisServer

    server = RedisServer(tmp_path_factory.mktemp("log-redis"))
    yield server
    server.stop()


@pytest.fixture
def own_redis(tmp_path):
    """A durable server that the test may stop, fill, or break."""
    from tests.stores.redis.servers import RedisServer

    server = RedisServer(tmp_path)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def kept_etcd(tmp_path_factory):
    """The cluster of ``shared_etcd``, for all tests that ask for one."""
    from chaos.etcd_cluster import EtcdCluster

    with EtcdCluster(tmp_path_factory.mktemp("log-etcd")) as cluster:
        yield cluster


@pytest.fixture
def shared_etcd(kept_etcd):
    """A cluster of three nodes; tests keep apart by group.

    It stands still between its tests: three idle nodes take a fiftieth of a core, in each worker.
    """
    kept_etcd.resume()
    yield kept_etcd
    kept_etcd.suspend()


@pytest.fixture
def own_etcd(tmp_path):
    """A cluster that the test may break, kill or cut off; once its own engines are closed."""
    from chaos.etcd_cluster import EtcdCluster

    with EtcdCluster(tmp_path / "etcd") as cluster:
        yield cluster


@pytest.fixture(scope="session")
def shared_postgres():
    """One server; tests keep apart by group or log."""
    from tests.stores.postgres.servers import PostgresServer

    server = PostgresServer(max_prepared_transactions="4")
    yield server
    server.stop()


@pytest.fixture(scope="session")
def own_postgres():
    """A server that a test may crash or weaken, if it mends it afterwards."""
    from tests.stores.postgres.servers import PostgresServer

    server = PostgresServer()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def shared_mariadb():
    """One server; tests keep apart by the prefix of their tables."""
    from chaos.mariadb_server import MariaDbServer

    server = MariaDbServer()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def own_mariadb():
    """A server that a test may kill or weaken, if it mends it afterwards."""
    from chaos.mariadb_server import MariaDbServer

    server = MariaDbServer()
    yield server
    server.stop()
