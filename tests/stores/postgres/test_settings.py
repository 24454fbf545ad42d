"""A PostgreSQL that stops being durable while it is used, or is another one since (DESIGN §6)."""

from __future__ import annotations

import pytest

from _rifl_ground.refusals import Outcome
from rifl.core._shared.errors import RecordPending, StoreUnavailable
from tests.helpers.waiting import until
from tests.stores.redis.replica import ATOMIC, FIRST, IDEMPOTENT, Replica, call

_QUICK = {"timeout_s": 1, "beat_s": 0.05, "dead_after_s": 30, "max_connections": 3}


@pytest.fixture
def setting(own_server):
    """Change a setting of the server while it runs; it is reset afterwards."""

    def change(statement):
        with own_server.connect(autocommit=True) as connection:
            connection.execute(f"ALTER SYSTEM {statement}")
            connection.execute("SELECT pg_reload_conf()")

    yield change
    change("RESET ALL")


def _told(replica):
    told = []
    replica.store.on_refusal = told.append
    return told


@pytest.mark.parametrize("name", ["fsync", "full_page_writes"])
def test_settings_that_become_weak_are_refused_until_they_are_mended(
    own_server, schema, setting, name
):
    """Nothing new is begun or acknowledged meanwhile, and health says so (DESIGN §6)."""
    one = Replica(own_server.url(schema=schema, **_QUICK))
    told, client = _told(one), one.client()
    one.finish(one.begin(call(client, 1), IDEMPOTENT))
    running, atomic = one.begin(call(client, 2)), one.begin(call(client, 3), ATOMIC)
    setting(f"SET {name} = off")
    until(lambda: told, "it is told")
    assert f"{name} is off" in str(told[-1])
    with pytest.raises(StoreUnavailable, match=f"{name} is off") as refused:
        one.claim(call(client, 4))
    assert refused.value.outcome is Outcome.NOT_EXECUTED
    assert one.claim(call(client, 1), IDEMPOTENT).record == FIRST
    with pytest.raises(RecordPending):
        one.finish(running)
    with pytest.raises(StoreUnavailable), own_server.connect() as connection:
        one.store.transactions.record(atomic, FIRST, connection)
    setting(f"RESET {name}")
    until(lambda: told[-1] is None, "it is told")
    until(lambda: one.claim(call(client, 2)).record == FIRST, "the record is retried")
    one.finish(one.begin(call(client, 4)))
    one.close()


@pytest.mark.parametrize("shell", ["sync", "aio"])
async def test_a_weak_server_in_its_place_is_not_even_asked(own_server, schema, shell):
    """Every new connection is looked at before it is used, as at start (DESIGN §6)."""
    one = Replica(own_server.url(schema=schema, **_QUICK))
    client = one.client()
    # What it finds out is found by the connection, not by a beat.
    one.fall_silent()
    own_server.crash()
    own_server.settings["fsync"] = "off"
    own_server.start()

    async def arrive():
        claim = one.store.claim(call(client, 1), IDEMPOTENT)
        try:
            claimed = claim.wait() if shell == "sync" else await claim
        except StoreUnavailable as refused:
            return str(refused)
        raise AssertionError(claimed)

    told = ""
    while "fsync is off" not in told:
        told = await arrive()
    with own_server.connect() as connection:
        count = connection.execute(f"SELECT count(*) FROM {schema}.calls").fetchone()
    assert count == (0,)
    one.close()
    own_server.crash()
    del own_server.settings["fsync"]
    own_server.start()
