"""Streams through our own client: retried, resumed, bounded (DESIGN §4)."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import grpc
import pytest

import rifl
from _rifl_ground import owned_lock
from rifl._client.resending import AioResending, Resending, resumed
from rifl.core import OutcomeUnknown
from rifl.core._calling.stream_attempts import Incomplete
from rifl.v1 import rifl_pb2
from tests.calls.services import STREAMS, Kinds, serving
from tests.helpers.waiting import until

COLLECT, COUNT, ECHO = "/t.Kinds/Collect", "/t.Kinds/Count", "/t.Kinds/Echo"
KINDS = ("sync", "aio")


class Breaking(grpc.ServerInterceptor):
    """Breaks the streams of first attempts off, as a lost connection does."""

    def __init__(self, after: int) -> None:
        self.after = after
        self.attempts = 0

    def intercept_service(self, continuation: Any, details: Any) -> Any:
        handler = continuation(details)
        if handler is None or not details.method.startswith("/t."):
            return handler
        self.attempts += 1
        if self.attempts > 1:
            return handler
        if handler.response_streaming:

            def broken_stream(request: Any, context: Any) -> Iterator[Any]:
                for at, message in enumerate(handler.unary_stream(request, context)):
                    if at == self.after:
                        context.abort(grpc.StatusCode.UNAVAILABLE, "connection lost")
                    yield message

            return grpc.unary_stream_rpc_method_handler(broken_stream)

        def lost_answer(requests: Any, context: Any) -> Any:
            handler.stream_unary(requests, context)
            context.set_trailing_metadata(())
            context.abort(grpc.StatusCode.UNAVAILABLE, "connection lost")

        return grpc.stream_unary_rpc_method_handler(lost_answer)


@contextlib.contextmanager
def broken(kinds: Kinds, after: int = 2, **options: Any) -> Iterator[tuple[str, Breaking]]:
    from concurrent.futures import ThreadPoolExecutor

    breaking = Breaking(after)
    with rifl.Deduplicator("memory:", methods=STREAMS, **options) as dedup:
        server = grpc.server(ThreadPoolExecutor(8), interceptors=[breaking, dedup.interceptor()])
        kinds.adder("sync")(server)
        dedup.add_to_server(server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        yield f"127.0.0.1:{port}", breaking
        server.stop(None).wait()


def test_a_request_stream_whose_answer_was_lost_is_sent_again() -> None:
    """One effect, and the first answer (DESIGN §1)."""
    kinds = Kinds()
    with broken(kinds) as (address, breaking), rifl.connect(address) as channel:
        read_once = iter([b"a", b"b"])
        assert channel.stream_unary(COLLECT)(read_once, timeout=10) == b"1"
        assert breaking.attempts == 2
        future = channel.stream_unary(COLLECT).future([b"c"], timeout=10)
        assert future.result() == b"2"
    assert kinds.effects == [b"a|b", b"c"]


def test_a_request_stream_too_long_to_keep_is_an_unknown_outcome(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is kept to be sent again is bounded; beyond it nothing is guessed (DESIGN §9)."""
    monkeypatch.setattr(Resending.__init__, "__defaults__", (10,))
    kinds = Kinds()
    with broken(kinds) as (address, _), rifl.connect(address) as channel:
        with pytest.raises(rifl.CallError) as caught:
            channel.stream_unary(COLLECT)([b"a" * 20, b"b" * 20], timeout=10)
        assert caught.value.outcome is rifl.Outcome.UNKNOWN
    assert len(kinds.effects) == 1


