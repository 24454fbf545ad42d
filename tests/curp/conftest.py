"""Servers for logs, one of each kind for the whole run, and some to be broken."""

from __future__ import annotations

import itertools
from functools import partial

import pytest

from chaos.etcd_cluster import EtcdCluster
from tests.curp import kept_logs
from tests.curp.logs import created
from tests.stores.postgres.servers import PostgresServer
from tests.stores.redis.servers import RedisServer

_NAMES = itertools.count()


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
    """One server, one schema; tests keep apart by group."""
    server = PostgresServer()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def own_postgres():
    """A server that a test may crash or weaken, if it mends it afterwards."""
    server = PostgresServer()
    yield server
    server.stop()


@pytest.fixture
def group():
    """Name a group of the test's own."""
    return f"g{next(_NAMES)}"


class KeptLog:
    """A log of a group's own, in a server that others share, of any engine."""

    def __init__(self, url, engine, keep):
        self.url = url
        # Its name, as of the parameter.
        self.engine = engine
        # Copies the log; what puts the copy into its place.
        self.keep = keep


@pytest.fixture
def log(request, tmp_path):
    """A new log of the engine that the test's parameter names; that of ``sqlite`` is a file."""
    engine = request.param
    if engine == "sqlite":
        file = tmp_path / "bank.log"
        url, keep = f"sqlite:///{file}?group=bank", partial(kept_logs.keep_sqlite, file)
    else:
        group, server = f"g{next(_NAMES)}", request.getfixturevalue(f"shared_{engine}")
        url = server.url(group=group)
        keep = partial(getattr(kept_logs, f"keep_{engine}"), server, group)
    return KeptLog(created(url), engine, keep)
