"""Calls with a stream on one side (DESIGN §3, §4)."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import grpc
import pytest

from rifl import MethodPolicy, PolicyError
from rifl._grpc.status import read_error_info
from rifl.v1 import rifl_pb2
from tests.calls.services import Kinds, serving, trailers, whole
from tests.helpers.waiting import DEADLINE_S, until

KINDS = ("sync", "aio")
COLLECT, FIRST, COUNT, ECHO = (f"/t.Kinds/{name}" for name in ("Collect", "First", "Count", "Echo"))
TINY = {COLLECT: MethodPolicy(buffer_bytes=0), FIRST: MethodPolicy(buffer_bytes=0)}


class Caller:
    """Headers by hand, under a granted id."""

    def __init__(self, service: Any) -> None:
        self.grant = service.dedup._authority.grant()
        self.channel = grpc.insecure_channel(service.address)

    def metadata(self, seq: int, attempt: int = 1, received: int = 0) -> Any:
        header = rifl_pb2.CallHeader(
            client_id=self.grant.client_id,
            token=self.grant.token,
            seq=seq,
            attempt=attempt,
            received=received,
        )
        return (("rifl-bin", header.SerializeToString()),)

    def send(
        self, method: str, messages: Any, seq: int, attempt: int = 1, *, marked: bool = True
    ) -> Any:
        stream = whole(messages) if marked else iter(messages)
        call = self.channel.stream_unary(method).future(stream, 10, self.metadata(seq, attempt))
        call.exception()
        return call

    def receive(self, request: bytes, seq: int, attempt: int = 1, received: int = 0) -> Any:
        return self.channel.unary_stream(COUNT)(request, 10, self.metadata(seq, attempt, received))


def reason(call: Any) -> str | None:
    info = read_error_info(tuple(call.trailing_metadata()))
    return None if info is None else info[0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("methods", [{}, TINY], ids=["buffered", "as it arrives"])
def test_a_request_stream_happens_once(kind: str, methods: Any) -> None:
    """A retry is replayed, and the fingerprint covers the whole stream (DESIGN §4)."""
    kinds = Kinds()
    with serving(kind, kinds, methods=methods) as service:
        caller = Caller(service)
        assert caller.send(COLLECT, [b"a", b"b", b"c"], 1).result() == b"1"
        again = caller.send(COLLECT, [b"a", b"b", b"c"], 1, attempt=2)
        assert (again.result(), trailers(again)["rifl-outcome"]) == (b"1", "replayed")
        for other in ([b"a", b"b"], [b"a", b"bc"], [b"a", b"b", b"c", b""]):
            refused = caller.send(COLLECT, other, 1, attempt=2)
            assert reason(refused) == "PAYLOAD_MISMATCH"
    assert kinds.effects == [b"a|b|c"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_handler_that_stops_reading_is_decided_by_identity(kind: str) -> None:
    """Nothing of a stream nobody read to its end is held against a retry (DESIGN §4)."""
    kinds = Kinds()
    with serving(kind, kinds, methods=TINY) as service:
        caller = Caller(service)
        hold = threading.Event()

        def endless(first: bytes) -> Any:
            yield first
            hold.wait(60)

        assert caller.send(FIRST, endless(b"a"), 1).result() == b"1"
        assert caller.send(FIRST, endless(b"other"), 1, attempt=2).result() == b"1"
        hold.set()
    assert kinds.effects == [b"a"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_that_breaks_off_before_its_handler_leaves_no_trace(kind: str) -> None:
    """A buffered stream is claimed when it has ended, so half of one is nothing (DESIGN §4)."""
    kinds = Kinds()
    with serving(kind, kinds) as service:
        caller = Caller(service)
        for _ in range(20):
            sent, hold = threading.Event(), threading.Event()

            def half(sent: Any = sent, hold: Any = hold) -> Any:
                yield b"a"
                sent.set()
                hold.wait(60)

            call = caller.channel.stream_unary(COLLECT).future(half(), 10, caller.metadata(1))
            assert sent.wait(DEADLINE_S)
            call.cancel()
            hold.set()
        assert caller.send(COLLECT, [b"a", b"b"], 1, attempt=2).result() == b"1"
    assert kinds.effects == [b"a|b"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("methods", [{}, TINY], ids=["buffered", "as it arrives"])
def test_a_stream_without_its_end_marker_is_not_whole(kind: str, methods: Any) -> None:
    """gRPC tells the end of half a stream as that of a whole one: nothing is recorded (§4)."""
    kinds = Kinds()
    with serving(kind, kinds, methods=methods) as service:
        caller = Caller(service)
        refused = caller.send(COLLECT, [b"a", b"b"], 1, marked=False)
        if methods:
            # Its handler has begun: what reads on is told that the stream broke off.
            assert reason(refused) == "OUTCOME_UNKNOWN"
        else:
            assert refused.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert reason(refused) == "BAD_HEADER"
            assert trailers(refused)["rifl-outcome"] == "not-executed"
            assert "end marker" in refused.details()
        assert kinds.effects == []
        assert caller.send(COLLECT, [b"a", b"b", b"c"], 2).result() == b"1"
        # Nor is the payload of a retry known by half of it.
        half = caller.send(COLLECT, [b"a", b"b"], 2, attempt=2, marked=False)
        assert reason(half) == "BAD_HEADER"
        assert caller.send(COLLECT, [b"a", b"b", b"c"], 2, attempt=3).result() == b"1"
    assert kinds.effects == [b"a|b|c"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_message_that_looks_like_a_marker_is_a_message(kind: str) -> None:
    """The count tells the marker from an application's own bytes (DESIGN §4)."""
    kinds = Kinds()
    looks = b"\7rifl-end" + (7).to_bytes(8, "big")
    with serving(kind, kinds) as service:
        caller = Caller(service)
        assert caller.send(COLLECT, [b"\7", looks], 1).result() == b"1"
        assert caller.send(COLLECT, [], 2).result() == b"2"
    assert kinds.effects == [b"\7|" + looks, b""]


