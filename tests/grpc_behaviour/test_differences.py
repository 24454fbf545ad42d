"""Differences from bare gRPC that rifl intends: grpc-differences.md, held on both sides."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

import rifl
from tests.grpc_behaviour.sides import DEADLINE_S, SERVICE, Behaviours, Side
from tests.helpers.pages import page
from tests.helpers.ports import free_port
from tests.helpers.processes import started
from tests.helpers.waiting import deadlines
from tests.server.exiting_server import SERVICE as EXITS

UNARY, COLLECT, COUNT = (f"/{SERVICE}/{name}" for name in ("Unary", "Collect", "Count"))
DOC = page("grpc-differences.md")
CODE = grpc.StatusCode


def failing(call: Any) -> Any:
    """Return the error that a call ends with."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value


def test_each_difference_is_listed() -> None:
    """The page names the test that holds each of its differences (DESIGN §9)."""
    named = set(re.findall(r"`(test_\w+)`", DOC.read_text()))
    mine = {name for name in globals() if name.startswith("test_")}
    assert named == mine - {"test_each_difference_is_listed"}


def test_errors_of_handlers_carry_their_outcome(side: Side) -> None:
    """``rifl-outcome`` in trailing metadata (DESIGN §3)."""

    def unary(request: bytes, context: Any) -> bytes:
        context.abort(CODE.NOT_FOUND, "no")
        raise AssertionError

    with side.serve(Behaviours(Unary=unary)) as address, side.connect(address) as channel:
        error = failing(lambda: channel.unary_unary(UNARY)(b"", timeout=DEADLINE_S))
        labels = [("rifl-outcome", "executed")] if side.ours else []
        assert list(map(tuple, error.trailing_metadata())) == labels
        assert isinstance(error, rifl.CallError) is side.ours


def test_what_may_have_run_is_a_failed_precondition(side: Side) -> None:
    """So that no retry policy repeats it: DEADLINE_EXCEEDED, and a broken iterator (§3)."""
    begun: set[bytes] = set()

    def unary(request: bytes, context: Any) -> bytes:
        begun.add(request)
        behaviours.gate.wait(DEADLINE_S)
        return request

    behaviours = Behaviours(Unary=unary)

    def broken() -> Iterator[bytes]:
        yield b"a"
        raise RuntimeError("the application's")

    settings = {"keep_deadline_exceeded": False} if side.ours else {}
    with side.serve(behaviours) as address, side.connect(address, **settings) as channel:
        for timeout_s in deadlines():
            request = b"%g" % timeout_s
            late = failing(partial(channel.unary_unary(UNARY), request, timeout=timeout_s))
            if request in begun:
                break
        assert late.code() is (CODE.FAILED_PRECONDITION if side.ours else CODE.DEADLINE_EXCEEDED)
        cut = failing(lambda: channel.stream_unary(COLLECT)(broken(), timeout=DEADLINE_S))
        assert cut.code() is (CODE.FAILED_PRECONDITION if side.ours else CODE.UNKNOWN)
        if side.ours:
            assert (late.original_code, late.outcome) == (
                CODE.DEADLINE_EXCEEDED,
                rifl.Outcome.UNKNOWN,
            )


def test_an_answer_too_large_to_receive_is_a_failed_precondition(side: Side) -> None:
    """The handler ran, and ``RESPONSE_TOO_LARGE`` says so (DESIGN §3)."""

    def unary(request: bytes, context: Any) -> bytes:
        return bytes(5 << 20)

    with side.serve(Behaviours(Unary=unary)) as address, side.connect(address) as channel:
        error = failing(lambda: channel.unary_unary(UNARY)(b"", timeout=DEADLINE_S))
        assert error.code() is (CODE.FAILED_PRECONDITION if side.ours else CODE.RESOURCE_EXHAUSTED)


def test_a_server_that_is_down_is_waited_for(side: Side) -> None:
    """A call is tried within its deadline, without ``wait_for_ready`` (DESIGN §3)."""
    with side.connect(f"127.0.0.1:{free_port()}") as channel:
        error = failing(lambda: channel.unary_unary(UNARY)(b"", timeout=0.5))
        assert error.code() is (CODE.DEADLINE_EXCEEDED if side.ours else CODE.UNAVAILABLE)
        if side.ours:
            assert error.outcome is rifl.Outcome.NOT_EXECUTED


def test_server_interceptors_see_the_lease_service(side: Side) -> None:
    """It is a service of the same server: what authorises has to let it pass (DESIGN §5)."""
    seen: list[str] = []

    class Seeing(grpc.ServerInterceptor):
        def intercept_service(self, continuation: Any, details: Any) -> Any:
            seen.append(details.method)
            return continuation(details)

    behaviours = Behaviours()
    behaviours.gate.set()
    with (
        side.serve(behaviours, interceptors=[Seeing()]) as address,
        side.connect(address) as channel,
    ):
        channel.unary_unary(UNARY)(b"", timeout=DEADLINE_S)
        lease = ["/lease_server.v1.LeaseServer/Grant"] if side.ours else []
        assert seen == [*lease, UNARY]


async def test_client_interceptors_see_the_lease_service(side: Side) -> None:
    """Those given to ``connect`` run inside: for each attempt, and for the client id (§5)."""
    seen: list[Any] = []

    class Seeing(grpc.aio.UnaryUnaryClientInterceptor):
        async def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
            method = details.method
            seen.append(method.decode() if isinstance(method, bytes) else method)
            return await continuation(details, request)

    behaviours = Behaviours()
    behaviours.gate.set()
    async with (
        side.serve_aio(behaviours) as address,
        side.connect_aio(address, interceptors=[Seeing()]) as channel,
    ):
        await channel.unary_unary(UNARY)(b"", timeout=DEADLINE_S)
        assert seen[-1] == UNARY
        assert ("/lease_server.v1.LeaseServer/Grant" in seen) is side.ours


