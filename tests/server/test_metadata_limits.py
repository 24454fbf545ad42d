"""Answers whose metadata or details HTTP/2 does not carry are told so at once (DESIGN §3)."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from typing import Any

import grpc
import pytest

import rifl
from tests.calls.services import whole
from tests.helpers.raw import RawClient, read
from tests.helpers.servers import KINDS, serve
from tests.helpers.waiting import DEADLINE_S, until

FORMS = ("Unary", "Collect", "Tell")
_LARGE = (("large", "x" * 20_000),)
_TEXT = "é" * 10_000
_RICH = (("grpc-status-details-bin", b"\x08\x05" + b"\x1a\x02\x0a\x00" * 5000),)


def _say(what: bytes, context: Any) -> Any:
    if what == b"initial":
        return context.send_initial_metadata(_LARGE)
    if what == b"trailing":
        context.set_trailing_metadata(_LARGE)
    elif what == b"rich":
        context.set_trailing_metadata(_RICH)
        return context.abort(grpc.StatusCode.NOT_FOUND, "rich")
    elif what == b"abort":
        return context.abort(grpc.StatusCode.NOT_FOUND, _TEXT)
    else:
        raise ValueError(_TEXT)
    return None


def _handlers(kind: str, runs: list[bytes]) -> Any:
    async def unary_aio(request: bytes, context: Any) -> bytes:
        runs.append(request)
        if inspect.isawaitable(said := _say(request, context)):
            await said
        return b"done"

    async def collect_aio(requests: Any, context: Any) -> bytes:
        return await unary_aio(b"".join([request async for request in requests]), context)

    async def tell_aio(request: bytes, context: Any) -> Any:
        yield await unary_aio(request, context)

    def unary(request: bytes, context: Any) -> bytes:
        runs.append(request)
        _say(request, context)
        return b"done"

    def collect(requests: Any, context: Any) -> bytes:
        return unary(b"".join(requests), context)

    def tell(request: bytes, context: Any) -> Any:
        yield unary(request, context)

    behaviors = (unary_aio, collect_aio, tell_aio) if kind == "aio" else (unary, collect, tell)
    makers: Any = (
        grpc.unary_unary_rpc_method_handler,
        grpc.stream_unary_rpc_method_handler,
        grpc.unary_stream_rpc_method_handler,
    )
    handlers = {
        form: maker(behavior)
        for form, maker, behavior in zip(FORMS, makers, behaviors, strict=True)
    }
    return grpc.method_handlers_generic_handler("test.Large", handlers)


@pytest.fixture(scope="module", params=KINDS)
def large(request):
    """A server whose handlers say more than fits, its caller, and what ran."""
    runs: list[bytes] = []
    methods = {f"/test.Large/{form}": "plain" for form in FORMS}
    with (
        rifl.Deduplicator("memory:", methods=methods) as dedup,
        serve(request.param, [_handlers(request.param, runs)], dedup=dedup) as served,
        RawClient(served.address) as client,
    ):
        yield served, client, runs


def _arrive(client: RawClient, form: str, request: bytes, seq: int, attempt: int) -> Any:
    path = f"/test.Large/{form}"
    metadata = (("rifl-bin", client.header(seq, attempt=attempt)),)
    if form == "Collect":
        call: Any = client.channel.stream_unary(path)
        return read(call.future(whole([request]), DEADLINE_S, metadata))
    if form == "Unary":
        return client.call(path, request, seq, attempt=attempt)
    call = client.channel.unary_stream(path)(request, DEADLINE_S, metadata)
    with contextlib.suppress(grpc.RpcError):
        list(call)
    call.result = lambda: None
    return read(call)


@pytest.mark.parametrize("form", FORMS)
def test_what_does_not_fit_is_an_answer_of_ours(large: Any, form: str) -> None:
    """Metadata: RESPONSE_TOO_LARGE, executed; details: cut, and the code stays (§3)."""
    _, client, runs = large
    runs.clear()
    asked = (b"initial", b"trailing", b"rich", b"abort", b"raise")
    for at, what in enumerate(asked):
        for attempt in (1, 2):
            seq = 1 + at + len(asked) * FORMS.index(form)
            reply = _arrive(client, form, what, seq, attempt)
            assert reply.outcome == ("executed" if attempt == 1 else "replayed"), what
            if what in (b"abort", b"raise"):
                code = grpc.StatusCode.NOT_FOUND if what == b"abort" else grpc.StatusCode.UNKNOWN
                assert reply.code is code
                assert reply.details.endswith("éé…")
            else:
                assert (reply.code.name, reply.reason) == (
                    "RESOURCE_EXHAUSTED",
                    "RESPONSE_TOO_LARGE",
                )
    assert runs == list(asked)


def test_the_sdk_is_told_at_once(large: Any) -> None:
    """It does not try again until the deadline (§3)."""
    served, _, runs = large
    runs.clear()
    with rifl.connect(served.address) as channel:
        call = channel.unary_unary("/test.Large/Unary")
        for what, reason in ((b"trailing", "RESPONSE_TOO_LARGE"), (b"abort", "")):
            with pytest.raises(rifl.CallError) as caught:
                call(what, timeout=600)
            assert (caught.value.reason, caught.value.outcome) == (reason, rifl.Outcome.EXECUTED)
    assert runs == [b"trailing", b"abort"]


def test_a_method_may_take_more() -> None:
    """``max_metadata_bytes``, for clients that set ``grpc.max_metadata_size`` (§3)."""
    policy = rifl.MethodPolicy(max_metadata_bytes=30_000)
    with (
        rifl.Deduplicator("memory:", methods={"/test.Large/Unary": policy}) as dedup,
        serve("sync", [_handlers("sync", [])], dedup=dedup) as served,
        RawClient(served.address) as granted,
    ):
        options = [("grpc.max_metadata_size", 65536), ("grpc.absolute_max_metadata_size", 131072)]
        with grpc.insecure_channel(served.address, options) as channel:
            metadata = (("rifl-bin", granted.header(1)),)
            call = channel.unary_unary("/test.Large/Unary").future(b"trailing", 20, metadata)
            assert call.result() == b"done"
            assert dict(call.trailing_metadata())["large"] == _LARGE[0][1]


@pytest.mark.parametrize("kind", ["sync", "aio"])
def test_a_long_response_stream_runs_to_its_end_for_nobody(kind: str) -> None:
    """Its caller left, and it is over its limit: its effect is whole all the same (§4)."""
    entered, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def tell(request: bytes, context: Any) -> Any:
        yield b"x" * 100
        entered.set()
        until(lambda: rifl.caller_gone(context), "the caller is gone")
        assert go_on.wait(DEADLINE_S)
        for _ in range(10):
            yield b"x" * 100
        ended.set()

    async def atell(request: bytes, context: Any) -> Any:
        yield b"x" * 100
        entered.set()
        while not (rifl.caller_gone(context) and go_on.is_set()):
            await asyncio.sleep(0.005)
        for _ in range(10):
            yield b"x" * 100
        ended.set()

    handler: Any = grpc.unary_stream_rpc_method_handler(atell if kind == "aio" else tell)
    generic = grpc.method_handlers_generic_handler("test.Large", {"Tell": handler})
    policy = rifl.MethodPolicy(max_response_bytes=300)
    with (
        rifl.Deduplicator("memory:", methods={"/test.Large/Tell": policy}) as dedup,
        serve(kind, [generic], dedup=dedup) as served,
        RawClient(served.address) as client,
    ):
        metadata = (("rifl-bin", client.header(1)),)
        call = client.channel.unary_stream("/test.Large/Tell")(b"", DEADLINE_S, metadata)
        assert entered.wait(DEADLINE_S)
        call.cancel()
        go_on.set()
        assert ended.wait(DEADLINE_S)
        again = _arrive(client, "Tell", b"", 1, 2)
        assert again.refusal == ("RESOURCE_EXHAUSTED", "RESPONSE_TOO_LARGE", "replayed")