@pytest.mark.parametrize("kind", KINDS)
def test_a_header_key_without_the_marker_is_refused_for_a_request_stream(kind: str) -> None:
    """Clients without the SDK have to send the marker, too (DESIGN §4)."""
    kinds = Kinds()
    with serving(kind, kinds, keys_from="anyone") as service:
        stub = Caller(service).channel.stream_unary(COLLECT)
        entries = (("idempotency-key", "k"),)
        with pytest.raises(grpc.RpcError) as caught:
            stub(iter([b"a"]), 10, entries)
        assert reason(caught.value) == "BAD_HEADER"
        assert stub(whole([b"a"]), 10, entries) == b"1"
    assert kinds.effects == [b"a"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_response_stream_is_recorded_replayed_and_resumed(kind: str) -> None:
    """A later attempt gets the messages it lacks, from the record (DESIGN §4)."""
    kinds = Kinds()
    with serving(kind, kinds) as service:
        caller = Caller(service)
        assert list(caller.receive(b"3", 1)) == [b"1.0", b"1.1", b"1.2"]
        replay = caller.receive(b"3", 1, attempt=2)
        assert list(replay) == [b"1.0", b"1.1", b"1.2"]
        assert trailers(replay)["rifl-outcome"] == "replayed"
        assert list(caller.receive(b"3", 1, attempt=3, received=2)) == [b"1.2"]
        beyond = caller.receive(b"3", 1, attempt=4, received=4)
        with pytest.raises(grpc.RpcError):
            list(beyond)
        assert reason(beyond) == "BAD_HEADER"
    assert kinds.effects == [b"3"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_handler_runs_on_when_its_caller_is_gone(kind: str) -> None:
    """The stream of a caller that left is recorded to its end, and resumed (DESIGN §4)."""
    kinds = Kinds()
    with serving(kind, kinds) as service:
        caller = Caller(service)
        call = caller.receive(b"5", 1)
        assert next(call) == b"1.0"
        kinds.gate.clear()
        call.cancel()
        kinds.gate.set()
        rest = list(caller.receive(b"5", 1, attempt=2, received=1))
        assert rest == [b"1.1", b"1.2", b"1.3", b"1.4"]
    assert kinds.effects == [b"5"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_response_stream_too_long_to_keep_is_told_so(kind: str) -> None:
    """The caller that is there gets it all; a retry gets RESPONSE_TOO_LARGE (DESIGN §3)."""
    kinds = Kinds()
    with serving(kind, kinds, methods={COUNT: MethodPolicy(max_response_bytes=100)}) as service:
        caller = Caller(service)
        assert len(list(caller.receive(b"50", 1))) == 50
        retry = caller.receive(b"50", 1, attempt=2, received=20)
        with pytest.raises(grpc.RpcError):
            list(retry)
        assert reason(retry) == "RESPONSE_TOO_LARGE"
        assert trailers(retry)["rifl-outcome"] == "replayed"
    assert kinds.effects == [b"50"]


def test_a_response_stream_survives_a_restart(tmp_path: Path) -> None:
    """Messages are durable with the record before the status leaves (DESIGN §4, step 7)."""
    kinds = Kinds()
    with serving("sync", kinds, url=f"sqlite:///{tmp_path}/s.db") as service:
        caller = Caller(service)
        assert len(list(caller.receive(b"3", 1))) == 3
        service.kill()
        assert list(caller.receive(b"3", 1, attempt=2, received=1)) == [b"1.1", b"1.2"]
    assert kinds.effects == [b"3"]


@pytest.mark.parametrize("kind", KINDS)
def test_bidirectional_streams_pass_through_unless_declared(kind: str) -> None:
    """They are passed through; one declared by name is refused (DESIGN §1)."""
    kinds = Kinds()
    with serving(kind, kinds) as service:
        caller = Caller(service)
        echo = caller.channel.stream_stream(ECHO)
        assert list(echo(iter([b"a", b"b"]), 10, caller.metadata(1))) == [b"a", b"b"]
    with serving(kind, kinds, methods={ECHO: "plain"}) as service:
        call = Caller(service).channel.stream_stream(ECHO)(iter([b"a"]), 10)
        with pytest.raises(grpc.RpcError):
            list(call)
        assert reason(call) == "NOT_DEDUPLICATED"
    assert kinds.effects == [b"a", b"b"]


def test_a_policy_error_is_a_value_error() -> None:
    """What is refused at start-up is caught as the language has it (DESIGN §9)."""
    assert issubclass(PolicyError, ValueError)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("declared", ["plain", "idempotent"])
def test_a_stream_that_breaks_off_under_its_handler(kind: str, declared: str) -> None:
    """Plain: nobody knows what the handler did, lastingly. Idempotent: it runs again (§1)."""
    kinds = Kinds()
    methods = {COLLECT: MethodPolicy(kind=declared, buffer_bytes=0)}  # type: ignore[arg-type]
    with serving(kind, kinds, methods=methods) as service:
        caller = Caller(service)
        sent, hold = threading.Event(), threading.Event()

        def half() -> Any:
            yield b"a"
            sent.set()
            hold.wait(60)

        call = caller.channel.stream_unary(COLLECT).future(half(), 10, caller.metadata(1))
        assert sent.wait(DEADLINE_S)
        # Claimed by now, or soon: a call that was not is simply new to the retry.
        store = service.dedup._store
        until(store.running, "the call is claimed")
        call.cancel()
        hold.set()
        until(lambda: not store.running(), "the broken call is settled")
        retry = caller.send(COLLECT, [b"a", b"b"], 1, attempt=2)
        if declared == "plain":
            assert reason(retry) == "OUTCOME_UNKNOWN"
            assert kinds.effects == []
        else:
            assert retry.result() == b"1"
            assert kinds.effects == [b"a|b"]
