"""Settling unknown outcomes in PostgreSQL (DESIGN §4)."""

from __future__ import annotations

from pathlib import Path

import pytest

from lease_server import open_authority
from rifl._stores import unknown_calls
from rifl._stores.inspection import VERDICTS_KEPT_S
from rifl.core._shared.identity import RpcId
from tests.stores.left_thread import check_left_thread
from tests.stores.settling import (
    BEGUN,
    GIVEN_UP,
    KEY,
    PLAIN,
    SettlesUnknown,
    _arrive,
    _call,
    _serving,
    check_count_that_hangs,
    check_given_up,
    end_client,
)


class TestPostgres(SettlesUnknown):
    """See there."""

    def test_verdicts_are_forgotten_after_a_week(self, made: str) -> None:
        """By the time that was lived through, and the newest are kept (DESIGN §9)."""
        for rpc_id in (BEGUN, KEY):
            _arrive(made, rpc_id)
        with _serving(made) as store:
            end_client(store, 1)
            schema = store._backend.schema
            store.expire_keys()
            assert {call.rpc_id for call in unknown_calls(made)} == {BEGUN, KEY}
            store._backend.rows(
                f"UPDATE {schema}.unknown SET lived = lived - make_interval(secs => %s) "
                "WHERE client_id = 1 RETURNING 1".encode(),
                (float(VERDICTS_KEPT_S + 1),),
            )
            store.expire_keys()
            assert [call.rpc_id for call in unknown_calls(made)] == [KEY]

    def test_no_key_is_read_to_count_them(self, made: str) -> None:
        """An index has what runs: a store has millions of keys (DESIGN §9)."""
        with _serving(made) as store:
            schema = store._backend.schema
            named = (schema, "unresolved_1")
            (source,) = store._backend.rows(
                b"SELECT prosrc FROM pg_proc WHERE pronamespace = %s::regnamespace "
                b"AND proname = %s",
                named,
            )[0]
            with store._backend.pools.blocking.connection() as connection:
                connection.execute("SET enable_seqscan = off")
                plan = connection.execute(f"EXPLAIN {source}").fetchall()
                connection.execute("RESET enable_seqscan")
            assert "calls_running" in str(plan)

    def test_the_index_lets_a_record_be_written_in_place(self, url: str) -> None:
        """A call without a key writes no other index for it (HOT): each costs WAL (DESIGN §6)."""
        with _serving(url) as store:
            client_id = open_authority(store.leases, term_s=60.0).grant().client_id
            attempt = store.claim(_call(RpcId(client_id, 4)), PLAIN).wait().attempt
            backend = store._backend
            with backend.pools.blocking.connection() as connection, connection.transaction():
                ended = connection.execute(
                    f"SELECT ending FROM {backend.schema}.finish_1"
                    "(%s, %s, 4, '', %s, 'record', 'finish', '')",
                    (backend.store_id, client_id, attempt.token.decode()),
                ).fetchone()
                told = connection.execute(
                    "SELECT pg_stat_get_xact_tuples_updated(%(table)s::regclass), "
                    "pg_stat_get_xact_tuples_hot_updated(%(table)s::regclass)",
                    {"table": f"{backend.schema}.calls"},
                ).fetchone()
            assert (ended, told) == (("done",), (1, 1))

    def test_no_more_are_remembered_than_that(self, made: str) -> None:
        """The oldest go beyond ten thousand (DESIGN §9)."""
        with _serving(made) as store:
            unknown = f"{store._backend.schema}.unknown"
            store._backend.rows(
                f"INSERT INTO {unknown} SELECT 7, n, '', '/s/M', NULL, NULL, clock_timestamp() "
                "+ make_interval(secs => n * 0.001) FROM generate_series(1, 10004) AS n "
                "RETURNING 1".encode(),
                (),
            )
            store.expire_keys()
            (row,) = store._backend.rows(f"SELECT count(*), min(seq) FROM {unknown}".encode(), ())
            assert tuple(row) == (10_000, 5)


@pytest.mark.parametrize("ends", GIVEN_UP)
def test_what_a_caller_gave_up_is_unknown_once_its_replica_is_gone(url: str, ends: str) -> None:
    """See there."""
    check_given_up(url, ends)


def test_a_count_that_hangs_is_anothers(url: str) -> None:
    """See there."""
    check_count_that_hangs(url)


@pytest.mark.parametrize("how", ["closing", "ending"])
@pytest.mark.parametrize("declared", ["plain", "idempotent"])
def test_a_thread_that_was_left_behind_may_run_still(
    url: str, tmp_path: Path, declared: str, how: str
) -> None:
    """An event loop's end cancels its handler, and not what that began (DESIGN §4, §6)."""
    check_left_thread(url, tmp_path, declared, how)
