"""Connections of the PostgreSQL store (DESIGN §6, §9)."""

from __future__ import annotations

from contextlib import AsyncExitStack, ExitStack

import pytest

from tests.stores.hostile import Hostile
from tests.stores.limits import Limits

_PLACES = 3


class TestPostgreSQL(Limits):
    """``postgresql://``: psycopg's pool waits."""

    @pytest.fixture
    def url(self, shared_server, schema):
        """Return the URL of a store of its own."""
        return shared_server.url(schema=schema, beat_s=0.1)

    def taken(self, store):
        """All: who listens has a connection of its own."""
        stack = ExitStack()
        pool = store._postgres.pools.blocking
        for _ in range(_PLACES):
            stack.callback(pool.putconn, pool.getconn(20))
        return stack

    async def taken_awaiting(self, store):
        """The same on the loop."""
        stack = AsyncExitStack()
        pool = await store._postgres.pools.awaiting()
        for _ in range(_PLACES):
            stack.push_async_callback(pool.putconn, await pool.getconn(20))
        return stack


class TestHostile(Hostile):
    """``postgresql://``: callers at their worst."""
