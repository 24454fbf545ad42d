"""Streams are deduplicated where they are declared, and pass through elsewhere (DESIGN §1, §4)."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

import rifl
import rifl.aio
from rifl._server.context import Noted
from tests.calls.services import whole
from tests.helpers.ports import free_port
from tests.helpers.processes import started
from tests.helpers.raw import RawClient, read
from tests.helpers.servers import KINDS, serve
from tests.helpers.waiting import DEADLINE_S, until

COLLECT, TELL, UNARY = (f"/test.Open/{name}" for name in ("Collect", "Tell", "Unary"))
# What declares unary methods, and no stream.
WIDE: list[dict[str, Any]] = [
    {},
    {"methods": {"*": "plain"}},
    {"methods": {"/test.Open/*": "plain"}},
    {"default": "idempotent"},
]


class Open:
    """Handlers that note what context they got."""

    def __init__(self, kind: str) -> None:
        self.contexts: queue.Queue[Any] = queue.Queue()
        self.runs: list[str] = []
        self._aio = kind == "aio"

    def _note(self, what: str, context: Any) -> None:
        self.runs.append(what)
        self.contexts.put(context)

    def unary(self, request: bytes, context: Any) -> bytes:
        self._note("unary", context)
        return request

    def collect(self, requests: Iterator[bytes], context: Any) -> bytes:
        self._note("collect", context)
        return b"|".join(requests)

    def tell(self, request: bytes, context: Any) -> Iterator[bytes]:
        self._note("tell", context)
        yield from (b"1", b"2")

    async def aunary(self, request: bytes, context: Any) -> bytes:
        return self.unary(request, context)

    async def acollect(self, requests: Any, context: Any) -> bytes:
        return self.collect(iter([request async for request in requests]), context)

    async def atell(self, request: bytes, context: Any) -> Any:
        for message in self.tell(request, context):
            yield message

    def handler(self) -> Any:
        a = "a" if self._aio else ""
        handlers: Any = {
            "Unary": grpc.unary_unary_rpc_method_handler(getattr(self, a + "unary")),
            "Collect": grpc.stream_unary_rpc_method_handler(getattr(self, a + "collect")),
            "Tell": grpc.unary_stream_rpc_method_handler(getattr(self, a + "tell")),
        }
        return grpc.method_handlers_generic_handler("test.Open", handlers)


@pytest.mark.parametrize("options", WIDE, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_an_undeclared_stream_passes_through(kind: str, options: Any) -> None:
    """With gRPC's own context, unlabelled, and as often as it arrives, once for the SDK (§4)."""
    service = Open(kind)
    with (
        rifl.Deduplicator("memory:", **options) as dedup,
        serve(kind, [service.handler()], dedup=dedup) as served,
        RawClient(served.address) as client,
        rifl.connect(served.address) as channel,
    ):
        metadata = (("rifl-bin", client.header(1)),)
        collected = read(client.channel.stream_unary(COLLECT).future(iter([b"a"]), 10, metadata))
        assert (collected.response, collected.outcome) == (b"a", "")
        assert channel.stream_unary(COLLECT)([b"a", b"b"], timeout=10) == b"a|b"
        assert list(channel.unary_stream(TELL)(b"", timeout=10)) == [b"1", b"2"]
        while not service.contexts.empty():
            assert not isinstance(service.contexts.get(), Noted)
        assert channel.unary_unary(UNARY)(b"u", timeout=10) == b"u"
        assert isinstance(service.contexts.get(), Noted)
        assert dedup.statistics().unacknowledged <= 1
    assert service.runs == ["collect", "collect", "tell", "unary"]


async def test_an_undeclared_stream_passes_through_the_aio_sdk() -> None:
    """The same for the asyncio channel (§4)."""
    service = Open("sync")
    with (
        rifl.Deduplicator("memory:") as dedup,
        serve("sync", [service.handler()], dedup=dedup) as served,
    ):
        async with rifl.aio.connect(served.address) as channel:
            assert await channel.stream_unary(COLLECT)(iter([b"a", b"b"]), timeout=10) == b"a|b"
            told = channel.unary_stream(TELL)(b"", timeout=10)
            assert [message async for message in told] == [b"1", b"2"]
    assert service.runs == ["collect", "tell"]


@pytest.mark.parametrize("kind", KINDS)
def test_one_that_is_sent_again_is_refused(kind: str) -> None:
    """A client that takes a stream for deduplicated must not run it twice (§3)."""
    service = Open(kind)
    with (
        rifl.Deduplicator("memory:") as dedup,
        serve(kind, [service.handler()], dedup=dedup) as served,
        RawClient(served.address) as client,
    ):
        metadata = (("rifl-bin", client.header(1, attempt=2)),)
        call = client.channel.stream_unary(COLLECT).future(whole([b"a"]), 10, metadata)
        assert read(call).refusal == ("FAILED_PRECONDITION", "NOT_DEDUPLICATED", "not-executed")
        told = client.channel.unary_stream(TELL)(b"a", 10, metadata)
        with pytest.raises(grpc.RpcError):
            list(told)
        assert told.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert service.runs == []


