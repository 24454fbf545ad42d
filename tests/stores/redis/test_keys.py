"""Keys, their retention and sealed records over one Redis, at the ``Store`` interface."""

from __future__ import annotations

import pytest

from _rifl_ground.refusals import Outcome
from rifl._stores import RecordCodec
from rifl._stores.redis.backend import sweep_keys
from rifl._stores.redis.script_calls import steps_of
from rifl._stores.redis.scripts import CLAIM
from rifl._stores.shared.requests import Claim, Claimed, Found
from rifl.core._serving.bounds import KeyBounds
from rifl.core._serving.namespace import namespace_id
from rifl.core._serving.policy import MethodPolicy
from rifl.core._serving.verdict import Verdict
from rifl.core._shared.errors import OutcomeUnknown, PayloadMismatch, WindowExceeded
from tests.helpers.sealing import seal, unseal
from tests.helpers.waiting import DEADLINE_S, until
from tests.stores.redis.passing import left_of, let_pass, sweep
from tests.stores.redis.replica import (
    ATOMIC,
    FIRST,
    IDEMPOTENT,
    OTHER,
    PLAIN,
    Replica,
    call,
    keyed,
)
from tests.stores.redis.servers import RedisServer

PEER = namespace_id(b"alice")
HOUR = KeyBounds(retention_s=3600.0)


def test_a_namespace_needs_no_lease_and_is_shared(replicas):
    """A peer's keys are known on every replica, and no sweep of leases ends them (§3)."""
    one, two = replicas(), replicas()
    attempt = one.begin(keyed(PEER, b"k"))
    woken = two.woken(two.claim(attempt.call).attempt)
    one.finish(attempt)
    assert woken.wait(DEADLINE_S)
    two.authority.expire()
    assert two.claim(keyed(PEER, b"k")).record == FIRST
    with pytest.raises(PayloadMismatch):
        two.claim(keyed(PEER, b"k", b"q"))
    assert two.claim(keyed(namespace_id(b"bob"), b"k")).verdict is Verdict.NEW
    assert one.store.leases.known_clients() == []


def test_a_key_is_new_after_its_retention_and_nothing_is_left_of_it(replicas):
    """Retention counts from completion; all of a key goes in one step (DESIGN §3, §4)."""
    one, two = replicas(key_bounds=HOUR), replicas(key_bounds=HOUR)
    attempt = one.begin(keyed(PEER, b"k"))
    let_pass(one.store, 5000)
    one.finish(attempt)
    sweep(two.store, 3590)
    assert two.claim(keyed(PEER, b"k")).record == FIRST
    let_pass(two.store, 13)
    assert two.claim(keyed(PEER, b"k")).record == FIRST, "until the sweep it is known"
    two.store.expire_keys()
    assert left_of(one.store, PEER) == []
    assert one.store._redis.clients.blocking.zcard(one.store._redis.key("ends")) == 0
    one.finish(one.begin(keyed(PEER, b"k", b"q")), OTHER)
    assert two.claim(keyed(PEER, b"k", b"q")).record == OTHER


def test_each_key_has_its_methods_retention(replicas):
    """A shorter one that comes later is looked at in time, and none outlasts all (§4)."""
    one = replicas(key_bounds=KeyBounds(retention_s=None))
    for key, retention_s in ((b"long", 3600.0), (b"short", 60.0), (b"ever", None)):
        one.finish(one.begin(keyed(PEER, key), policy := MethodPolicy(retention_s=retention_s)))
    sweep(one.store, 130)
    assert one.claim(keyed(PEER, b"short"), policy).verdict is Verdict.NEW
    assert one.claim(keyed(PEER, b"long")).record == FIRST
    sweep(one.store, 3700)
    assert one.claim(keyed(PEER, b"long")).verdict is Verdict.NEW
    assert one.claim(keyed(PEER, b"ever")).record == FIRST


def test_a_clients_keys_have_a_retention_and_a_sessions_have_none(replicas):
    """Those of a named session stay as long as it does (MethodPolicy.retention_s)."""
    one = replicas(key_bounds=HOUR)
    client, session = one.client(), one.authority.open_session("s").client_id
    for each in (client, session):
        one.finish(one.begin(keyed(each, b"k")))
    sweep(one.store, 3700)
    assert one.claim(keyed(session, b"k")).record == FIRST
    one.finish(one.begin(keyed(client, b"k")))
    one.store.leases.drop_client(client)
    assert left_of(one.store, client) == []


