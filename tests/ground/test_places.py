"""Places of which there are few: an interrupt at any line loses none, and nobody hangs."""

from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
import redis
from psycopg import pq

from _rifl_ground.postgres.sessions import Sessions
from _rifl_ground.redis.address import RedisAddress
from _rifl_ground.redis.clients import Clients
from tests.helpers.at_a_line import (
    DRIVERS,
    OURS,
    Interrupted,
    at_a_line,
    bounded,
    interrupting,
)

_FILES = (*OURS, *DRIVERS)


def _room():
    """Room for a connection behind Sentinel, which is not asked before it is used."""
    address = RedisAddress.parse(
        "redis+sentinel://127.0.0.1:1/main?max_connections=1&timeout_s=0.1"
    )
    return Clients(address).in_room


class _Session:
    info = SimpleNamespace(transaction_status=pq.TransactionStatus.IDLE)

    def close(self):
        """Nothing is open."""


def _sessions():
    address: Any = SimpleNamespace(max_connections=1, timeout_s=0.1)
    sessions = Sessions(SimpleNamespace(connect=_Session), address)
    return lambda act: sessions.use(lambda _: act())


USES = pytest.mark.parametrize(
    ("make", "error"),
    [(_room, redis.exceptions.ConnectionError), (_sessions, psycopg.OperationalError)],
    ids=["redis", "postgresql"],
)


@USES
def test_who_asks_within_gets_none(make, error):
    """A signal's handler at any line: the error of a full pool, in time, or room (L3)."""
    number, line, refused = 1, None, 0
    while line is None or line.came:
        use = make()

        def act():
            nonlocal refused
            try:
                use(int)  # noqa: B023 - at once
            except error:
                refused += 1

        def outer():
            with at_a_line(number, act, files=_FILES) as line:  # noqa: B023
                use(int)  # noqa: B023
            return line

        line = bounded(outer, 5)
        number += 1
    assert refused


@USES
@pytest.mark.parametrize("raises", [False, True], ids=["done", "failed"])
def test_an_interrupt_loses_no_place(make, error, raises):
    """Also while somebody keeps the exception, as notebooks do (L3)."""
    del error
    use, kept = make(), []

    def act():
        if raises:
            raise ValueError

    number, line = 1, None
    while line is None or line.came:
        try:
            with at_a_line(number, interrupting) as line, suppress(ValueError):
                use(act)
        except Interrupted as interrupted:
            kept.append(interrupted)
        assert use(lambda: "used") == "used", line
        number += 1
    assert len(kept) > 1
