"""Calls of idempotent methods that say ``claim="never"``, over Redis (DESIGN §4, step 6)."""

from __future__ import annotations

import pytest

from rifl._stores.shared.backend import WentBackwards
from rifl.core._shared.errors import RecordPending
from tests.stores.never_claimed import NeverClaimed, Runs
from tests.stores.redis.replica import call


class TestRedis(NeverClaimed):
    """See there."""

    def test_the_lease_is_renewed(self, replicas, runs):
        """By its record, since nothing is asked before (DESIGN §5)."""
        one = replicas(term_s=60.0)
        client = one.client()
        backend = one.store._backend
        redis, row = backend.clients.blocking, backend.base(client) + "client"
        due = int(redis.hget(row, "due"))
        redis.hset(row, "due", due - 30_000)
        runs.serve(one, call(client, 1))
        assert int(redis.hget(row, "due")) >= due

    def test_a_store_that_lost_everything_takes_no_record(self, own_server, replicas):
        """It could stand for nothing: the call may have been recorded there before (DESIGN §6)."""
        one = replicas(own_server.url(beat_s=0.05, dead_after_s=0.6))
        client = one.client()
        with own_server.client() as redis, pytest.raises(RecordPending) as pending:
            Runs().serve(one, call(client, 1), meanwhile=redis.flushall)
        assert isinstance(pending.value.__cause__, WentBackwards)
        with own_server.client() as redis:
            assert not redis.keys(f"*{{{client}}}*")
