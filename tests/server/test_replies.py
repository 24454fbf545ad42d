"""Ends of arrivals, the same for unary calls, streams and batches, sync and aio (DESIGN §4)."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from grpc_interceptor.exception_to_status import (
    AsyncExceptionToStatusInterceptor,
    ExceptionToStatusInterceptor,
)

import rifl
from rifl._wire.envelope import encode_batch, parse_reply
from rifl.core._shared.observer import Observer, ServedCall
from tests.calls.services import whole
from tests.helpers.raw import RawClient, Reply, read
from tests.helpers.servers import KINDS, serve
from tests.helpers.waiting import DEADLINE_S, until

FORMS = ("Unary", "Collect", "Tell")


class Missing(Exception):
    """What the handlers raise."""


def _handlers(kind: str, runs: list[str]) -> Any:
    def end(request: bytes) -> bytes:
        runs.append(request.decode())
        if request.startswith(b"raise"):
            raise Missing("no such thing")
        return request

    def unary(request: bytes, context: Any) -> bytes:
        return end(request)

    def collect(requests: Iterator[bytes], context: Any) -> bytes:
        return end(b"".join(requests))

    def tell(request: bytes, context: Any) -> Iterator[bytes]:
        yield b"first"
        yield end(request)

    async def aunary(request: bytes, context: Any) -> bytes:
        return end(request)

    async def acollect(requests: Any, context: Any) -> bytes:
        return end(b"".join([request async for request in requests]))

    async def atell(request: bytes, context: Any) -> Any:
        yield b"first"
        yield end(request)

    behaviors = (aunary, acollect, atell) if kind == "aio" else (unary, collect, tell)
    makers = (
        grpc.unary_unary_rpc_method_handler,
        grpc.stream_unary_rpc_method_handler,
        grpc.unary_stream_rpc_method_handler,
    )
    handlers: Any = {
        form: maker(behavior)  # type: ignore[operator]
        for form, maker, behavior in zip(FORMS, makers, behaviors, strict=True)
    }
    return grpc.method_handlers_generic_handler("test.Tail", handlers)


def _arrive(client: RawClient, form: str, request: bytes, seq: int, attempt: int = 1) -> Reply:
    path = f"/test.Tail/{form}"
    metadata = (("rifl-bin", client.header(seq, attempt=attempt)),)
    if form == "Collect":
        call: Any = client.channel.stream_unary(path)
        return read(call.future(whole([request]), DEADLINE_S, metadata))
    if form == "Unary":
        return client.call(path, request, seq, attempt=attempt)
    call = client.channel.unary_stream(path)(request, DEADLINE_S, metadata)
    got: list[bytes] = []
    with contextlib.suppress(grpc.RpcError):
        got.extend(call)
    call.result = lambda: b"|".join(got)
    return read(call)


@pytest.mark.parametrize("declared", ["plain", "idempotent"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_arrival_of_a_call_that_raised_gets_the_same_status(kind: str, declared: Any) -> None:
    """UNKNOWN with gRPC's text, whatever an interceptor outside does with exceptions (§4)."""
    runs: list[str] = []
    outside: Any = ExceptionToStatusInterceptor(
        status_on_unknown_exception=grpc.StatusCode.INTERNAL
    )
    if kind != "sync":
        outside = AsyncExceptionToStatusInterceptor(
            status_on_unknown_exception=grpc.StatusCode.INTERNAL
        )
    methods = {f"/test.Tail/{form}": declared for form in FORMS}
    with rifl.Deduplicator("memory:", methods=methods) as dedup:
        chain = [dedup] if kind == "threads" else [outside, dedup]
        with (
            serve(kind, [_handlers(kind, runs)], interceptors=chain, dedup=dedup) as served,
            RawClient(served.address) as client,
        ):
            for seq, form in enumerate(FORMS, 1):
                first, again = (_arrive(client, form, b"raise", seq, number) for number in (1, 2))
                assert (first.code, first.outcome) == (grpc.StatusCode.UNKNOWN, "executed")
                assert "no such thing" in first.details
                assert (again.code, again.details) == (first.code, first.details)
                assert again.outcome == "replayed"
    assert runs == ["raise"] * 3


