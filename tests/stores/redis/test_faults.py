"""A Redis that is weak, full, gone, behind, or empty (DESIGN §6)."""

from __future__ import annotations

import shutil

import pytest
import redis
import structlog

from _rifl_ground.refusals import Outcome
from lease_server import StorageUnavailable
from rifl._stores import StoreCorrupt, StoreNotDurable, StoreUnreachable, open_store
from rifl.core._serving.verdict import Verdict
from rifl.core._shared.errors import InProgress, RecordPending, StoreUnavailable
from tests.helpers.waiting import until
from tests.stores.redis.replica import ATOMIC, FIRST, IDEMPOTENT, Replica, call
from tests.stores.redis.servers import RedisServer

FAST = {"timeout_s": 0.4, "beat_s": 0.05, "dead_after_s": 30}


@pytest.mark.parametrize(
    ("name", "value"),
    [("appendonly", "no"), ("appendfsync", "everysec"), ("maxmemory-policy", "allkeys-lru")],
)
def test_weak_settings_are_refused_or_named(own_server, name, value):
    """A setting that may lose records is refused, or with ``warn`` said (DESIGN §6)."""
    with own_server.client() as client:
        client.config_set(name, value)
    with pytest.raises(StoreNotDurable, match=f"{name} is {value}"):
        open_store(own_server.url())
    with structlog.testing.capture_logs() as logs:
        store = open_store(own_server.url(durability="warn"))
    store.close()
    said = [entry for entry in logs if entry["event"] == "store_not_durable"]
    assert [entry["setting"].split()[0] for entry in said] == [name]
    assert "may run again" in said[0]["cost"]


def test_settings_that_are_not_told_count_as_weak(tmp_path):
    """A server without CONFIG is refused unless the operator vouches for it (DESIGN §6)."""
    server = RedisServer(tmp_path, **{"rename-command": "CONFIG HIDDEN"})
    try:
        with pytest.raises(StoreNotDurable, match="does not tell"):
            open_store(server.url())
        open_store(server.url(durability="warn")).close()
    finally:
        server.stop()


def test_no_server_and_no_secret_in_what_is_said(own_server):
    """An unreachable server, or a wrong password, is typed; no password is shown (DESIGN §9)."""
    for url in (
        "redis://user:hunter2@127.0.0.1:1/0",
        f"redis://user:hunter2@127.0.0.1:{own_server.port}/0",
    ):
        with structlog.testing.capture_logs() as logs, pytest.raises(StoreUnreachable) as caught:
            open_store(url)
        assert "hunter2" not in str(caught.value) + str(logs)


def test_a_full_redis_refuses_what_is_new_and_records_what_ran(own_server):
    """OOM: STORE_UNAVAILABLE for a new call; one that runs may still be recorded (DESIGN §3)."""
    one = Replica(own_server.url(**FAST))
    client = one.client()
    attempt = one.begin(call(client, 1))
    with own_server.client() as redis:
        redis.config_set("maxmemory", 1)
        with pytest.raises(StoreUnavailable) as refused:
            one.claim(call(client, 2))
        assert refused.value.outcome is Outcome.NOT_EXECUTED
        one.finish(attempt)
        redis.config_set("maxmemory", 0)
    _reached_again(one)
    assert one.claim(call(client, 1)).record == FIRST
    assert one.claim(call(client, 2)).verdict is Verdict.NEW
    one.close()


def test_a_read_only_redis_is_unavailable(own_server):
    """READONLY, as after a demotion: STORE_UNAVAILABLE before, RECORD_PENDING after (§3)."""
    one = Replica(own_server.url(**FAST))
    client = one.client()
    ran = one.begin(call(client, 9))
    with own_server.client() as redis:
        redis.replicaof("127.0.0.1", "1")
        with pytest.raises(StoreUnavailable):
            one.claim(call(client, 1))
        with pytest.raises(StorageUnavailable):
            one.client()
        with pytest.raises(RecordPending) as owed:
            one.finish(ran)
        assert owed.value.outcome is Outcome.UNKNOWN
        redis.replicaof("NO", "ONE")
    until(
        lambda: not one.store._attempts.unsettled(), "the record is retried, lost claims are let go"
    )
    assert one.claim(call(client, 9)).record == FIRST
    assert one.claim(call(client, 1)).verdict is Verdict.NEW
    one.close()


def test_what_runs_here_is_not_refused_as_not_executed(own_server):
    """A second arrival that cannot ask the store is not told that nothing ran (DESIGN §3)."""
    one = Replica(own_server.url(**FAST))
    client = one.client()
    running = one.begin(call(client, 1))
    own_server.suspend()
    with pytest.raises(InProgress) as told:
        one.claim(call(client, 1))
    assert told.value.outcome is Outcome.UNKNOWN
    with pytest.raises(StoreUnavailable):
        one.claim(call(client, 2))
    own_server.resume()
    until(lambda: one.store._attempts.unsettled() == 1, "lost claims are let go")
    one.finish(running)
    assert one.claim(call(client, 1)).record == FIRST
    one.close()


