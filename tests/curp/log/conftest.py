"""Redis servers for logs: a durable one for the whole run, and one to be broken."""

from __future__ import annotations

import itertools

import pytest

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


@pytest.fixture
def group():
    """Name a group of the test's own."""
    return f"g{next(_NAMES)}"