def test_a_key_on_an_undeclared_stream_is_refused() -> None:
    """It would be looked at by nobody (§3)."""
    service = Open("sync")
    with (
        rifl.Deduplicator("memory:", sessions_from="anyone") as dedup,
        serve("sync", [service.handler()], dedup=dedup) as served,
        rifl.connect(served.address, session="s") as channel,
        rifl.key("k"),
        pytest.raises(rifl.CallError) as caught,
    ):
        list(channel.unary_stream(TELL)(b"", timeout=10))
    assert (caught.value.reason, service.runs) == ("NOT_DEDUPLICATED", [])


class Watched:
    """Handlers of declared methods that tell what their context says."""

    def __init__(self) -> None:
        self.entered, self.leave = threading.Event(), threading.Event()
        self.said: list[Any] = []
        self.ended: list[str] = []

    def _look(self, context: Any, gone: bool) -> None:
        if hasattr(context, "is_active"):
            call_goes_on = context.is_active()
        else:
            call_goes_on = not (context.cancelled() or context.done())
        self.said.append((call_goes_on, gone))

    def _act(self, context: Any) -> None:
        assert context.add_callback(lambda: self.ended.append("ended")) is True
        self._look(context, rifl.caller_gone(context))
        self.entered.set()
        until(lambda: rifl.caller_gone(context), "the caller is gone")
        self._look(context, True)
        assert self.ended == []
        assert self.leave.wait(DEADLINE_S)

    def unary(self, request: bytes, context: Any) -> bytes:
        self._act(context)
        return b"done"

    def tell(self, request: bytes, context: Any) -> Iterator[bytes]:
        self._act(context)
        yield b"done"

    async def _aact(self, context: Any) -> None:
        def ended(own: Any) -> None:
            assert own.done()
            self.ended.append("ended")

        context.add_done_callback(ended)
        self._look(context, rifl.caller_gone(context))
        self.entered.set()
        while not rifl.caller_gone(context):
            await asyncio.sleep(0.005)
        self._look(context, True)
        assert self.ended == []
        while not self.leave.is_set():
            await asyncio.sleep(0.005)

    async def aunary(self, request: bytes, context: Any) -> bytes:
        await self._aact(context)
        return b"done"

    async def atell(self, request: bytes, context: Any) -> Any:
        await self._aact(context)
        yield b"done"


@pytest.mark.parametrize("form", ["Unary", "Tell"])
@pytest.mark.parametrize("kind", ["sync", "aio"])
def test_the_context_speaks_of_the_call_and_caller_gone_of_the_transport(
    kind: str, form: str
) -> None:
    """A call whose caller left goes on, and its answer can be claimed (§4)."""
    watched = Watched()
    a = "a" if kind == "aio" else ""
    handlers: Any = {
        "Unary": grpc.unary_unary_rpc_method_handler(getattr(watched, a + "unary")),
        "Tell": grpc.unary_stream_rpc_method_handler(getattr(watched, a + "tell")),
    }
    generic = grpc.method_handlers_generic_handler("test.Open", handlers)
    with (
        rifl.Deduplicator("memory:", methods={TELL: "plain"}) as dedup,
        serve(kind, [generic], dedup=dedup) as served,
        RawClient(served.address) as client,
    ):

        def call(attempt: int) -> Any:
            metadata = (("rifl-bin", client.header(1, attempt=attempt)),)
            if form == "Unary":
                return client.channel.unary_unary(UNARY).future(b"a", DEADLINE_S, metadata)
            return client.channel.unary_stream(TELL)(b"a", DEADLINE_S, metadata)

        first = call(1)
        assert watched.entered.wait(DEADLINE_S)
        first.cancel()
        until(lambda: len(watched.said) == 2, "the handler sees that its caller left")
        assert watched.said == [(True, False), (True, True)]
        watched.leave.set()
        until(lambda: watched.ended, "the call ends")
        again = call(2)
        assert (again.result() if form == "Unary" else list(again)) in (b"done", [b"done"])
    assert watched.ended == ["ended"]


@pytest.mark.parametrize("methods", ["*", "/test.Items/*"])
@pytest.mark.parametrize("kind", ["sync", "aio"])
def test_abandoned_subscriptions_end(tmp_path: Path, kind: str, methods: str) -> None:
    """In a real process: eight cancelled watches leave its threads free, and take no item (§4)."""
    address = f"127.0.0.1:{free_port()}"
    server = "tests.server.subscriptions_server"
    with (
        started(server, address, kind, methods, log=tmp_path / "log") as process,
        contextlib.ExitStack() as stack,
    ):
        assert process.line() == "serves"
        channel = stack.enter_context(rifl.connect(address))
        plain = stack.enter_context(grpc.insecure_channel(address))
        put = channel.unary_unary("/test.Items/Put")
        put(b"for whoever watches first", timeout=10)
        for side in (channel, plain):
            watches = [side.unary_stream("/test.Items/Watch")(b"", timeout=60) for _ in range(8)]
            assert [process.line() for _ in watches] == ["begins"] * 8
            for watch in watches:
                watch.cancel()
            assert [process.line() for _ in watches] == ["ends"] * 8
        # As a worker that comes back: it gets all that is put now.
        watch = channel.unary_stream("/test.Items/Watch")(b"", timeout=60)
        assert process.line() == "begins"
        for number in range(5):
            put(b"%d" % number, timeout=10)
        assert [next(watch) for _ in range(5)] == [b"%d" % number for number in range(5)]
        watch.cancel()
        assert process.line() == "ends"
