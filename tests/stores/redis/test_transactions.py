"""``rifl.record`` into redis-py pipelines (DESIGN §6)."""

from __future__ import annotations

import asyncio

import pytest
import redis
import redis.asyncio
import redis.asyncio.retry
import redis.backoff
import redis.retry

from rifl._stores import WrongDatabase
from rifl.core._serving.verdict import Verdict
from rifl.core._shared.errors import StaleRpc
from tests.stores.redis.replica import ATOMIC, FIRST, IDEMPOTENT, OTHER, call


@pytest.fixture
def client(shared_server):
    """The handler's own client, of the same Redis."""
    with shared_server.client() as client:
        client.delete("balance")
        yield client


def test_record_and_effect_commit_together(replicas, client):
    """One EXEC commits both, and the record is what stands (DESIGN §1, §6)."""
    one, two = replicas(), replicas()
    attempt = one.begin(call(one.client(), 1), ATOMIC)
    with client.pipeline() as pipe:
        one.store.transactions.record(attempt, FIRST, pipe)
        pipe.incr("balance")
        assert pipe.execute()[1] == 1
    assert one.store.committed(attempt).wait() == FIRST
    one.store.adopt(attempt, FIRST)
    assert two.claim(attempt.call, ATOMIC).record == FIRST


def test_what_was_not_executed_left_nothing(replicas, client):
    """A pipeline that is given up records nothing; the call is new again (DESIGN §4)."""
    one = replicas()
    attempt = one.begin(call(one.client(), 1), ATOMIC)
    with client.pipeline() as pipe:
        one.store.transactions.record(attempt, FIRST, pipe)
        pipe.incr("balance")
    assert one.store.committed(attempt).wait() is None
    one.store.abandon(attempt).wait()
    assert client.get("balance") is None
    assert one.claim(attempt.call, ATOMIC).verdict is Verdict.NEW


@pytest.mark.parametrize("meanwhile", ["taken over", "acknowledged", "expired"])
def test_exec_does_nothing_once_the_attempt_is_over(replicas, client, meanwhile):
    """Whatever ends the attempt between record and EXEC undoes the EXEC (DESIGN §6)."""
    one, two = replicas(), replicas()
    attempt = one.begin(call(one.client(), 1), ATOMIC)
    with client.pipeline() as pipe:
        one.store.transactions.record(attempt, FIRST, pipe)
        pipe.incr("balance")
        if meanwhile == "taken over":
            woken = two.woken(two.claim(attempt.call, ATOMIC).attempt)
            one.fall_silent()
            assert woken.wait(60)
            taken = two.begin(attempt.call, ATOMIC)
        elif meanwhile == "acknowledged":
            two.finish(two.begin(call(attempt.call.client_id, 2, first=2)))
        else:
            two.store.leases.drop_client(attempt.call.client_id)
        with pytest.raises(redis.WatchError):
            pipe.execute()
    assert client.get("balance") is None
    if meanwhile == "taken over":
        with client.pipeline() as pipe:
            two.store.transactions.record(taken, OTHER, pipe)
            pipe.incr("balance")
            pipe.execute()
        assert client.get("balance") == b"1"
        assert one.store.committed(attempt).wait() == OTHER, "both answer with what stands"


def test_a_session_that_is_lost_undoes_the_exec_though_the_client_looks_first(
    replicas, client, shared_server
):
    """A health check would go on with a new session, which WATCHes nothing (DESIGN §6)."""
    one = replicas()
    retry = redis.retry.Retry(redis.backoff.NoBackoff(), 3)
    options = {"port": shared_server.port, "health_check_interval": 1e-6, "retry": retry}
    with redis.Redis(**options) as checked, checked.pipeline() as pipe:
        attempt = one.begin(call(one.client(), 1), ATOMIC)
        one.store.transactions.record(attempt, FIRST, pipe)
        pipe.incr("balance")
        one.store.leases.drop_client(attempt.call.client_id)
        kill(client, pipe.connection)
        with pytest.raises((redis.WatchError, redis.ConnectionError)):
            pipe.execute()
        assert client.get("balance") is None
        # What the handler has read before is as it was, too.
        attempt = one.begin(call(one.client(), 1), ATOMIC)
        pipe.watch("balance")
        kill(client, pipe.connection)
        with pytest.raises((redis.WatchError, redis.ConnectionError)):
            one.store.transactions.record(attempt, FIRST, pipe)
    assert one.store.committed(attempt).wait() is None