async def test_an_iterator_that_raises_is_told_as_such_on_aio(side: Side) -> None:
    """gRPC cancels the call, and says no more (DESIGN §3)."""

    def broken() -> Iterator[bytes]:
        yield b"a"
        raise ValueError

    async with side.serve_aio(Behaviours()) as address, side.connect_aio(address) as channel:
        call = channel.stream_unary(COLLECT)(broken(), timeout=DEADLINE_S)
        with pytest.raises(rifl.CallError if side.ours else asyncio.CancelledError) as caught:
            await call
        assert call.cancelled() is not side.ours
        assert isinstance(caught.value.__cause__, ValueError) is side.ours


def test_initial_metadata_leaves_with_the_first_message(side: Side) -> None:
    """Or with the answer: what a handler says of a deduplicated call is noted (DESIGN §4)."""
    behaviours, sent = Behaviours(), threading.Event()

    def count(request: bytes, context: Any) -> Iterator[bytes]:
        context.send_initial_metadata((("early", "1"),))
        sent.set()
        behaviours.gate.wait(DEADLINE_S)
        yield b"0"

    behaviours._behaviours["Count"] = count
    with side.serve(behaviours) as address, side.connect(address) as channel:
        call = channel.unary_stream(COUNT)(b"", timeout=DEADLINE_S)
        assert sent.wait(DEADLINE_S)
        if not side.ours:
            assert dict(call.initial_metadata())["early"] == "1"
        behaviours.gate.set()
        assert dict(call.initial_metadata())["early"] == "1"
        assert list(call) == [b"0"]


def test_sys_exit_in_a_coroutine_handler_fails_its_call(side: Side, tmp_path: Path) -> None:
    """It ends the event loop of a bare server, as each client could then have it do (§4)."""
    name = "rifl" if side.ours else "grpc"
    with (
        started("tests.server.exiting_server", name, "plain", log=tmp_path / "log") as process,
        side.connect(process.line()) as channel,
    ):
        stub = channel.unary_unary(f"/{EXITS}/Unary")
        error = failing(lambda: stub(b"exit", timeout=DEADLINE_S))
        if side.ours:
            assert error.code() is CODE.UNKNOWN
            assert stub(b"count", timeout=DEADLINE_S) == b"1"
        else:
            assert process.wait() == 3


def test_unsendable_metadata_is_refused_in_the_handler(side: Side) -> None:
    """Recorded, it would fail in each retry (DESIGN §4)."""
    refused: list[ValueError] = []

    def unary(request: bytes, context: Any) -> bytes:
        try:
            context.set_trailing_metadata((("name", "J\xfcrgen"),))
        except ValueError as error:
            refused.append(error)
        return request

    with side.serve(Behaviours(Unary=unary)) as address, side.connect(address) as channel:
        call = channel.unary_unary(UNARY)
        if side.ours:
            assert call(b"x", timeout=DEADLINE_S) == b"x"
        else:
            failing(lambda: call(b"x", timeout=DEADLINE_S))
    assert len(refused) == side.ours


def test_a_declared_request_stream_is_read_to_its_end_first(side: Side) -> None:
    """A handler that answers half-way does so when the rest has come, or much of it (§4)."""
    begun, sending = threading.Event(), threading.Event()

    def first(requests: Iterator[bytes], context: Any) -> bytes:
        begun.set()
        return next(requests)

    def messages() -> Iterator[bytes]:
        yield b"a"
        sending.wait(DEADLINE_S)

    with side.serve(Behaviours(Collect=first)) as address, side.connect(address) as channel:
        if side.ours:
            channel.session.open()
        future = channel.stream_unary(COLLECT).future(messages(), timeout=DEADLINE_S)
        if not side.ours:
            assert future.result() == b"a"
        assert begun.is_set() is not side.ours
        sending.set()
        assert future.result(DEADLINE_S) == b"a"
        assert begun.is_set()


def test_a_handler_for_every_method_hides_the_lease_service(side: Side) -> None:
    """The client says that the server does not deduplicate, and does not hang (DESIGN §5)."""

    class Everything(grpc.GenericRpcHandler):
        def service(self, details: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(lambda request, _: request)

    with (
        side.serve(Behaviours(), handlers=(Everything(),)) as address,
        side.connect(address) as channel,
    ):
        stub = channel.unary_unary("/any/Thing")
        if side.ours:
            assert failing(lambda: stub(b"a", timeout=DEADLINE_S)).reason == "NOT_DEDUPLICATED"
        else:
            assert stub(b"a", timeout=DEADLINE_S) == b"a"


def test_compression_that_the_server_refuses_refuses_the_client_id(side: Side) -> None:
    """UNIMPLEMENTED to the request for it reads as a server without us (DESIGN §5)."""
    refused = ~(1 << grpc.Compression.Gzip.value)
    options = (("grpc.compression_enabled_algorithms_bitset", refused & 0b111),)
    behaviours = Behaviours()
    behaviours.gate.set()
    compression = {"compression": grpc.Compression.Gzip} if side.ours else {}
    with side.serve(behaviours, options=options) as address:
        channel = (
            side.connect(address, **compression)
            if side.ours
            else grpc.insecure_channel(address, compression=grpc.Compression.Gzip)
        )
        with channel:
            error = failing(lambda: channel.unary_unary(UNARY)(b"x" * 999, timeout=DEADLINE_S))
            told = CODE.FAILED_PRECONDITION if side.ours else CODE.UNIMPLEMENTED
            assert error.code() is told
