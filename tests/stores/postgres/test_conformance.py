"""The PostgreSQL store through the conformance suite (DESIGN §6)."""

from __future__ import annotations

import math

import pytest

from tests.stores import conformance
from tests.stores.redis import test_conformance as shared


class PostgresOpened(shared.SharedOpened):
    """A replica over the store. Telling it the time moves the leases in the store."""

    @property
    def now(self):
        """The time that was told."""
        return self._now

    @now.setter
    def now(self, value):
        leases = self.store.leases
        leases._rows(
            "UPDATE @.clients SET due = due - make_interval(secs => %s) RETURNING client_id",
            float(value - self._now),
        )
        # And this replica looked on all the while.
        run = leases._one("SELECT pg_postmaster_start_time()::text")
        leases._watch.saw(run.encode(), conformance.TERM_S)
        leases._watch._since = -math.inf
        self._now = value


class TestPostgres(shared.TestRedis):
    """``postgresql://``, with leases that live in the store."""

    @pytest.fixture(autouse=True)
    def _shared(self, monkeypatch):
        monkeypatch.setattr(conformance, "Opened", PostgresOpened)

    @pytest.fixture
    def url(self, shared_server, schema):
        """Return the URL of a store of its own, in whose time a slow disk syncs a batch."""
        return shared_server.url(schema=schema, beat_s=0.1, dead_after_s=5)
