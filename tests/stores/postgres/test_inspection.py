"""Looking into a PostgreSQL store (DESIGN §6)."""

from __future__ import annotations

from contextlib import closing

import pytest

from rifl._stores import StoreLocked, StoreSchemaTooNew, StoreUnreachable
from rifl._stores.opening import open_inspection
from rifl.core._shared.identity import RpcId
from tests.compat.make_store import make
from tests.stores.inspecting import SharedInspection
from tests.stores.redis.replica import ATOMIC, FIRST, call


class TestPostgres(SharedInspection):
    """``postgresql://``."""

    def counted(self, replica, client_id):
        """Add up the client's shards."""
        return replica.store.leases._rows(
            "SELECT coalesce(sum(keys), 0)::int8, coalesce(sum(bytes), 0)::int8 "
            "FROM @.key_counts WHERE client_id = %s",
            client_id,
        )[0]


def test_a_call_that_is_being_recorded_is_not_released(replicas, database, url) -> None:
    """What a handler's transaction holds is left alone, and soon said so (DESIGN §6)."""
    one = replicas()
    client = one.client()
    attempt = one.begin(call(client, 1), ATOMIC)
    one.store.transactions.record(attempt, FIRST, database)
    one.fall_silent()
    with closing(open_inspection(url)) as store:
        with pytest.raises(StoreLocked, match="being recorded"):
            store.release(RpcId(client, 1))
        database.commit()
        assert store.record(RpcId(client, 1)) == FIRST


def test_a_role_that_may_only_read_can_look(shared_server, url, schema) -> None:
    """Reading needs no right to write; a release does, and says so (DESIGN §6)."""
    make(url)
    with shared_server.connect(autocommit=True) as connection:
        connection.execute(f"CREATE ROLE looks_{schema} LOGIN")
        connection.execute(f"GRANT USAGE ON SCHEMA {schema} TO looks_{schema}")
        connection.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO looks_{schema}")
    with closing(open_inspection(url.replace("rifl@", f"looks_{schema}@"))) as store:
        assert store.summary().records == 4
        with pytest.raises(StoreUnreachable, match="permission denied"):
            store.release(RpcId(1, 6))
        assert store.call(RpcId(1, 6)) is not None


def test_a_newer_layout_is_refused(shared_server, url, schema) -> None:
    """A newer release's tables are not looked into (DESIGN §6)."""
    make(url)
    with shared_server.connect() as connection:
        connection.execute(f"UPDATE {schema}.meta SET value = '99' WHERE name = 'layout'")
    with pytest.raises(StoreSchemaTooNew, match="layout 99"):
        open_inspection(url)
