"""Keys, streams and sealed answers over Redis, as callers and handlers see them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

import rifl
from tests.calls.services import Kinds, serving, trailers
from tests.calls.test_keys import Caller, reason
from tests.calls.test_streams import COLLECT, FIRST, TINY
from tests.calls.test_streams import Caller as StreamCaller
from tests.helpers.sealing import SEALED
from tests.stores.redis.passing import sweep

KINDS = ("sync", "aio")


@pytest.fixture(params=KINDS)
def serve(request, url):
    """Make servers of one kind over one store."""
    return lambda kinds, **options: serving(
        request.param, kinds, url=url, **{"keys_from": "anyone", **options}
    )


def test_a_key_makes_a_call_happen_once_whichever_replica_it_reaches(serve):
    """Two servers, one effect; every answer carries rifl-outcome (DESIGN §3, §6)."""
    kinds = Kinds()
    # As many may wait as there are: one more would be told that it still runs.
    with (
        serve(kinds, bounds=rifl.Bounds(max_waiters=8)) as one,
        serve(kinds, bounds=rifl.Bounds(max_waiters=8)) as two,
    ):
        callers = [Caller(one), Caller(two)]
        with ThreadPoolExecutor(8) as pool:
            calls = list(pool.map(lambda n: callers[n % 2].call("order-7"), range(8)))
        assert {call.result() for call in calls} == {b"1"}
        outcomes = sorted(trailers(call)["rifl-outcome"] for call in calls)
        assert outcomes == ["executed"] + ["replayed"] * 7
        mismatch = callers[1].call("order-7", b"y")
        assert mismatch.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert reason(mismatch) == "PAYLOAD_MISMATCH"
    assert kinds.effects == [b"x"]


def test_keys_last_for_their_retention_also_over_a_restart(serve):
    """Within it a retry is replayed, after it the call runs again (DESIGN §3)."""
    kinds = Kinds()
    with serve(kinds, key_retention_s=100.0) as one:
        assert Caller(one).call("k").result() == b"1"
    with serve(kinds, key_retention_s=100.0) as two:
        caller = Caller(two)
        sweep(two.dedup._store, 90.0)
        assert caller.call("k").result() == b"1"
        sweep(two.dedup._store, 13.0)
        assert caller.call("k").result() == b"2"


def test_keys_of_a_namespace_are_bounded_and_others_unaffected(serve):
    """A caller that never acknowledges meets WINDOW_EXCEEDED (DESIGN §9)."""
    kinds = Kinds()
    with serve(kinds, bounds=rifl.Bounds(max_keys=8)) as service:
        caller = Caller(service)
        assert [caller.call(key).result() for key in "ab"] == [b"1", b"2"]
        assert reason(caller.call("c")) == "WINDOW_EXCEEDED"
        assert caller.call("a").result() == b"1"
        assert StreamCaller(service).send(COLLECT, [b"m"], 1).result() == b"3"


@pytest.mark.parametrize("methods", [{}, TINY], ids=["buffered", "as it arrives"])
def test_a_request_stream_happens_once(serve, methods):
    """A retry is replayed, and the fingerprint covers the whole stream (DESIGN §4)."""
    kinds = Kinds()
    with serve(kinds, methods=methods) as service:
        caller = StreamCaller(service)
        assert caller.send(COLLECT, [b"a", b"b"], 1).result() == b"1"
        again = caller.send(COLLECT, [b"a", b"b"], 1, attempt=2)
        assert (again.result(), trailers(again)["rifl-outcome"]) == (b"1", "replayed")
        for other in ([b"a"], [b"ab"], [b"a", b"b", b""]):
            assert reason(caller.send(COLLECT, other, 1, attempt=2)) == "PAYLOAD_MISMATCH"
        if methods:
            # Nobody reads these to their end.
            assert caller.send(FIRST, [b"a", b"b"], 2).result() == b"2"
    assert kinds.effects[0] == b"a|b"


def test_a_response_stream_is_replayed_and_resumed_after_a_restart(serve):
    """Messages are durable with the record before the status leaves (DESIGN §4)."""
    kinds = Kinds()
    with serve(kinds) as one, serve(kinds) as two:
        caller = StreamCaller(one)
        assert list(caller.receive(b"3", 1)) == [b"1.0", b"1.1", b"1.2"]
        caller.channel = grpc.insecure_channel(two.address)
        assert list(caller.receive(b"3", 1, attempt=2, received=2)) == [b"1.2"]
    assert kinds.effects == [b"3"]


def test_a_sealed_store_holds_no_answer_in_the_clear(serve, url, shared_server):
    """Sealed in Redis, replayed after a restart; a lost key is a typed unknown (DESIGN §6)."""

    def broken(data, associated):
        raise ValueError("no such key")

    class Secretive(Kinds):
        def unary(self, request, context):
            super().unary(request, context)
            return b"the-secret-answer"

    kinds = Secretive()
    for _ in range(2):
        with serve(kinds, **SEALED) as service:
            assert Caller(service).call("k").result() == b"the-secret-answer"
            namespace = service.dedup._store._redis.key("")
    with serve(kinds, **SEALED | {"unseal": broken}) as service:
        lost = Caller(service).call("k")
        assert (lost.code(), reason(lost)) == (grpc.StatusCode.ABORTED, "OUTCOME_UNKNOWN")
    assert kinds.effects == [b"x"]
    appended = [file for file in shared_server.directory.rglob("*") if file.is_file()]
    assert any(namespace.encode() in file.read_bytes() for file in appended)
    assert not any(b"the-secret-answer" in file.read_bytes() for file in appended)
