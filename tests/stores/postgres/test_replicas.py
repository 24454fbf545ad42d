"""Several replicas over one PostgreSQL, at the ``Store`` interface."""

from __future__ import annotations

import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from rifl._stores.shared.requests import Claim, TakeBack
from rifl.core._serving.answer import HandlerResult
from rifl.core._serving.policy import Kind
from rifl.core._serving.serving import serve
from rifl.core._serving.verdict import Verdict
from rifl.core._shared.errors import LeaseExpired, StaleRpc, WindowExceeded
from rifl.core._shared.record import CompletionRecord
from tests.helpers.holding import HoldingProxy
from tests.helpers.waiting import until
from tests.stores.conformance import drive
from tests.stores.redis.replica import ATOMIC, FIRST, IDEMPOTENT, call
from tests.stores.redis.test_replicas import (  # noqa: F401 - what every shared store has to pass
    late_claim,
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


def test_acknowledged_records_are_deleted_in_the_same_step(replicas):
    """Acknowledged on one replica is stale on all, its record gone (DESIGN §4)."""
    one, two = replicas(), replicas()
    client = one.client()
    for seq in range(1, 7):
        one.finish(one.begin(call(client, seq)))
    two.finish(two.begin(call(client, 9, first=3, completed=[(4, 5)])))
    verdicts = [one.claim(call(client, seq)).verdict.value for seq in range(1, 7)]
    assert verdicts == ["stale", "stale", "completed", "stale", "stale", "completed"]
    rows = one.store.leases._rows("SELECT seq FROM @.calls ORDER BY seq")
    assert rows == [(3,), (6,), (9,)]


def test_an_acknowledged_range_may_end_with_the_last_seq_of_all(replicas):
    """2^63-1 may be acknowledged, though it has no successor (DESIGN §3)."""
    one = replicas()
    client, top = one.client(), 2**63 - 1
    one.finish(one.begin(call(client, top)))
    one.finish(one.begin(call(client, 1, completed=[(top, top)])))
    assert one.claim(call(client, top)).verdict is Verdict.STALE


def test_an_expired_client_leaves_nothing(replicas):
    """Expiry removes row, records and counts at once; a term is watched first (DESIGN §5)."""
    one, two = replicas(term_s=0.8), replicas(term_s=0.8)
    gone, renewed = one.client(), one.client()
    one.finish(one.begin(call(gone, 1)))

    def sweep():
        one.authority.renew(renewed)
        one.authority.expire()
        return gone not in one.store.leases.known_clients()

    until(sweep, "the lease ends")
    with pytest.raises(LeaseExpired):
        two.claim(call(gone, 1))
    two.begin(call(renewed, 1))
    assert one.store.leases._rows("SELECT client_id FROM @.calls") == [(renewed,)]


def test_a_late_duplicate_never_looks_new_while_its_record_is_freed(replicas):
    """Deleting a record and acknowledging it are one step, whoever looks on (DESIGN §4)."""
    one, two = replicas(), replicas()
    found, seq = Counter(), 1
    for _ in range(40):
        client = one.client()
        one.finish(one.begin(call(client, seq)))
        barrier = threading.Barrier(3)

        def acknowledge(client=client, barrier=barrier):
            barrier.wait()
            one.finish(one.begin(call(client, seq + 1, first=seq + 1)))

        def duplicate(replica, client=client, barrier=barrier):
            barrier.wait()
            for _ in range(4):
                found[replica.claim(call(client, seq)).verdict] += 1

        with ThreadPoolExecutor(3) as pool:
            done = [pool.submit(acknowledge), *(pool.submit(duplicate, r) for r in (one, two))]
            for future in done:
                future.result()
    assert set(found) <= {Verdict.COMPLETED, Verdict.STALE}
    assert found[Verdict.STALE]


def test_calls_of_hopping_clients_run_once(replicas):
    """Many threads, three replicas, acknowledgements: one run, one answer each (DESIGN §1)."""
    open_replicas = [replicas(window=16) for _ in range(3)]
    runs, lock = Counter(), threading.Lock()
    clients = [open_replicas[0].client() for _ in range(3)]

    def run(attempt):
        with lock:
            runs[attempt.call.client_id, attempt.call.seq] += 1
        return HandlerResult(CompletionRecord(response=b"%d" % attempt.call.seq))

    def session(client, randomness):
        for seq in range(1, 25):
            arriving = call(client, seq, first=max(1, seq - 3))
            picked = randomness.sample(open_replicas, 2)
            with ThreadPoolExecutor(2) as pool:
                twice = [
                    pool.submit(drive, serve(r.store, arriving, IDEMPOTENT), r.store, run)
                    for r in picked
                ]
                assert {future.result().record.response for future in twice} == {b"%d" % seq}
            if seq > 4:
                late = randomness.choice(open_replicas)
                with pytest.raises(StaleRpc):
                    drive(serve(late.store, call(client, seq - 4), IDEMPOTENT), late.store, run)

    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(session, c, random.Random(c)) for c in clients]:
            done.result()
    assert runs == Counter({(client, seq): 1 for client in clients for seq in range(1, 25)})