async def test_asyncio_sessions_that_are_lost_undo_the_exec(replicas, client, shared_server):
    """The same for redis.asyncio."""
    one = replicas()
    retry = redis.asyncio.retry.Retry(redis.backoff.NoBackoff(), 3)
    attempt = one.begin(call(one.client(), 1), ATOMIC)
    async with (
        redis.asyncio.Redis(port=shared_server.port, retry=retry) as checked,
        checked.pipeline() as pipe,
    ):
        await pipe.watch("balance")
        pipe.connection.health_check_interval = 1e-6
        await one.store.transactions.record_async(attempt, FIRST, pipe)
        pipe.incr("balance")
        one.store.leases.drop_client(attempt.call.client_id)
        kill(client, pipe.connection)
        with pytest.raises((redis.WatchError, redis.ConnectionError)):
            await pipe.execute()
    assert client.get("balance") is None


def kill(client, connection):
    """Have the server end a session."""
    socket = getattr(connection, "_sock", None) or connection._writer.get_extra_info("socket")
    host, port = socket.getsockname()[:2]
    assert client.client_kill(f"{host}:{port}")


def test_a_late_handler_is_refused_before_it_queues_anything(replicas, client):
    """An attempt that was taken over cannot even record (DESIGN §6)."""
    one, two = replicas(), replicas()
    attempt = one.begin(call(one.client(), 1), ATOMIC)
    woken = two.woken(two.claim(attempt.call, ATOMIC).attempt)
    one.fall_silent()
    assert woken.wait(60)
    two.begin(attempt.call, ATOMIC)
    with client.pipeline() as pipe, pytest.raises(StaleRpc):
        one.store.transactions.record(attempt, FIRST, pipe)


def test_reads_before_the_record_are_part_of_the_transaction(replicas, client):
    """WATCH and read first, then record, then queue: a changed read undoes all (DESIGN §6)."""
    one = replicas()
    attempt = one.begin(call(one.client(), 1), ATOMIC)
    with client.pipeline() as pipe:
        pipe.watch("balance")
        assert pipe.get("balance") is None
        one.store.transactions.record(attempt, FIRST, pipe)
        pipe.incr("balance")
        client.set("balance", 7)
        with pytest.raises(redis.WatchError):
            pipe.execute()
    assert one.store.committed(attempt).wait() is None
    one.store.abandon(attempt).wait()
    assert client.get("balance") == b"7"


def test_a_pipeline_that_cannot_hold_the_record_is_refused(replicas, client, shared_server):
    """Not empty, in MULTI, no transaction, asyncio, or of another database (DESIGN §6)."""
    one = replicas()
    attempt = one.begin(call(one.client(), 1), ATOMIC)
    queued = client.pipeline()
    queued.incr("balance")
    multi = client.pipeline()
    multi.multi()
    elsewhere = redis.Redis(port=shared_server.port, db=1).pipeline()
    wrong = [queued, multi, client.pipeline(transaction=False), client, redis.asyncio.Redis()]
    wrong.append(redis.asyncio.Redis().pipeline())
    for pipeline in wrong:
        with pytest.raises(WrongDatabase):
            one.store.transactions.record(attempt, FIRST, pipeline)
    with pytest.raises(StaleRpc, match="another Redis"):
        one.store.transactions.record(attempt, FIRST, elsewhere)
    plain = one.begin(call(one.client(), 1), IDEMPOTENT)
    with pytest.raises(WrongDatabase, match="not declared atomic"):
        one.store.transactions.record(plain, FIRST, client.pipeline())


def test_asyncio_pipelines_record_too(replicas, shared_server):
    """The same for redis.asyncio, with ``await`` (DESIGN §6)."""
    one = replicas()
    attempt = one.begin(call(one.client(), 1), ATOMIC)

    async def handler():
        async with redis.asyncio.Redis(port=shared_server.port) as client:
            async with client.pipeline() as pipe:
                await one.store.transactions.record_async(attempt, FIRST, pipe)
                pipe.set("balance", 5)
                await pipe.execute()
            return await client.get("balance"), await one.store.committed(attempt)

    assert asyncio.run(handler()) == (b"5", FIRST)