def test_a_sweep_does_a_bounded_amount_of_work(replicas):
    """What is over its bound goes with the next sweep; the counts follow (DESIGN §9)."""
    one = replicas(key_bounds=KeyBounds(max_keys=7, retention_s=60.0))
    peers = [namespace_id(b"%d" % number) for number in range(3)]
    for peer in peers:
        for number in range(7):
            one.finish(one.begin(keyed(peer, b"%d" % number)))
        with pytest.raises(WindowExceeded):
            one.claim(keyed(peer, b"more"))
    let_pass(one.store, 130)
    backend = one.store._redis
    assert [sweep_keys(backend, b"", 10) for _ in range(4)] == [10, 10, 1, 0]
    assert [left_of(one.store, peer) for peer in peers] == [[], [], []]
    one.finish(one.begin(keyed(peers[0], b"more")))


def test_what_is_counted_of_a_namespace_is_what_is_kept(replicas):
    """Bytes and keys come back exactly, whatever became of the calls (DESIGN §4)."""
    one = replicas(key_bounds=HOUR)
    kept = one.begin(keyed(PEER, b"kept"))
    one.finish(one.begin(keyed(PEER, b"done")))
    one.store.abandon(one.begin(keyed(PEER, b"given up"))).wait()
    sweep(one.store, 3700)
    redis, row = one.store._redis.clients.blocking, one.store._redis.base(PEER) + "client"
    assert redis.hmget(row, "keys", "bytes") == [b"1", b"4"]
    one.finish(kept)
    sweep(one.store, 3700)
    assert left_of(one.store, PEER) == []


def test_a_dead_replicas_calls_in_a_namespace_are_ended_by_the_sweep(replicas):
    """No lease ends them: plain ones are unknown, others new again (DESIGN §4, §6)."""
    one, two = replicas(key_bounds=HOUR), replicas(key_bounds=HOUR)
    lost = one.begin(keyed(PEER, b"plain"))
    one.begin(keyed(PEER, b"idempotent"), IDEMPOTENT)
    alive = two.begin(keyed(PEER, b"alive"))
    one.fall_silent()
    redis, key = two.store._redis.clients.blocking, two.store._redis.key("replicas")
    until(lambda: not redis.hexists(key, one.store.owner), "one is taken for dead")
    two.store.expire_keys()
    base = two.store._redis.base(PEER)
    assert redis.hlen(base + "run") == 3, "a call as young as this may be a newcomer's"
    sweep(two.store, 3700)
    assert redis.hkeys(base + "run") == [b"kalive"]
    assert two.claim(keyed(PEER, b"plain")).record.reason == "OUTCOME_UNKNOWN"
    assert one.finish(lost).reason == "OUTCOME_UNKNOWN", "the late finisher gets what stands"
    two.begin(keyed(PEER, b"idempotent"), IDEMPOTENT)
    two.finish(alive)
    sweep(two.store, 3700)
    assert two.claim(keyed(PEER, b"plain")).verdict is Verdict.NEW


def test_keys_filed_by_a_slow_claim_are_never_overlooked(replicas):
    """A claim that stalls between index and row is made to file again (DESIGN §4)."""
    one = replicas()
    backend = one.store._redis
    request = Claim(
        keyed(PEER, b"k"),
        PLAIN.kind,
        b"token",
        one.store.owner,
        False,
        8,
        10,
        1000,
        retention_s=3600.0,
    )
    steps = steps_of(request)
    filing = steps.send(backend.run(*next(steps)))
    claiming = steps.send(backend.run(*filing))
    assert claiming[0] is CLAIM
    # Meanwhile the time comes, somebody looks, and finds nothing.
    sweep(one.store, 3700)
    assert backend.clients.blocking.zcard(backend.key("ends")) == 0
    late = [*claiming[2][:-1], int(claiming[2][-1]) - 3_700_000]
    refiling = steps.send(backend.run(claiming[0], claiming[1], late))
    claiming = steps.send(backend.run(*refiling))
    with pytest.raises(StopIteration) as ended:
        steps.send(backend.run(*claiming))
    assert ended.value.value == Claimed(Found.NEW)
    assert backend.clients.blocking.zcard(backend.key("ends")) == 1


def test_an_index_that_lost_its_entry_is_mended_by_the_next_claim(replicas):
    """A look that is long over is taken for one nobody will make: late, not never (§4)."""
    one = replicas(key_bounds=HOUR)
    backend = one.store._redis
    one.finish(one.begin(keyed(PEER, b"k")))
    let_pass(one.store, 3700)
    backend.clients.blocking.delete(backend.key("ends"))
    one.finish(one.begin(keyed(PEER, b"other")))
    sweep(one.store, 3700)
    assert one.claim(keyed(PEER, b"k")).verdict is Verdict.NEW


