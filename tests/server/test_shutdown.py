"""Stopping: running calls are recorded, new ones refused, on both kinds of server (DESIGN §3)."""

from __future__ import annotations

import threading

import grpc
import pytest

import rifl
from tests.helpers.raw import RawClient, read
from tests.helpers.waiting import DEADLINE_S, until
from tests.server.test_duplicates import _HOLD, _QUICK, Held

_DRAINING = ("UNAVAILABLE", "DRAINING", "not-executed")


@pytest.fixture
def held(tmp_path):
    """Makes servers over one file, and stops them."""
    made = []

    def make(kind, **options):
        made.append(Held(kind, f"sqlite:///{tmp_path}/s.db", **options))
        return made[-1]

    yield make
    for server in made:
        server.close()


@pytest.mark.parametrize("kind", ["sync", "aio"])
def test_a_draining_server_answers_what_it_knows(held, kind):
    """After ``drain`` new calls are DRAINING, old ones replayed, running ones recorded (§3)."""
    server = held(kind)
    with server.client() as client:
        assert client.call(_QUICK, b"old", 1).ok
        running = client.future(_HOLD, b"x", 2)
        assert server.entered[b"x"].wait(DEADLINE_S)
        server.dedup.drain()
        assert client.call(_QUICK, b"new", 3).refusal == _DRAINING
        assert client.call(_QUICK, b"old", 1, attempt=2).outcome == "replayed"
        assert client.resolve(4).refusal == _DRAINING
        server.released[b"x"].set()
        assert read(running).response == b"1:x"
        again = client.call(_HOLD, b"x", 2, attempt=2)
        assert (again.response, again.outcome) == (b"1:x", "replayed")
    assert server.runs[b"new"] == 0


@pytest.mark.parametrize("kind", ["sync", "aio"])
def test_a_stopped_server_has_recorded_what_ran(held, kind):
    """``stop(grace)`` then ``close``: what ran is answered by the next incarnation (§3)."""
    server = held(kind)
    with server.client() as client:
        running = client.future(_HOLD, b"x", 1)
        assert server.entered[b"x"].wait(DEADLINE_S)
        stopping = threading.Thread(target=server.served.stop, args=(DEADLINE_S,))
        stopping.start()
        server.released[b"x"].set()
        assert read(running).response == b"1:x"
        stopping.join(DEADLINE_S)
        assert not stopping.is_alive()
        identity = client.client_id, client.token
    server.close()
    after = held(kind)
    with RawClient(after.served.address, grant=False) as client:
        client.client_id, client.token = identity
        again = client.call(_HOLD, b"x", 1, attempt=2)
        assert (again.response, again.outcome) == (b"1:x", "replayed")


@pytest.mark.parametrize("kind", ["sync", "aio"])
def test_closing_waits_for_handlers_whose_callers_are_gone(held, kind):
    """``close`` (``aclose`` on a loop) waits for handlers the server has given up (§4.6)."""
    server = held(kind)
    with server.client() as client:
        running = client.future(_HOLD, b"x", 1)
        assert server.entered[b"x"].wait(DEADLINE_S)
        server.served.stop(None)
        assert read(running).code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
        if kind == "aio":
            closing = threading.Thread(target=server.served.loop.run, args=(server.dedup.aclose(),))
        else:
            closing = threading.Thread(target=server.dedup.close)
        closing.start()
        until(lambda: server.dedup._store._table.refusing is not None, "it drains")
        assert closing.is_alive()
        assert server.running == 1
        server.released[b"x"].set()
        closing.join(DEADLINE_S)
        assert not closing.is_alive()
        identity = client.client_id, client.token
    server.close()
    after = held(kind)
    with RawClient(after.served.address, grant=False) as client:
        client.client_id, client.token = identity
        again = client.call(_HOLD, b"x", 1, attempt=2)
        assert (again.response, again.outcome) == (b"1:x", "replayed")
    assert after.runs[b"x"] == 0


def test_closing_gives_up_after_its_time(held):
    """``close`` waits ``drain_s`` and no longer; what runs is recorded (§6)."""
    server = held("sync", drain_s=0.05)
    with server.client() as client:
        running = client.future(_HOLD, b"x", 1)
        assert server.entered[b"x"].wait(DEADLINE_S)
        server.dedup.close()
        assert not running.done()
        assert client.call(_QUICK, b"y", 2).refusal == _DRAINING
        server.released[b"x"].set()
        assert read(running).response == b"1:x"
        identity = client.client_id, client.token
    server.dedup.close(DEADLINE_S)
    after = held("sync")
    with RawClient(after.served.address, grant=False) as client:
        client.client_id, client.token = identity
        again = client.call(_HOLD, b"x", 1, attempt=2)
        assert (again.response, again.outcome) == (b"1:x", "replayed")
    assert after.runs[b"x"] == 0


def test_a_call_after_the_close_gets_a_typed_answer(held):
    """A server left running after ``close`` refuses with types, whatever is asked (§3)."""
    server = held("sync")
    with server.client() as client:
        assert client.call(_QUICK, b"x", 1).ok
        server.dedup.close()
        assert client.call(_QUICK, b"y", 2).refusal == _DRAINING
        again = client.call(_QUICK, b"x", 1, attempt=2)
        assert again.refusal == ("ABORTED", "RECORD_PENDING", "unknown")


def test_closing_on_a_loop_does_not_block_it(held):
    """``close`` called on an event loop returns at once; what runs is recorded (§6, §9)."""
    server = held("aio", drain_s=DEADLINE_S)
    with server.client() as client:
        running = client.future(_HOLD, b"x", 1)
        assert server.entered[b"x"].wait(DEADLINE_S)

        async def close():
            server.dedup.close()

        server.served.loop.run(close(), timeout_s=5)
        server.released[b"x"].set()
        assert read(running).response == b"1:x"


async def test_a_deduplicator_is_an_async_context_manager(tmp_path):
    """``async with`` closes, and the file can be opened again (§1)."""
    for _ in range(2):
        async with rifl.Deduplicator(f"sqlite:///{tmp_path}/a.db"):
            pass
