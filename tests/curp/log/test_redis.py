"""The log in Redis: the conformance suite (DESIGN §7)."""

from __future__ import annotations

import pytest

from curp.log import open_engine
from curp.log._creation import new_log
from tests.curp.log.conformance import LogConformance


class Place:
    """A group's log in a server, whose leases are moved instead of its clock."""

    def __init__(self, server, group, **options):
        self.server = server
        self.group = group
        self.url = server.url(group=group, **options)
        self.opened = []
        self.new = new_log()

    def open(self, **options):
        """One more engine; the first creates the log."""
        self.opened.append(open_engine(self.url, new=self.new, **options))
        self.new = None
        return self.opened[-1]

    def key(self, name):
        """One of the group's keys."""
        return f"curp:{{{self.group}}}:{name}"

    def pass_time(self, seconds):
        """Let time pass."""
        with self.server.client() as client:
            client.hincrby(self.key("control"), "expires_ms", -int(seconds * 1000))

    def close(self):
        """Close all engines."""
        for engine in self.opened:
            engine.close()


@pytest.fixture
def place(shared_redis, group):
    """A log of its own in the shared server."""
    place = Place(shared_redis, group)
    yield place
    place.close()


class TestRedisConformance(LogConformance):
    """``RedisEngine``."""

    @pytest.fixture
    def place(self, place):
        """A log in Redis."""
        return place
