"""A foreign session that holds a client's row: that client's trouble alone (DESIGN §6)."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from _rifl_ground.refusals import Outcome
from rifl._stores.shared.stalls import Stalls
from rifl.core._serving.verdict import Verdict
from rifl.core._shared.errors import StoreUnavailable
from rifl.testing import FakeClock
from tests.helpers.waiting import until
from tests.stores.redis.replica import FIRST, IDEMPOTENT, Replica, call, keyed

_QUICK = {"beat_s": 0.1, "dead_after_s": 30, "max_connections": 3, "timeout_s": 2}


@pytest.mark.parametrize("shell", ["sync", "aio"])
def test_one_locked_row_holds_up_one_client(shared_server, schema, shell):
    """Its calls are refused, not executed and to be repeated; others' go on meanwhile (§6)."""
    one = Replica(shared_server.url(schema=schema, **_QUICK), window=128)
    stalled, other = one.client(), one.client()
    ended = threading.Event()
    refused = []

    def insist(seq):
        while True:
            try:
                return attempt(seq)
            except StoreUnavailable as error:
                refused.append(error)
            # As a client's retry backs off.
            if ended.wait(0.05):
                return None

    def attempt(seq):
        claim = one.store.claim(call(stalled, seq), IDEMPOTENT)
        if shell == "sync":
            return claim.wait()

        async def arrive():
            return await claim

        return loops[threading.get_ident()].run(arrive())

    loops = {}

    def own_loop():
        loops[threading.get_ident()] = asyncio.Runner()

    with (
        shared_server.connect() as foreign,
        ThreadPoolExecutor(24, initializer=own_loop if shell == "aio" else None) as pool,
    ):
        lock = f"SELECT FROM {schema}.clients WHERE client_id = %s FOR UPDATE"
        try:
            foreign.execute(lock, (stalled,))
            waiting = [pool.submit(insist, seq) for seq in range(1, 25)]
            for seq in range(1, 21):
                # Without a free connection for as long as timeout_s, this would be refused.
                one.finish(one.begin(call(other, seq, first=seq), IDEMPOTENT))
            until(lambda: len(refused) > 24, "they are told, and told again")
            assert not any(future.done() for future in waiting)
            foreign.rollback()
            verdicts = [future.result(30).verdict for future in waiting]
        finally:
            ended.set()
            foreign.rollback()
    assert verdicts == [Verdict.NEW] * 24
    assert all("holds a lock" in str(error) for error in refused)
    assert {error.outcome for error in refused} == {Outcome.NOT_EXECUTED}
    for runner in loops.values():
        runner.close()
    one.close()


def test_a_key_of_a_locked_session_is_refused_soon(shared_server, schema):
    """The same for keyed calls, which ask for the row in another place (DESIGN §6)."""
    one = Replica(shared_server.url(schema=schema, **_QUICK))
    session = one.authority.open_session("s").client_id
    with shared_server.connect() as foreign:
        foreign.execute(f"SELECT FROM {schema}.clients FOR UPDATE")
        with pytest.raises(StoreUnavailable, match="holds a lock"):
            one.claim(keyed(session, b"k"), IDEMPOTENT)

    def claimed():
        with contextlib.suppress(StoreUnavailable):
            return one.begin(keyed(session, b"l"), IDEMPOTENT)

    one.finish(until(claimed, "the session goes on"))
    assert one.claim(keyed(session, b"l"), IDEMPOTENT).record == FIRST
    one.close()


def test_one_at_a_time_tries_a_stalled_client():
    """Each that tries takes a connection for as long as it waits (DESIGN §6)."""
    clock = FakeClock()
    stalls = Stalls(clock)
    assert not stalls
    assert stalls.may_try(1)
    stalls.stalled(1)
    assert stalls
    assert not stalls.may_try(1)
    assert stalls.may_try(2)
    clock.advance(0.6)
    assert stalls.may_try(1)
    assert not stalls.may_try(1)
    stalls.moved(1)
    assert stalls.may_try(1)
    assert not stalls