def test_a_fingerprint_that_comes_at_the_end_is_kept(replicas):
    """A request stream is decided by identity, and verified from its end on (DESIGN §4)."""
    one, two = replicas(), replicas()
    client = one.client()
    for seq, late in ((1, b"all of it"), (2, None)):
        streamed = call(client, seq)
        streamed.fingerprint = None
        attempt = one.begin(streamed)
        assert two.claim(call(client, seq, b"any")).verdict is Verdict.IN_PROGRESS
        streamed.fingerprint = late
        one.finish(attempt)
    with pytest.raises(PayloadMismatch):
        two.claim(call(client, 1, b"other"))
    known, unknown = two.claim(call(client, 1, b"all of it")), two.claim(call(client, 2, b"any"))
    assert (known.verified, unknown.verified) == (True, False)
    assert known.record == unknown.record == FIRST


def test_a_sealed_record_is_unreadable_in_redis_and_read_by_other_replicas(replicas):
    """Handlers' transactions too; a lost key is a typed unknown (DESIGN §6)."""
    codec = RecordCodec(seal, unseal)
    one, two = replicas(codec=codec), replicas(codec=codec)
    client = one.client()
    one.finish(one.begin(call(client, 1)))
    attempt = one.begin(call(client, 2), ATOMIC)
    backend = one.store._redis
    with backend.clients.blocking.pipeline() as pipe:
        one.store.transactions.record(attempt, FIRST, pipe)
        pipe.execute()
    assert one.store.committed(attempt).wait() == FIRST
    one.store.adopt(attempt, FIRST)
    for seq in (1, 2):
        assert two.claim(call(client, seq)).record == FIRST
    raw = b"".join(backend.clients.blocking.hgetall(backend.base(client) + "done").values())
    assert b"first" not in raw
    keyless = replicas()
    with pytest.raises(OutcomeUnknown):
        keyless.claim(call(client, 1))
    assert keyless.store.running() == 0


def test_an_answer_that_cannot_be_sealed_is_unknown_to_all(replicas):
    """The first caller is told what is kept (DESIGN §4, step 7)."""

    def broken(data, associated):
        raise ValueError("no key")

    one = replicas(codec=RecordCodec(broken, unseal))
    attempt = one.begin(keyed(PEER, b"k"))
    told = one.finish(attempt)
    assert (told.reason, told.outcome) == ("OUTCOME_UNKNOWN", Outcome.UNKNOWN)
    assert one.claim(attempt.call).record == told


def test_a_store_that_does_not_answer_leaves_keys_for_later(replicas, own_server):
    """A sweep that fails is nothing but late (DESIGN §4)."""
    one = replicas(own_server.url(beat_s=0.1, timeout_s=1), key_bounds=HOUR)
    one.finish(one.begin(keyed(PEER, b"k")))
    let_pass(one.store, 3700)
    own_server.stop()
    one.store.expire_keys()
    own_server.start()
    until(lambda: one.store.expire_keys() or not left_of(one.store, PEER), "the key goes")


def test_keys_on_a_cluster(tmp_path):
    """Index and namespace are in different slots: retention works all the same (DESIGN §6)."""
    server = RedisServer(tmp_path, **{"cluster-enabled": "yes"})
    one = None
    try:
        with server.client() as client:
            client.execute_command("CLUSTER", "ADDSLOTS", *range(16384))
            until(lambda: "state:ok" in _info(client), "the cluster is up")
        url = f"redis+cluster://127.0.0.1:{server.port}?beat_s=0.1&dead_after_s=0.6"
        one = Replica(url, key_bounds=HOUR)
        one.finish(one.begin(keyed(PEER, b"k")))
        assert one.claim(keyed(PEER, b"k")).record == FIRST
        # Who completes a call cannot see the counter, so the first look begins to count.
        sweep(one.store, 3700)
        assert one.claim(keyed(PEER, b"k")).record == FIRST
        sweep(one.store, 3700)
        assert one.claim(keyed(PEER, b"k")).verdict is Verdict.NEW
    finally:
        if one is not None:
            one.close()
        server.stop()


def _info(client):
    return str(client.execute_command("CLUSTER", "INFO")).replace("'cluster_state': '", "state:")
