"""Retention over a Redis whose clock is set wrong (DESIGN §5)."""

from __future__ import annotations

import itertools

import pytest

from chaos.run.wall_clock import wall_clocks
from tests.stores.lived_time import LivedTime
from tests.stores.redis.servers import RedisServer

_NAMES = itertools.count()


@pytest.fixture(scope="module")
def moved(tmp_path_factory):
    """A server, and its clock."""
    directory = tmp_path_factory.mktemp("clocks")
    clock = wall_clocks(["redis"], directory)["redis"]
    server = RedisServer(tmp_path_factory.mktemp("redis"), clock.environment)
    yield server, clock
    server.stop()


class TestRedis(LivedTime):
    """See ``LivedTime``."""

    @pytest.fixture
    def namespace(self):
        """Return a name that no other test uses."""
        return f"t{next(_NAMES)}"

    @pytest.fixture
    def clocked(self, moved, namespace):
        """Return the URL of a store of its own."""
        return moved[0].url(namespace=namespace, beat_s=0.05, dead_after_s=30)

    @pytest.fixture
    def clock(self, moved):
        """Return the server's clock."""
        return moved[1]

    @pytest.fixture
    def lived(self, moved, namespace):
        """Return what reads the counter, in seconds."""

        def read():
            with moved[0].client() as client:
                return int(client.hget(f"{namespace}:{{store}}:age", "lived")) / 1000

        return read
