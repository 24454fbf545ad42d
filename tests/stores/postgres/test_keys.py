"""Keys, their retention, and sealed records over one PostgreSQL."""

from __future__ import annotations

import pytest

from _rifl_ground.refusals import Outcome
from rifl._stores import RecordCodec
from rifl.core._serving.bounds import KeyBounds
from rifl.core._serving.namespace import namespace_id
from rifl.core._serving.verdict import Verdict
from rifl.core._shared.errors import OutcomeUnknown, PayloadMismatch, WindowExceeded
from tests.helpers.sealing import seal, unseal
from tests.helpers.waiting import DEADLINE_S
from tests.stores.redis.replica import ATOMIC, FIRST, IDEMPOTENT, OTHER, call, keyed

PEER = namespace_id(b"alice")
HOUR = KeyBounds(retention_s=3600.0, max_keys=3)


def sweep(replica, passed_s):
    """Let time pass in the store, then sweep."""
    replica.store.leases._rows(
        "UPDATE @.calls SET claimed_at = claimed_at - make_interval(secs => %s), "
        "expires_at = expires_at - make_interval(secs => %s) RETURNING client_id",
        float(passed_s),
        float(passed_s),
    )
    replica.store.expire_keys()


def left(replica, client_id):
    """What the tables hold of a client."""
    return [
        row
        for table in ("clients", "calls", "key_counts")
        for row in replica.store.leases._rows(
            f"SELECT '{table}' FROM @.{table} WHERE client_id = %s", client_id
        )
    ]


def test_a_namespace_needs_no_lease_and_is_shared(replicas):
    """A peer's keys are known on every replica, and no sweep of leases ends them (§3)."""
    one, two = replicas(), replicas()
    attempt = one.begin(keyed(PEER, b"k"))
    woken = two.woken(two.claim(attempt.call).attempt)
    one.finish(attempt)
    assert woken.wait(DEADLINE_S)
    two.authority.expire()
    two.store.expire_keys()
    assert two.claim(keyed(PEER, b"k")).record == FIRST
    with pytest.raises(PayloadMismatch):
        two.claim(keyed(PEER, b"k", b"q"))
    assert two.claim(keyed(namespace_id(b"bob"), b"k")).verdict is Verdict.NEW
    assert one.store.leases.known_clients() == []


def test_a_key_is_new_after_its_retention_and_nothing_is_left_of_it(replicas):
    """Retention counts from completion; all of a key goes in one step (DESIGN §3, §4)."""
    one, two = replicas(key_bounds=HOUR), replicas(key_bounds=HOUR)
    attempt = one.begin(keyed(PEER, b"k"))
    sweep(two, 5000)
    one.finish(attempt)
    sweep(two, 3590)
    assert two.claim(keyed(PEER, b"k")).record == FIRST
    sweep(two, 20)
    assert left(one, PEER) == []
    two.finish(two.begin(keyed(PEER, b"k", b"other")), OTHER)
    assert one.claim(keyed(PEER, b"k", b"other")).record == OTHER


def test_expired_keys_make_room(replicas):
    """Bounds count what is kept, and what goes is counted out (DESIGN §4)."""
    one = replicas(key_bounds=HOUR)
    for key in (b"a", b"b", b"c"):
        one.finish(one.begin(keyed(PEER, key)))
    with pytest.raises(WindowExceeded):
        one.claim(keyed(PEER, b"d"))
    sweep(one, 3700)
    for key in (b"a", b"b", b"d"):
        one.finish(one.begin(keyed(PEER, key)))
    kept = one.store.leases._one("SELECT sum(keys)::int8 FROM @.key_counts")
    size = one.store.leases._one("SELECT sum(bytes)::int8 FROM @.key_counts")
    assert kept == 3
    assert size == one.store.leases._one(
        "SELECT sum(length(key) + length(record))::int8 FROM @.calls"
    )


def test_a_sessions_keys_stay_as_long_as_it_does(replicas):
    """A client's keys have a retention, those of a named session none (DESIGN §5)."""
    one = replicas(key_bounds=HOUR)
    client, session = one.client(), one.authority.open_session("s").client_id
    for each in (client, session):
        one.finish(one.begin(keyed(each, b"k")))
    sweep(one, 3700)
    assert one.claim(keyed(session, b"k")).record == FIRST
    one.finish(one.begin(keyed(client, b"k")))
    one.store.leases.drop_client(client)
    assert left(one, client) == []


@pytest.mark.parametrize("policy", [None, IDEMPOTENT], ids=["plain", "idempotent"])
def test_a_dead_replicas_calls_in_a_namespace_are_ended_by_the_sweep(replicas, policy):
    """No lease ends them, so the sweep does: unknown, or new again (DESIGN §4)."""
    one, two = replicas(), replicas()
    policies = () if policy is None else (policy,)
    one.begin(keyed(PEER, b"k"), *policies)
    one.close()
    sweep(two, 100)
    decision = two.claim(keyed(PEER, b"k"), *policies)
    if policy is None:
        assert decision.record.outcome is Outcome.UNKNOWN
    else:
        assert decision.verdict is Verdict.NEW


def test_a_fingerprint_that_comes_at_the_end_is_kept(replicas):
    """A request stream is decided by identity, and verified from its end on (DESIGN §4)."""
    one, two = replicas(), replicas()
    client = one.client()
    for seq, late in ((1, b"all of it"), (2, None)):
        streamed = call(client, seq)
        streamed.fingerprint = None
        attempt = one.begin(streamed)
        streamed.fingerprint = late
        one.finish(attempt)
    with pytest.raises(PayloadMismatch):
        two.claim(call(client, 1, b"other"))
    known, unknown = two.claim(call(client, 1, b"all of it")), two.claim(call(client, 2, b"any"))
    assert (known.verified, unknown.verified) == (True, False)


def test_a_sealed_record_is_unreadable_in_the_database(replicas, database):
    """Handlers' transactions too; a lost key is a typed unknown (DESIGN §6)."""
    codec = RecordCodec(seal, unseal)
    one, two = replicas(codec=codec), replicas(codec=codec)
    client = one.client()
    one.finish(one.begin(call(client, 1)))
    attempt = one.begin(call(client, 2), ATOMIC)
    one.store.transactions.record(attempt, FIRST, database)
    database.commit()
    assert one.store.committed(attempt).wait() == FIRST
    for seq in (1, 2):
        assert two.claim(call(client, seq)).record == FIRST
    raw = one.store.leases._rows("SELECT record FROM @.calls")
    assert len(raw) == 2
    assert not any(b"first" in record for (record,) in raw)
    with pytest.raises(OutcomeUnknown):
        replicas().claim(call(client, 1))
