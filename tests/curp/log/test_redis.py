"""The log in Redis: the conformance suite (DESIGN §7)."""

from __future__ import annotations

import pytest

from tests.curp.log.conformance import LogConformance, ServedPlace


class Place(ServedPlace):
    """A group's log in a server, whose leases are moved instead of its clock."""

    def key(self, name):
        """One of the group's keys."""
        return f"curp:{{{self.group}}}:{name}"

    def pass_time(self, seconds):
        """Let time pass."""
        with self.server.client() as client:
            client.hincrby(self.key("control"), "expires_ms", -int(seconds * 1000))


@pytest.fixture
def place(shared_redis, group):
    """A log of its own in the shared server."""
    place = Place(shared_redis, group)
    yield place
    place.close()


class TestRedisConformance(LogConformance):
    """``RedisEngine``."""
