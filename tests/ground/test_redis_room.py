"""Room for a connection to Redis, asked for within itself: nobody hangs."""

import redis

from _rifl_ground.redis.address import RedisAddress
from _rifl_ground.redis.clients import Clients
from tests.helpers.at_a_line import (
    DRIVERS,
    OURS,
    at_a_line,
    bounded,
)


def _clients():
    # Not connected before it is used; of a cluster, say, whose pools do not wait.
    clients = Clients(RedisAddress.parse("redis://127.0.0.1:1?max_connections=1&timeout_s=0.1"))
    clients._pool_waits = False
    return clients


def _use(clients):
    with clients.room():
        return True


def test_who_asks_within_gets_none():
    """A signal's handler at any line: the error of a full pool, in time, or room (L3)."""
    number, line, refused = 1, None, 0
    while line is None or line.came:
        clients = _clients()

        def act():
            nonlocal refused
            try:
                _use(clients)  # noqa: B023 - at once
            except redis.exceptions.ConnectionError:
                refused += 1

        def outer():
            with at_a_line(number, act, files=(*OURS, *DRIVERS)) as line:  # noqa: B023
                _use(clients)  # noqa: B023
            return line

        line = bounded(outer, 5)
        number += 1
    assert refused