async def test_a_request_stream_too_long_to_keep_is_unknown_on_aio(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same for asyncio: that nothing can be sent again is not a server's word (DESIGN §9)."""
    monkeypatch.setattr(AioResending.__init__, "__defaults__", (10,))
    kinds = Kinds()
    with broken(kinds) as (address, _):
        async with rifl.aio.connect(address) as channel:
            with pytest.raises(rifl.CallError, match="too long") as caught:
                await channel.stream_unary(COLLECT)(iter([b"a" * 20, b"b" * 20]), timeout=10)
        assert (caught.value.reason, caught.value.outcome) == ("", rifl.Outcome.UNKNOWN)
        assert caught.value.rpc_id is not None
    assert len(kinds.effects) == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("messages", [0, 2])
def test_an_iterator_that_raises_ends_its_call(kind: str, messages: int) -> None:
    """The error says so, has the iterator's own as its cause, and names a call that can be asked
    about; the server is not blamed, and the handler never sees half a stream (DESIGN §3, §4)."""
    kinds = Kinds()
    broke = ValueError("mine")

    def given() -> Iterator[bytes]:
        for _ in range(messages):
            yield b"a"
        raise broke

    async def given_on_a_loop() -> AsyncIterator[bytes]:
        for message in given():
            yield message

    async def call_on_a_loop(address: str, given: Any) -> Any:
        async with rifl.aio.connect(address) as channel:
            with pytest.raises(rifl.CallError) as caught:
                await channel.stream_unary(COLLECT)(given, timeout=10)
            return caught.value, await channel.session.resolve(caught.value.rpc_id, timeout=10)

    with serving("sync", kinds) as service:
        if kind == "sync":
            with rifl.connect(service.address) as channel:
                with pytest.raises(rifl.CallError) as caught:
                    channel.stream_unary(COLLECT)(given(), timeout=10)
                found = channel.session.resolve(caught.value.rpc_id, timeout=10)
            ended = [(caught.value, found)]
        else:
            ended = [
                asyncio.run(call_on_a_loop(service.address, iterator))
                for iterator in (given(), given_on_a_loop())
            ]
    for error, found in ended:
        assert (error.reason, error.outcome) == ("", rifl.Outcome.UNKNOWN)
        assert error.original_code is grpc.StatusCode.UNKNOWN
        assert "Exception iterating requests" in error.details()
        assert error.__cause__ is broke
        assert found.outcome is rifl.Outcome.NOT_EXECUTED
    assert kinds.effects == []


def test_a_response_stream_that_broke_off_is_resumed() -> None:
    """Each message is seen once, in order, from one run of the handler (DESIGN §4)."""
    kinds = Kinds()
    with broken(kinds) as (address, breaking), rifl.connect(address) as channel:
        call = channel.unary_stream(COUNT)(b"5", timeout=10)
        assert list(call) == [b"1.0", b"1.1", b"1.2", b"1.3", b"1.4"]
        assert (breaking.attempts, call.code()) == (2, grpc.StatusCode.OK)
        assert channel._client.session.idle
    assert kinds.effects == [b"5"]


async def test_streams_are_retried_and_resumed_aio() -> None:
    """The same for asyncio, fed by iterators and by write (DESIGN §4)."""
    kinds = Kinds()
    with broken(kinds) as (address, _):
        async with rifl.aio.connect(address) as channel:
            counted = channel.unary_stream(COUNT)(b"5", timeout=10)
            assert [message async for message in counted] == [b"1.%d" % at for at in range(5)]
            assert await counted.code() is grpc.StatusCode.OK
    with broken(kinds) as (address, _):
        async with rifl.aio.connect(address) as channel:
            assert await channel.stream_unary(COLLECT)(iter([b"a", b"b"]), timeout=10) == b"2"
            call = channel.stream_unary(COLLECT)(timeout=10)
            await call.write(b"c")
            await call.write(b"d")
            await call.done_writing()
            assert await call == b"3"
    assert kinds.effects == [b"5", b"a|b", b"c|d"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_that_is_left_frees_its_place(kind: str) -> None:
    """Leaving a response stream sets its call aside as unresolved, and no more (DESIGN §4)."""
    kinds = Kinds()
    with serving(kind, kinds) as service, rifl.connect(service.address) as channel:
        for message in channel.unary_stream(COUNT)(b"5", timeout=10):
            assert message == b"1.0"
            break
        cancelled = channel.unary_stream(COUNT)(b"5", timeout=10)
        assert next(cancelled) == b"2.0"
        assert cancelled.cancel()
        with pytest.raises(rifl.CallError) as caught:
            list(cancelled)
        assert caught.value.code() is grpc.StatusCode.CANCELLED
        session = channel._client.session
        # What was left is set aside by another thread: no finalizer takes a lock.
        until(lambda: len(session._unresolved) == 2, "both are set aside")
        assert list(channel.stream_stream(ECHO)(iter([b"a"]), timeout=10)) == [b"a"]


def test_a_keyed_stream_is_one_call() -> None:
    """Keys name streams as they name unary calls (DESIGN §3)."""
    kinds = Kinds()
    with serving("sync", kinds) as service, service.connect(session="s") as channel:
        with rifl.key("k"):
            assert channel.stream_unary(COLLECT)([b"a"], timeout=10) == b"1"
            assert channel.stream_unary(COLLECT)([b"a"], timeout=10) == b"1"
        with rifl.key("c"):
            for _ in range(2):
                assert list(channel.unary_stream(COUNT)(b"2", timeout=10)) == [b"2.0", b"2.1"]
    assert kinds.effects == [b"a", b"2"]


def test_a_stream_is_never_ended_short() -> None:
    """An attempt that lacks the beginning breaks; it does not look complete (DESIGN §9)."""
    resending = Resending(iter([b"a" * 9, b"b" * 9]), None, limit=1)
    first = resending.attempt()
    assert next(first) == b"a" * 9
    with pytest.raises(rifl.CallError):
        resending.check()
    with pytest.raises(Incomplete):
        list(resending.attempt())
    assert list(first) == [b"b" * 9]


def test_the_applications_iterator_is_read_once_by_all_attempts() -> None:
    """Two attempts at once get the same messages (DESIGN §4)."""
    resending = Resending(iter([b"%d" % at for at in range(200)]), None)
    got: list[list[bytes]] = []
    threads = [
        threading.Thread(target=lambda: got.append(list(resending.attempt()))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert got == [[b"%d" % at for at in range(200)]] * 3


def test_an_attempt_waits_for_a_source_that_takes_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as the first attempt's thread is in it: the application may be slow (DESIGN §4)."""
    monkeypatch.setattr(owned_lock, "LONGEST_S", 0.02)
    asked, goes_on = threading.Event(), threading.Event()

    def source() -> Iterator[bytes]:
        asked.set()
        assert goes_on.wait(60)
        yield b"a"

    resending = Resending(source(), None)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(lambda: list(resending.attempt()))
        assert asked.wait(60)
        second = pool.submit(lambda: list(resending.attempt()))
        # What raises does so after the bound.
        assert wait([second], timeout=0.2).not_done
        goes_on.set()
        assert first.result(60) == second.result(10) == [b"a"]


async def test_the_same_on_a_loop() -> None:
    """Two attempts at once get the same messages, on an event loop (DESIGN §4)."""
    resending = AioResending(iter([b"a", b"b", b"c"]), None)

    async def all_of() -> list[bytes]:
        return [message async for message in resending.attempt()]

    assert await asyncio.gather(all_of(), all_of()) == [[b"a", b"b", b"c"]] * 2


def test_a_resumed_header_is_one_header() -> None:
    """``received`` joins what the header says already (DESIGN §3)."""
    header = rifl_pb2.CallHeader(client_id=7, seq=3).SerializeToString()
    entry = resumed(("rifl-bin", header), 4)
    assert entry is not None
    parsed = rifl_pb2.CallHeader.FromString(entry[1])
    assert (parsed.client_id, parsed.seq, parsed.received) == (7, 3, 4)
    assert resumed(("rifl-bin", header), 0) == ("rifl-bin", header)
    assert issubclass(OutcomeUnknown, Exception)


class Watching(grpc.StreamUnaryClientInterceptor):  # type: ignore[type-arg]
    """Notes what leaves."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def intercept_stream_unary(self, continuation: Any, details: Any, requests: Any) -> Any:
        def noted() -> Iterator[bytes]:
            for request in requests:
                self.sent.append(request)
                yield request

        return continuation(details, noted())


def test_the_end_marker_is_sent_where_the_method_is_deduplicated() -> None:
    """Other methods get the application's messages only (DESIGN §4, §5)."""
    kinds, watching = Kinds(), Watching()
    plain: dict[str, Any] = {COLLECT: None}
    with (
        serving("sync", kinds) as service,
        rifl.connect(service.address, interceptors=[watching]) as channel,
    ):
        assert channel.stream_unary(COLLECT)(iter([b"a"]), timeout=10) == b"1"
        assert watching.sent == [b"a", b"\7rifl-end" + (1).to_bytes(8, "big")]
    watching.sent.clear()
    with (
        serving("sync", kinds, methods=plain) as service,
        rifl.connect(service.address, interceptors=[watching]) as channel,
    ):
        assert channel.stream_unary(COLLECT)(iter([b"c"]), timeout=10) == b"2"
        assert watching.sent == [b"c"]


@pytest.mark.parametrize("kind", ["sync", "aio", "written"])
def test_a_message_that_would_end_its_stream_is_never_sent(kind: str) -> None:
    """The server would take what is before the application's own copy of the marker for the whole
    stream: the call ends with an error that says so, and has no effect (DESIGN §4)."""
    kinds = Kinds()
    marker = b"\7rifl-end" + (1).to_bytes(8, "big")
    sent = [b"a", marker, b"b"]

    async def call_on_a_loop(address: str) -> None:
        async with rifl.aio.connect(address) as channel:
            if kind == "aio":
                await channel.stream_unary(COLLECT)(iter(sent), timeout=10)
                return
            call = channel.stream_unary(COLLECT)(timeout=10)
            for message in sent:
                await call.write(message)

    def call(channel: Any, address: str) -> None:
        if kind == "sync":
            channel.stream_unary(COLLECT)(iter(sent), timeout=10)
        else:
            asyncio.run(call_on_a_loop(address))

    with serving("sync", kinds) as service, rifl.connect(service.address) as channel:
        with pytest.raises(rifl.CallError, match=r"message 1 .* marker") as caught:
            call(channel, service.address)
        assert caught.value.outcome is rifl.Outcome.UNKNOWN
        # Elsewhere it is a message like others, whichever attempt sends it.
        elsewhere = iter([marker, b"b"])
        assert channel.stream_unary(COLLECT)(elsewhere, timeout=10) == b"1"
    assert kinds.effects == [marker + b"|b"]


async def test_the_same_marker_on_aio() -> None:
    """Streams from iterators and by ``write`` end with it (DESIGN §4)."""
    kinds = Kinds()
    with serving("aio", kinds) as service:
        async with rifl.aio.connect(service.address) as channel:
            call = channel.stream_unary(COLLECT)(timeout=10)
            await call.write(b"a")
            await call.done_writing()
            assert await call == b"1"

            async def messages() -> Any:
                yield b"b"
                yield b"c"

            assert await channel.stream_unary(COLLECT)(messages(), timeout=10) == b"2"
    assert kinds.effects == [b"a", b"b|c"]
