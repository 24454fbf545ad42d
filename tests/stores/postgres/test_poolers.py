"""A real PgBouncer between us and the server: refused, or in session mode (DESIGN §6)."""

from __future__ import annotations

import pytest

from rifl._stores import UnsupportedStore, open_lease_storage, open_store
from tests.stores.postgres.pgbouncer import PgBouncer
from tests.stores.redis.replica import FIRST, IDEMPOTENT, Replica, call

_QUICK = {"beat_s": 0.1, "dead_after_s": 0.6, "max_connections": 4}


@pytest.fixture
def pooler(shared_server, request):
    """A pooler in the mode that the test is parametrized with."""
    made = PgBouncer(shared_server, request.param)
    yield made
    made.stop()


@pytest.mark.parametrize("opening", [open_store, open_lease_storage])
@pytest.mark.parametrize("declared", [{}, {"pooler": "session"}])
@pytest.mark.parametrize("pooler", ["transaction", "statement"], indirect=True)
def test_a_pool_in_transaction_mode_is_refused_whatever_the_url_says(
    pooler, schema, declared, opening
):
    """Settings and LISTEN hold for no session there, however idle the pool is (DESIGN §6)."""
    with pytest.raises(UnsupportedStore, match="a pooler in transaction mode"):
        opening(pooler.url(schema=schema, **declared))


@pytest.mark.parametrize("pooler", ["session"], indirect=True)
def test_a_pool_in_session_mode_has_to_be_named(pooler, schema):
    """It cannot be told from one that has another session free just now (DESIGN §6)."""
    with pytest.raises(UnsupportedStore, match=r"may be in transaction mode.*pooler=session"):
        open_store(pooler.url(schema=schema))
    url = pooler.url(schema=schema, pooler="session", **_QUICK)
    one, two = Replica(url), Replica(url)
    client = one.client()
    running = one.begin(call(client, 1), IDEMPOTENT)
    woken = two.woken(two.claim(call(client, 1), IDEMPOTENT).attempt)
    one.finish(running)
    assert woken.wait(60)
    assert two.claim(call(client, 1), IDEMPOTENT).record == FIRST
    one.close()
    two.close()


@pytest.mark.parametrize(("durability", "inside"), [("", "on"), ("require", "on"), ("warn", "off")])
def test_a_commit_waits_for_the_disk_whatever_its_session_has_set(
    replicas, shared_server, url, schema, durability, inside
):
    """Who lends sessions may lend one of anybody's: the statement itself sees to it (§6)."""
    replicas()
    statements = (
        "claim_1('', 1, 1, '', 1, '{}', '', 'm', 'plain', 't', 'o', false, 8, 8, 8, '', '', "
        "NULL, NULL, '')",
        "finish_1('', 1, 1, '', 't', '', 'finish', '')",
    )
    for statement in statements:
        with shared_server.connect() as connection:
            connection.execute("SET synchronous_commit = off")
            if durability:
                connection.execute("SELECT set_config('rifl.durability', %s, false)", (durability,))
            connection.execute(f"SELECT * FROM {schema}.{statement}")
            assert connection.execute("SHOW synchronous_commit").fetchone() == (inside,)
