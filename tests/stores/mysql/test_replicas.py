"""Several replicas over one MariaDB, at the ``Store`` interface."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pymysql
import pytest

from rifl._stores import open_store
from rifl._stores.mysql.failures import failure_of
from rifl._stores.shared import Claim, Found
from rifl._stores.shared.requests import TakeBack
from rifl._stores.sql.carrying import claim
from rifl._stores.sql.dialect import Failure
from rifl._stores.sql.rows import lock_client
from rifl.core._serving.policy import Kind
from rifl.core._serving.verdict import Verdict
from rifl.core._shared.errors import StoreUnavailable
from tests.helpers.waiting import until
from tests.stores.batches import opposite_orders_on_two_replicas
from tests.stores.postgres.test_replicas import (  # noqa: F401 - what every SQL store has to pass
    test_a_late_duplicate_never_looks_new_while_its_record_is_freed,
    test_acknowledged_records_are_deleted_in_the_same_step,
    test_an_acknowledged_range_may_end_with_the_last_seq_of_all,
    test_an_expired_client_leaves_nothing,
    test_calls_of_hopping_clients_run_once,
    test_the_window_counts_what_is_known_not_how_far_seqs_reach,
)
from tests.stores.redis.replica import ATOMIC, FIRST, IDEMPOTENT, call
from tests.stores.redis.test_replicas import (  # noqa: F401 - what every shared store has to pass
    test_a_call_acknowledged_while_it_runs_keeps_nothing,
    test_a_call_of_a_dead_replica_is_not_run_in_a_session_that_closed,
    test_a_call_of_a_dead_replica_is_taken_over_and_the_old_attempt_fenced,
    test_a_claim_that_is_late_does_nothing,
    test_a_client_granted_by_one_replica_is_known_to_all,
    test_a_draining_replica_takes_nothing_over,
    test_a_duplicate_elsewhere_is_woken_not_polled,
    test_a_plain_call_of_a_dead_replica_is_unknown_for_ever,
    test_a_replica_tells_which_others_have_ended,
    test_a_take_over_whose_reply_is_lost_forgets_no_run,
    test_an_abandoned_call_is_won_by_another_replica,
    test_an_expired_client_stays_while_a_living_replica_runs_its_call,
    test_claims_that_are_taken_back_are_bounded,
    test_commits_are_told_with_their_duration,
    test_keys_are_bounded_by_count_and_bytes,
    test_large_seqs_keep_their_digits,
    test_names_of_sessions_are_bounded_for_each_peer,
    test_of_many_that_find_a_dead_replica_one_takes_over,
    test_open_sessions_are_bounded_for_all_together,
    test_open_sessions_are_bounded_for_each_peer,
    test_sessions_are_shared_and_close_for_all,
    test_what_may_have_run_is_so_for_whoever_takes_it_over_next,
)


def test_two_replicas_take_batches_in_opposite_order(url):
    """Each row happens once, on one of them, and nobody waits in a ring (DESIGN §4)."""
    opposite_orders_on_two_replicas(url)


def test_a_claim_that_has_begun_is_waited_for_by_who_takes_it_back(replicas):
    """Its commit may take long: the row that does not show yet is undone all the same (§6)."""
    one = replicas()
    arriving = call(one.client(), 1)
    attempt = one.store._attempts.new(arriving, IDEMPOTENT)
    until_s = time.time() + 60
    request = Claim(
        arriving, Kind.IDEMPOTENT, attempt.token, one.store.owner, False, 8, 8, 8, until_s=until_s
    )
    backend = one.store._sql
    with backend.pool.session() as slow:
        # A claim's first statement: nothing of it shows yet.
        lock_client(slow, arriving.client_id)
        taking = threading.Thread(
            target=backend.ask, args=(TakeBack(arriving, attempt.token),), daemon=True
        )
        taking.start()
        taking.join(0.2)
        assert taking.is_alive(), "it waits"
        assert claim(slow, request, backend.store_id).found is Found.NEW
        slow.connection.commit()
    taking.join(20)
    assert one.store.leases._rows("SELECT seq FROM @.calls") == []


def test_a_claim_that_waited_until_it_was_late_does_nothing(replicas):
    """Its clock is read with the client's row locked: who took it back was first (DESIGN §6)."""
    one = replicas()
    arriving = call(one.client(), 1)
    backend, found = one.store._sql, []
    request = Claim(arriving, Kind.IDEMPOTENT, b"t", one.store.owner, False, 8, 8, 8)
    with backend.pool.session() as holding:
        lock_client(holding, arriving.client_id)
        (now,) = holding.row(f"SELECT {holding.dialect.now}")
        waiting = threading.Thread(
            target=lambda: found.append(backend.ask(request._replace(until_s=now + 0.3)))
        )
        waiting.start()
        waiting.join(0.5)
        assert waiting.is_alive(), "it waits, and was sent in time"
        holding.connection.rollback()
    waiting.join(20)
    assert [reply.found for reply in found] == [Found.LATE]