class Watching(Observer):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.served: list[ServedCall] = []

    def call_served(self, served: ServedCall) -> None:
        """Keep it."""
        self.served.append(served)


def _told(watching: Watching) -> list[tuple[str, str, str, int]]:
    told = [
        (served.method.rpartition("/")[2], served.outcome.value, served.reason, served.code)
        for served in watching.served
    ]
    watching.served.clear()
    return told


@pytest.mark.parametrize("kind", KINDS)
def test_an_observer_is_told_of_every_form_of_call(kind: str) -> None:
    """Executed, replayed, raised and refused arrivals, of unary calls and streams alike (§9)."""
    watching = Watching()
    methods = {f"/test.Tail/{form}": "plain" for form in FORMS}
    with (
        rifl.Deduplicator("memory:", methods=methods, observer=watching) as dedup,
        serve(kind, [_handlers(kind, [])], dedup=dedup) as served,
        RawClient(served.address) as client,
    ):
        for at, form in enumerate(FORMS):
            seq = 1 + 2 * at
            assert _arrive(client, form, b"a", seq).ok
            assert _arrive(client, form, b"a", seq, 2).outcome == "replayed"
            assert not _arrive(client, form, b"other", seq, 3).ok
            assert not _arrive(client, form, b"raise", seq + 1).ok
            until(lambda: len(watching.served) == 4, "the observer is told")
            assert _told(watching) == [
                (form, "executed", "", 0),
                (form, "replayed", "", 0),
                (form, "not-executed", "PAYLOAD_MISMATCH", 3),
                (form, "executed", "", 2),
            ]
        body = encode_batch([b"a", b"raise"], [], [11, 12])
        metadata = (("rifl-bin", client.header(None)), ("rifl-batch", "1"))
        stub = client.channel.unary_unary("/test.Tail/Unary")
        assert len(parse_reply(stub(body, DEADLINE_S, metadata), 2).items()) == 2
        assert _told(watching) == [("Unary", "executed", "", 0), ("Unary", "executed", "", 2)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_refusal_before_a_call_is_read_is_told_and_is_no_message(kind: str) -> None:
    """A required stream without an identity is refused with a status alone, and seen (§3)."""
    watching = Watching()
    required = rifl.MethodPolicy(required=True)
    methods = {f"/test.Tail/{form}": required for form in FORMS}
    with (
        rifl.Deduplicator("memory:", methods=methods, observer=watching) as dedup,
        serve(kind, [_handlers(kind, [])], dedup=dedup) as served,
        RawClient(served.address) as client,
    ):
        stub = client.channel.unary_stream("/test.Tail/Tell")(b"a", DEADLINE_S)
        got: list[bytes] = []
        with pytest.raises(grpc.RpcError):
            got.extend(stub)
        assert got == []
        assert stub.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert _told(watching) == [("Tell", "not-executed", "BAD_HEADER", 3)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_whose_caller_left_is_told_when_it_ends(kind: str) -> None:
    """What ran to its end for nobody is observed, too (§4, step 6)."""
    watching, entered, leave = Watching(), threading.Event(), threading.Event()

    def hold(request: bytes, context: Any) -> bytes:
        entered.set()
        leave.wait(DEADLINE_S)
        return request

    async def ahold(request: bytes, context: Any) -> bytes:
        entered.set()
        await asyncio.to_thread(leave.wait, DEADLINE_S)
        return request

    handlers: Any = {"Hold": grpc.unary_unary_rpc_method_handler(ahold if kind == "aio" else hold)}
    generic = grpc.method_handlers_generic_handler("test.Tail", handlers)
    with (
        rifl.Deduplicator("memory:", observer=watching) as dedup,
        serve(kind, [generic], dedup=dedup) as served,
        RawClient(served.address) as client,
    ):
        call = client.future("/test.Tail/Hold", b"a", 1)
        assert entered.wait(DEADLINE_S)
        call.cancel()
        leave.set()
        until(lambda: watching.served, "the observer is told")
        assert _told(watching) == [("Hold", "executed", "", 0)]
