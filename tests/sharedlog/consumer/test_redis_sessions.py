"""A consumer's watches over Redis are a connection's, which redis-py may make anew (T5)."""

from contextlib import suppress
from unittest.mock import patch

import pytest

from sharedlog.testing import drain
from tests.helpers.log_servers import shared_redis
from tests.sharedlog.consumer.test_redis import RedisWorld

__all__ = ["shared_redis"]


class CheckedWorld(RedisWorld):
    """Whose URL has redis-py look whether a connection is well before it is used."""

    @property
    def url(self):
        return f"{self.server.url()}?health_check_interval=1"


class Counting:
    """In place of a handler's look at its order: it counts, and something happens at one point."""

    def __init__(self, world, point, happens):
        self.key = f"count:{world.name}"
        self.world, self.point, self.happens = world, point, happens
        self.runs = 0

    def __call__(self, _, effects):
        self.runs += 1
        counter = effects.connection
        counter.watch(self.key)
        self.at("watched", counter)
        count = int(counter.get(self.key) or 0)
        self.at("read", counter)
        counter.multi()
        counter.set(self.key, count + 1)

    def at(self, point, counter):
        if self.runs == 1 and point == self.point:
            self.happens(self, counter.connection)

    def another_counts(self):
        with self.world.client() as client:
            client.incr(self.key)

    def count(self):
        with self.world.client() as client:
            return int(client.get(self.key))


def dies_unseen(counting, connection):
    """The server ends the session, another one counts, and it is time to look."""
    address = "{}:{}".format(*connection._sock.getsockname())
    with counting.world.client() as client:
        assert client.client_kill(address)
    counting.another_counts()
    connection.next_health_check = 0


@pytest.mark.parametrize("point", ["watched", "read"])
def test_what_a_lost_session_watched_is_read_again(shared_redis, point):
    """Not committed by a new session, which watches nothing."""
    world = CheckedWorld(shared_redis, False, orders=1, substreams=1, attempts=1)
    counting = world.looks = Counting(world, point, dies_unseen)
    drain(world.consumer())
    assert (counting.count(), counting.runs) == (2, 2)
    assert world.row()[b"attempts"] == b"0"


class Interrupted(Exception):
    """What a signal's handler raises, say."""


def test_a_handler_that_hides_what_interrupted_a_read_commits_nothing(shared_redis):
    """Redis-py has let go of the connection then, and what that watched may have changed."""
    world = CheckedWorld(shared_redis, False, orders=1, substreams=1, attempts=1)

    def interrupted(counting, connection):
        counting.another_counts()
        with (
            patch.object(connection._parser, "read_response", side_effect=Interrupted),
            suppress(Interrupted),
        ):
            world.now.connection.get(counting.key)

    counting = Counting(world, "read", interrupted)

    def look(order, effects):
        world.now = effects
        counting(order, effects)

    world.looks = look
    drain(world.consumer())
    assert (counting.count(), counting.runs) == (2, 2)
