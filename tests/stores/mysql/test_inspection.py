"""Looking into a MariaDB store, and settling calls there (DESIGN §4, §6)."""

from __future__ import annotations

from contextlib import closing

import pytest

from rifl._stores import StoreLocked, StoreSchemaTooNew, StoreUnreachable, unknown_calls
from rifl._stores.inspection import VERDICTS_KEPT_S
from rifl._stores.opening import open_inspection
from rifl.core._shared.identity import RpcId
from tests.compat.make_store import make
from tests.stores.inspecting import SharedInspection
from tests.stores.redis.replica import ATOMIC, FIRST, call
from tests.stores.settling import (
    BEGUN,
    GIVEN_UP,
    KEY,
    SettlesUnknown,
    _arrive,
    _serving,
    check_count_that_hangs,
    check_given_up,
    end_client,
)


class TestMariaDb(SharedInspection):
    """``mysql://``."""

    def counted(self, replica, client_id):
        """Add up what is counted of the client, and what is not yet."""
        rows = replica.store.leases._rows(
            "SELECT n_keys, key_bytes FROM @.clients WHERE client_id = %s UNION ALL "
            "SELECT n_keys, n_bytes FROM @.key_changes WHERE client_id = %s",
            *(client_id, client_id),
        )
        return tuple(map(sum, zip(*rows, strict=True)))


class TestSettling(SettlesUnknown):
    """See there."""

    def test_verdicts_are_forgotten_after_a_week(self, made: str) -> None:
        """By the time that was lived through, and the newest are kept (DESIGN §9)."""
        for rpc_id in (BEGUN, KEY):
            _arrive(made, rpc_id)
        with _serving(made) as store:
            end_client(store, 1)
            store.expire_keys()
            assert {call.rpc_id for call in unknown_calls(made)} == {BEGUN, KEY}
            store.leases._transact(
                lambda sql: sql.run(
                    "UPDATE @.unknown_calls SET lived = lived - %s WHERE client_id = 1",
                    VERDICTS_KEPT_S + 1,
                )
            )
            store.expire_keys()
            assert [call.rpc_id for call in unknown_calls(made)] == [KEY]


@pytest.mark.parametrize("ends", GIVEN_UP)
def test_what_a_caller_gave_up_is_unknown_once_its_replica_is_gone(url: str, ends: str) -> None:
    """See there."""
    check_given_up(url, ends)


def test_a_count_that_hangs_is_anothers(url: str) -> None:
    """See there."""
    check_count_that_hangs(url)


def test_a_call_that_is_being_recorded_is_not_released(replicas, database, url) -> None:
    """What a handler's transaction holds is left alone, and soon said so (DESIGN §6)."""
    one = replicas()
    client = one.client()
    attempt = one.begin(call(client, 1), ATOMIC)
    one.store.transactions.record(attempt, FIRST, database)
    one.fall_silent()
    with closing(open_inspection(f"{url}&timeout_s=2")) as store:
        with pytest.raises(StoreLocked, match="being recorded"):
            store.release(RpcId(client, 1))
        database.commit()
        assert store.record(RpcId(client, 1)) == FIRST


def test_a_user_who_may_only_read_can_look(shared_mariadb, url, prefix) -> None:
    """Reading needs no right to write; a release does, and says so (DESIGN §6)."""
    make(url)
    with shared_mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE USER {prefix}looks")
        cursor.execute(f"GRANT SELECT ON rifl.* TO {prefix}looks")
    with closing(open_inspection(url.replace("root@", f"{prefix}looks@"))) as store:
        assert store.summary().records == 4
        with pytest.raises(StoreUnreachable, match="denied"):
            store.release(RpcId(1, 6))
        assert store.call(RpcId(1, 6)) is not None


def test_a_newer_layout_is_refused(shared_mariadb, url, prefix) -> None:
    """A newer release's tables are not looked into (DESIGN §6)."""
    make(url)
    with shared_mariadb.connect(autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(f"UPDATE {prefix}meta SET value = '99' WHERE name = 'layout'")
    with pytest.raises(StoreSchemaTooNew, match="layout 99"):
        open_inspection(url)