def test_a_claim_whose_reply_was_lost_is_taken_back(own_server):
    """A claim that timed out may stand; it is given up, and the retry runs (DESIGN §6)."""
    one, two = Replica(own_server.url(**FAST)), Replica(own_server.url(**FAST))
    client = one.client()
    own_server.suspend()
    with pytest.raises(StoreUnavailable):
        one.claim(call(client, 1))
    own_server.resume()
    until(lambda: not one.store._attempts.unsettled(), "the lost claim is taken back")
    assert two.claim(call(client, 1)).verdict is Verdict.NEW
    one.close()
    two.close()


def test_a_crash_of_redis_loses_nothing_acknowledged(own_server):
    """SIGKILL of a Redis with appendfsync always: records and acknowledgements stay (§6)."""
    one = Replica(own_server.url(**FAST))
    client = one.client()
    one.finish(one.begin(call(client, 1)))
    one.finish(one.begin(call(client, 3, first=2)))
    running = one.begin(call(client, 4, first=2))
    own_server.stop()
    with pytest.raises(RecordPending):
        one.finish(running)
    own_server.start()
    until(lambda: not one.store._attempts.unsettled(), "the record is retried")
    for seq in (3, 4):
        assert one.claim(call(client, seq, first=2)).record == FIRST
    assert one.claim(call(client, 1)).verdict is Verdict.STALE
    one.close()


def _reached_again(replica):
    """Wait until no heartbeat fails for want of a server: calls are refused at once till then."""
    until(lambda: not replica.store._refusing.absence, "the server is reached again")


def test_a_redis_that_restarted_empty_is_not_served_from(own_server):
    """An empty store is another store: old replicas stop, for good (DESIGN §6)."""
    one = Replica(own_server.url(**FAST))
    client = one.client()
    one.finish(one.begin(call(client, 1), IDEMPOTENT))
    own_server.stop()
    (own_server.directory / "appendonly.aof").unlink(missing_ok=True)
    shutil.rmtree(own_server.directory / "appendonlydir", ignore_errors=True)
    own_server.start()
    _reached_again(one)
    with pytest.raises(StoreUnavailable, match="lost what it acknowledged"):
        one.claim(call(client, 1), IDEMPOTENT)
    anew = Replica(own_server.url(**FAST))
    anew.client()
    with pytest.raises(StoreUnavailable, match="lost what it acknowledged"):
        one.claim(call(client, 1), IDEMPOTENT)
    one.close()
    anew.close()


def _copy(own_server):
    """Keep what the server has written so far; the returned call puts it back."""
    before = own_server.directory / "before"
    for path in own_server.directory.glob("appendonly*"):
        copy = shutil.copytree if path.is_dir() else shutil.copy
        before.mkdir(exist_ok=True)
        copy(path, before / path.name)

    def put_back():
        own_server.stop()
        for path in before.iterdir():
            target = own_server.directory / path.name
            shutil.rmtree(target) if target.is_dir() else target.unlink()
            path.rename(target)
        own_server.start()

    return put_back


def test_a_record_in_the_users_transaction_is_missed_too(own_server):
    """A store that lost nothing but an EXEC is behind what was seen all the same (DESIGN §6)."""
    one = Replica(own_server.url(**FAST))
    client = one.client()
    attempt = one.begin(call(client, 1), ATOMIC)
    one.fall_silent()
    put_back = _copy(own_server)
    with own_server.client() as users, users.pipeline() as transaction:
        one.store.transactions.record(attempt, FIRST, transaction)
        transaction.execute()
    assert one.store.committed(attempt).wait() == FIRST
    one.store.adopt(attempt, FIRST)
    put_back()
    with pytest.raises(StoreUnavailable, match="lost what it acknowledged"):
        one.claim(call(client, 1), ATOMIC)
    one.close()


def test_a_stale_redis_stops_every_replica(own_server):
    """One replica that saw more than the store now holds stops all of them (DESIGN §6)."""
    one, two = Replica(own_server.url(**FAST)), Replica(own_server.url(**FAST))
    client = one.client()
    two.store._heartbeat.stop()
    put_back = _copy(own_server)
    one.finish(one.begin(call(client, 1), IDEMPOTENT))
    put_back()
    _reached_again(one)
    with pytest.raises(StoreUnavailable, match="lost what it acknowledged"):
        one.claim(call(client, 1), IDEMPOTENT)
    with pytest.raises(StoreUnavailable, match="lost what it acknowledged"):
        two.claim(call(client, 1), IDEMPOTENT)
    with pytest.raises(StoreCorrupt, match="had acknowledged"):
        open_store(own_server.url())
    one.close()
    two.close()


def test_a_redis_that_is_silent_is_waited_for_once(own_server):
    """A call is refused after ``timeout_s``, not after that of each retry (DESIGN §6)."""
    sent = 0

    class Counted(redis.Connection):
        def send_packed_command(self, *arguments, **keywords):
            nonlocal sent
            sent += 1
            return super().send_packed_command(*arguments, **keywords)

    # No beat comes in between.
    one = Replica(own_server.url(timeout_s=0.4, beat_s=60, dead_after_s=600))
    client = one.client()
    one.begin(call(client, 1))
    line = one.store._backend._line._made()
    line.__class__ = Counted
    own_server.suspend()
    with pytest.raises(StoreUnavailable):
        one.claim(call(client, 2))
    assert sent == 1
    own_server.resume()
    one.close()
