"""A Redis that stops being durable while it is used, or is another one since (DESIGN §6)."""

from __future__ import annotations

import pytest

from _rifl_ground.refusals import Outcome
from rifl.core._shared.errors import RecordPending, StoreUnavailable
from tests.helpers.waiting import until
from tests.stores.redis.replica import ATOMIC, FIRST, IDEMPOTENT, Replica, call

_QUICK = {"timeout_s": 1, "beat_s": 0.05, "dead_after_s": 30}


def _told(replica):
    told = []
    replica.store.on_refusal = told.append
    return told


def test_settings_that_become_weak_are_refused_until_they_are_mended(own_server):
    """Nothing new is begun or acknowledged meanwhile, and health says so (DESIGN §6)."""
    one = Replica(own_server.url(**_QUICK))
    told, client = _told(one), one.client()
    one.finish(one.begin(call(client, 1), IDEMPOTENT))
    running, atomic = one.begin(call(client, 2)), one.begin(call(client, 3), ATOMIC)
    with own_server.client() as direct:
        direct.config_set("appendfsync", "no")
        until(lambda: told, "it is told")
        assert "appendfsync is no" in str(told[-1])
        with pytest.raises(StoreUnavailable, match="appendfsync is no") as refused:
            one.claim(call(client, 4))
        assert refused.value.outcome is Outcome.NOT_EXECUTED
        assert one.claim(call(client, 1), IDEMPOTENT).record == FIRST
        with pytest.raises(RecordPending):
            one.finish(running)
        with pytest.raises(StoreUnavailable), direct.pipeline() as transaction:
            one.store.transactions.record(atomic, FIRST, transaction)
        direct.config_set("appendfsync", "always")
    until(lambda: told[-1] is None, "it is told")
    until(lambda: one.claim(call(client, 2)).record == FIRST, "the record is retried")
    one.finish(one.begin(call(client, 4)))
    one.close()


@pytest.mark.parametrize("shell", ["sync", "aio"])
async def test_a_weak_server_in_its_place_is_not_even_asked(own_server, shell):
    """Every new connection is looked at before it is used, as at start (DESIGN §6)."""
    # No beat finds out before the call.
    one = Replica(own_server.url(**{**_QUICK, "beat_s": 60, "dead_after_s": 600}))
    client = one.client()
    own_server.stop()
    own_server.settings["appendonly"] = "no"
    own_server.start()

    async def arrive():
        claim = one.store.claim(call(client, 1), IDEMPOTENT)
        return claim.wait() if shell == "sync" else await claim

    # Connection refused, until it is up.
    with pytest.raises(StoreUnavailable, match="appendonly is no"):
        await arrive()
    with own_server.client() as direct:
        assert not direct.exists(f"rifl:{{{client}}}:run")
    one.close()
