"""A durable Redis for the whole run, and one of its own for tests that break it."""

from __future__ import annotations

import itertools

import pytest

from tests.stores.redis.replica import Replica
from tests.stores.redis.servers import RedisServer

_NAMES = itertools.count()


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory):
    """One durable server; tests keep apart by namespace."""
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.stop()


@pytest.fixture
def own_server(tmp_path):
    """A durable server that the test may stop, fill, or break."""
    server = RedisServer(tmp_path)
    yield server
    server.stop()


@pytest.fixture
def url(shared_server):
    """Return the URL of a store of its own, whose replicas die quickly."""
    return shared_server.url(namespace=f"t{next(_NAMES)}", beat_s=0.05, dead_after_s=0.6)


@pytest.fixture
def replicas(url):
    """Make any number of replicas over one store; all are closed afterwards."""
    opened = []

    def make(where=None, **options):
        opened.append(Replica(where or url, **options))
        return opened[-1]

    yield make
    for replica in opened:
        replica.close()