def test_a_client_whose_row_a_session_holds_is_its_own_trouble(replicas, shared_mariadb, prefix):
    """Its calls are refused as not executed, soon, and others' go on (DESIGN §6)."""
    one = replicas()
    held, other = one.client(), one.client()
    with shared_mariadb.connect() as foreign, foreign.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {prefix}clients WHERE client_id = {held} FOR UPDATE")
        for seq in (1, 2, 3):
            with pytest.raises(StoreUnavailable, match="holds a lock"):
                one.claim(call(held, seq))
        one.finish(one.begin(call(other, 1)))
        foreign.rollback()
    until(lambda: _claimed(one, call(held, 4)), "its calls are taken again")


def test_a_replica_that_is_suspended_in_its_beat_stops_no_other(replicas, shared_mariadb, prefix):
    """It holds its row and the store's age: others go on to beat, and take calls (DESIGN §6)."""
    one = replicas()
    client, owner = one.client(), one.store.owner.encode()

    def beats():
        with shared_mariadb.connect() as other, other.cursor() as cursor:
            cursor.execute(f"SELECT beats FROM {prefix}replicas WHERE owner = %s", (owner,))
            return cursor.fetchone()[0]

    with shared_mariadb.connect() as suspended, suspended.cursor() as cursor:
        cursor.execute(f"INSERT INTO {prefix}replicas VALUES ('suspended', 7)")
        suspended.commit()
        cursor.execute(f"SELECT * FROM {prefix}replicas WHERE owner = 'suspended' FOR UPDATE")
        cursor.execute(f"SELECT * FROM {prefix}age FOR UPDATE")
        # It counts as dead after six of them.
        enough = beats() + 12
        until(lambda: beats() >= enough, "the other one beats")
        one.finish(one.begin(call(client, 1)))
        suspended.rollback()
    enough = beats() + 12
    until(lambda: beats() >= enough, "the dead one's row is there no more")
    with shared_mariadb.connect() as other, other.cursor() as cursor:
        cursor.execute(f"SELECT owner FROM {prefix}replicas")
        assert [row[0] for row in cursor.fetchall()] == [owner]


def test_a_replica_that_is_suspended_in_a_grant_stops_no_other(replicas):
    """The server ends its transaction, which held the counter of ids that all need."""
    one, two = replicas(), replicas()
    counter = "SELECT value FROM @.meta WHERE name = %s FOR UPDATE"
    with two.store._sql.pool.session() as suspended:
        suspended.rows(counter, b"ids")
        until(lambda: _granted(one), "the other one grants")
        with pytest.raises(pymysql.Error) as lost:
            suspended.rows(counter, b"ids")
    assert failure_of(lost.value) is Failure.LOST


def _granted(replica):
    try:
        return replica.client()
    except StoreUnavailable:
        return None


def test_a_call_that_a_transaction_holds_keeps_no_other_client(replicas, database):
    """Its client's sweep waits for a later one; the leases of others end (DESIGN §5)."""
    one, two = replicas(), replicas()
    held, gone = two.client(), two.client()
    attempt = one.begin(call(held, 1), ATOMIC)
    one.store.transactions.record(attempt, FIRST, database)
    one.close()
    two.store.leases.release(held)
    two.store.leases.release(gone)
    leases = two.store.leases
    until(lambda: leases.sweep(60.0, 60.0, 0.0) is not None and _is_gone(leases, gone), "it goes")
    assert not _is_gone(leases, held)
    database.commit()
    leases.sweep(60.0, 60.0, 0.0)
    assert _is_gone(leases, held)


def _is_gone(leases, client_id):
    return client_id not in leases.known_clients()


def test_replicas_that_start_at_once_make_one_store(url):
    """One makes the tables, the others find them (DESIGN §6)."""
    with ThreadPoolExecutor(4) as pool:
        stores = list(pool.map(lambda _: open_store(url), range(4)))
    assert len({store.leases.store_id() for store in stores}) == 1
    for store in stores:
        store.close()


def _claimed(replica, arriving):
    try:
        return replica.claim(arriving).verdict is Verdict.NEW
    except StoreUnavailable:
        return False
