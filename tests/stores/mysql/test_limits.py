"""Connections, keys and closing of the MariaDB store (DESIGN §3 to §6, §9)."""

from __future__ import annotations

from contextlib import AsyncExitStack, ExitStack

import pytest

from _rifl_ground.refusals import Outcome
from rifl._stores import RecordCodec
from rifl.core._serving.bounds import KeyBounds
from rifl.core._serving.namespace import namespace_id
from rifl.core._serving.verdict import Verdict
from rifl.core._shared.errors import WindowExceeded
from rifl.core._shared.record import CompletionRecord
from tests.helpers.sealing import seal, unseal
from tests.stores.hostile import Hostile
from tests.stores.limits import Limits
from tests.stores.redis.replica import ATOMIC, FIRST, IDEMPOTENT, OTHER, call, keyed
from tests.stores.stopping import KeptUntilTheLastHandler

PEER = namespace_id(b"alice")
HOUR = KeyBounds(retention_s=3600.0, max_keys=3)


class TestMariaDb(Limits):
    """``mysql://``: our own pool waits, of threads and of event loops alike."""

    @pytest.fixture
    def url(self, shared_mariadb, prefix):
        """Return the URL of a store of its own."""
        return shared_mariadb.url(prefix=prefix, beat_s=0.1)

    def taken(self, store):
        """All there are."""
        stack = ExitStack()
        for _ in range(3):
            # A beat may have it for a moment.
            assert store._sql.pool._room.acquire(timeout=20)
            stack.callback(store._sql.pool._room.release)
        return stack

    async def taken_awaiting(self, store):
        """The same: a loop's requests run in threads."""
        stack = AsyncExitStack()
        stack.enter_context(self.taken(store))
        return stack


class TestHostile(Hostile):
    """``mysql://``: callers at their worst."""


class TestStopping(KeptUntilTheLastHandler):
    """See there."""


def sweep(replica, passed_s):
    """Let time pass in the store, then sweep."""

    def passing(sql):
        sql.run("UPDATE @.age SET lived = lived + %s", float(passed_s))
        sql.run("UPDATE @.calls SET claimed_at = claimed_at - %s", float(passed_s))

    replica.store.leases._transact(passing)
    replica.store.expire_keys()


def left(replica, client_id):
    """What the tables hold of a client."""
    return [
        table
        for table in ("clients", "calls", "key_changes")
        if replica.store.leases._rows(
            f"SELECT client_id FROM @.{table} WHERE client_id = %s", client_id
        )
    ]


def test_a_key_is_new_after_its_retention_and_nothing_is_left_of_it(replicas, database):
    """Retention counts from completion, also of a handler's own transaction (DESIGN §3, §4)."""
    one, two = replicas(key_bounds=HOUR), replicas(key_bounds=HOUR)
    attempt = one.begin(keyed(PEER, b"k"))
    own = one.begin(keyed(PEER, b"own"), ATOMIC)
    # REPEATABLE READ: by what it sees, the time that was lived through is too short by all this.
    with database.cursor() as cursor:
        cursor.execute("SELECT COUNT(*) FROM effects")
    sweep(two, 5000)
    one.finish(attempt)
    one.store.transactions.record(own, FIRST, database)
    database.commit()
    two.store.expire_keys()
    sweep(two, 3590)
    assert two.claim(keyed(PEER, b"k")).record == FIRST
    assert two.claim(keyed(PEER, b"own"), ATOMIC).record == FIRST
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
    counted = one.store.leases._rows(
        "SELECT n_keys, key_bytes FROM @.clients UNION ALL "
        "SELECT n_keys, n_bytes FROM @.key_changes"
    )
    size = one.store.leases._rows("SELECT LENGTH(call_key) + LENGTH(record) FROM @.calls")
    assert tuple(map(sum, zip(*counted, strict=True))) == (3, sum(row[0] for row in size))


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


def test_an_answer_that_the_server_would_not_take_is_unknown(replicas, url):
    """It is more than a packet holds: something is kept, and its caller is told so (§6)."""
    one = replicas()
    most = one.store._sql.dialect.max_record_bytes
    assert most > 4 << 20
    kept = one.begin(call(one.client(), 1))
    fits = CompletionRecord(response=bytes(most - 1000))
    assert one.finish(kept, fits) is None
    assert one.claim(kept.call).record == fits
    lost = one.begin(call(one.client(), 1))
    told = one.finish(lost, CompletionRecord(response=bytes(most)))
    assert (told.outcome, told.reason) == (Outcome.UNKNOWN, "OUTCOME_UNKNOWN")
    assert one.claim(lost.call).record == told


def test_a_sealed_record_is_unreadable_in_the_database(replicas, database):
    """Handlers' transactions too (DESIGN §6)."""
    codec = RecordCodec(seal, unseal)
    one, two = replicas(codec=codec), replicas(codec=codec)
    client = one.client()
    one.finish(one.begin(call(client, 1)))
    attempt = one.begin(call(client, 2), ATOMIC)
    one.store.transactions.record(attempt, FIRST, database)
    database.commit()
    for seq in (1, 2):
        assert two.claim(call(client, seq), ATOMIC).record == FIRST
    stored = one.store.leases._rows("SELECT record FROM @.calls")
    assert len(stored) == 2
    assert not any(FIRST.response in bytes(record) for (record,) in stored)