def test_the_window_counts_what_is_known_not_how_far_seqs_reach(replicas):
    """Only unacknowledged calls take room, however far apart (DESIGN §4)."""
    one = replicas(window=4)
    client = one.client()
    for seq in (10, 10**6, 10**12):
        one.finish(one.begin(call(client, seq)))
    one.finish(one.begin(call(client, 10**15)))
    with pytest.raises(WindowExceeded):
        one.claim(call(client, 10**15 + 1))
    one.finish(one.begin(call(client, 10**15 + 1, completed=[(10, 10)])))
    assert one.claim(call(client, 10**6)).record == FIRST


@pytest.mark.parametrize("when", ["in time", "too late"])
def test_a_claim_that_arrives_after_it_was_taken_back_is_let_go(replicas, shared_server, url, when):
    """Nobody runs it: it is undone, or does nothing, whenever it arrives (DESIGN §6)."""
    proxy = HoldingProxy(shared_server.port)
    try:
        # Nobody is taken for dead meanwhile.
        url = url.replace("dead_after_s=0.6", "dead_after_s=30")
        through = url.replace(f":{shared_server.port}", f":{proxy.port}")
        one, two = replicas(f"{through}&timeout_s=0.3"), replicas(url)
        arriving = late_claim(one, two, proxy, b".claim_1(", when)
        found = two.claim(arriving, IDEMPOTENT)
        if when == "in time" and found.verdict is Verdict.IN_PROGRESS:
            assert two.woken(found.attempt).wait(60)
            found = two.claim(arriving, IDEMPOTENT)
        assert found.verdict is Verdict.NEW
    finally:
        proxy.close()


def test_a_claim_that_has_begun_is_waited_for_by_who_takes_it_back(replicas, shared_server):
    """Its commit may take long: the row that does not show yet is undone all the same (§6)."""
    one = replicas()
    arriving = call(one.client(), 1)
    attempt = one.store._attempts.new(arriving, IDEMPOTENT)
    claim = Claim(arriving, Kind.IDEMPOTENT, attempt.token, one.store.owner, False, 8, 8, 8)
    backend = one.store._postgres
    with shared_server.connect() as slow:
        statement, arguments = backend._pack(claim)
        row = slow.execute(statement.text, arguments).fetchone()
        assert row[0] == "new"
        thread = threading.Thread(target=backend.ask, args=(TakeBack(arriving, attempt.token),))
        thread.start()
        until(lambda: _waits(shared_server), "who takes it back waits")
        slow.commit()
    thread.join(20)
    assert one.store.leases._rows("SELECT seq FROM @.calls") == []


def _waits(server):
    with server.connect() as connection:
        waiting = "SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        return connection.execute(waiting).fetchone() is not None


def test_a_rotation_that_is_repeated_is_one(replicas):
    """Its reply was lost, it is sent again: the secret before it stays valid (DESIGN §5)."""
    leases = replicas().store.leases
    before = leases.secrets()
    rotation = "SELECT * FROM @.secrets_1(%s::bytea, %s)", b"f" * 24, True
    once = leases._rows(*rotation)
    assert leases._rows(*rotation) == once
    assert [secret.value for secret in leases.secrets()] == [b"f" * 24, before[0].value]


def test_a_transaction_left_open_does_not_stop_the_beats(replicas, shared_server, schema):
    """What waits for it in the background is not what says that the replica lives (DESIGN §6)."""
    one = replicas()
    attempt = one.begin(call(one.client(), 1), ATOMIC)
    with shared_server.connect() as left, shared_server.connect(autocommit=True) as looking:
        one.store.transactions.record(attempt, FIRST, left)
        one.store._heartbeat.insist(one.store._settlement.abandon(attempt))

        def waiting():
            return looking.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            ).fetchone()[0]

        def beats():
            return looking.execute(f"SELECT beats FROM {schema}.replicas").fetchone()[0]

        until(waiting, "it waits for the handler's transaction")
        before = beats()
        # It gives up waiting after some seconds, and begins again.
        until(lambda: beats() >= before + 10, "it goes on saying that it lives", 15.0)
        left.rollback()
    until(lambda: not one.store._attempts.unsettled(), "the call is let go")
