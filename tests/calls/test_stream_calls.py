"""Calls of streams are what gRPC's are: futures, and told to observers (DESIGN §4, §9)."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import grpc.aio
import pytest

import rifl
from rifl.testing import Fault
from tests.calls.services import Kinds, serving
from tests.helpers.waiting import DEADLINE_S, until

UNARY, COLLECT, COUNT, ECHO = (f"/t.Kinds/{name}" for name in ("Unary", "Collect", "Count", "Echo"))
DECLARED = dict.fromkeys((UNARY, COLLECT, COUNT), "plain")
PASSED = dict.fromkeys((UNARY, COLLECT, COUNT), None)


class Watching(rifl.Observer):
    """Keeps what it was told."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.ended: list[tuple[str, str]] = []

    def call_begins(self, method: str, metadata: Any) -> Any:
        self.begun.append(method)
        return (*metadata, ("traced", "yes")), method

    def call_ended(self, ended: Any, begun: Any) -> None:
        assert begun == ended.method
        assert ended.seconds >= 0
        self.ended.append((ended.method, ended.code))


class _Kinds(Kinds):
    """Also answers with errors, and remembers whether the observer's entry came."""

    def __init__(self) -> None:
        super().__init__()
        self.traced: list[bool] = []

    def _note(self, request: bytes, context: Any) -> None:
        self.traced.append(("traced", "yes") in tuple(context.invocation_metadata()))
        if request == b"fail":
            context.abort(grpc.StatusCode.NOT_FOUND, "no such thing")

    def unary(self, request: bytes, context: Any) -> bytes:
        self._note(request, context)
        return super().unary(request, context)

    def collect(self, requests: Iterator[bytes], context: Any) -> bytes:
        found = list(requests)
        self._note(found[0], context)
        return super().collect(iter(found), context)

    def count(self, request: bytes, context: Any) -> Iterator[bytes]:
        self._note(request, context)
        yield from super().count(request, context)


@pytest.fixture(scope="module", params=["declared", "passed-through"])
def service(request: Any) -> Iterator[Any]:
    """One server whose streams are deduplicated, and one that passes them through."""
    kinds = _Kinds()
    methods: Any = DECLARED if request.param == "declared" else PASSED
    with serving("sync", kinds, methods=methods) as served:
        served.kinds = kinds
        yield served


@pytest.mark.parametrize("leased", [True, False])
def test_an_observer_is_told_of_every_kind_of_call(service: Any, leased: bool) -> None:
    """Begin and end, of answers and errors, before there is a lease and after (DESIGN §9)."""
    watching = Watching()
    service.kinds.traced.clear()
    with service.connect(observer=watching) as channel:
        if leased:
            channel.session.open()
        calls = [
            (UNARY, lambda one: channel.unary_unary(UNARY)(one, timeout=10)),
            (UNARY, lambda one: channel.unary_unary(UNARY).future(one, timeout=10).result()),
            (COLLECT, lambda one: channel.stream_unary(COLLECT)(iter([one]), timeout=10)),
            (COLLECT, lambda one: channel.stream_unary(COLLECT).future(iter([one])).result()),
            (COUNT, lambda one: list(channel.unary_stream(COUNT)(one, timeout=10))),
        ]
        expected = []
        for method, call in calls:
            call(b"1")
            with pytest.raises(grpc.RpcError):
                call(b"fail")
            expected += [(method, "OK"), (method, "NOT_FOUND")]
        assert list(channel.stream_stream(ECHO)(iter([b"a"]), timeout=10)) == [b"a"]
        expected.append((ECHO, "OK"))
        until(lambda: len(watching.ended) == len(expected), "all ends are told")
    assert watching.ended == expected
    assert watching.begun == [method for method, _ in expected]
    assert all(service.kinds.traced)


@pytest.mark.parametrize("leased", [True, False])
async def test_an_observer_is_told_of_every_kind_of_aio_call(service: Any, leased: bool) -> None:
    """The same for asyncio; nothing hangs (DESIGN §9)."""
    watching = Watching()
    async with rifl.aio.connect(service.address, observer=watching) as channel:
        if leased:
            await channel.session.open()

        async def count(one: bytes) -> list[bytes]:
            return [message async for message in channel.unary_stream(COUNT)(one, timeout=10)]

        expected = []
        for method, call in (
            (UNARY, lambda one: channel.unary_unary(UNARY)(one, timeout=10)),
            (COLLECT, lambda one: channel.stream_unary(COLLECT)(iter([one]), timeout=10)),
            (COUNT, count),
        ):
            await call(b"1")
            with pytest.raises(grpc.aio.AioRpcError):
                await call(b"fail")
            expected += [(method, "OK"), (method, "NOT_FOUND")]
        echo = channel.stream_stream(ECHO)(iter([b"a"]), timeout=10)
        assert [message async for message in echo] == [b"a"]
        expected.append((ECHO, "OK"))
        assert await echo.code() is grpc.StatusCode.OK
    assert watching.ended == expected
    assert watching.begun == [method for method, _ in expected]


def test_a_response_stream_is_a_future_as_grpcs_is(service: Any) -> None:
    """Its end by result, exception, code, callbacks, whether it was read or not (DESIGN §4)."""
    with service.connect() as channel, grpc.insecure_channel(service.address) as bare:
        channel.session.open()
        for call in (channel.unary_stream(COUNT)(b"2"), bare.unary_stream(COUNT)(b"2")):
            assert isinstance(call, grpc.Call)
            assert isinstance(call, grpc.Future)
            assert not call.cancelled()
            told: list[Any] = []
            called = threading.Event()
            call.add_done_callback(lambda one, told=told: told.append(one))
            call.add_done_callback(lambda one, called=called: called.set())
            assert len(list(call)) == 2
            assert call.result(DEADLINE_S) is None or call.result() == b""
            assert call.exception(DEADLINE_S) is None
            assert call.traceback(DEADLINE_S) is None
            assert (call.done(), call.running(), call.cancelled()) == (True, False, False)
            assert call.code() is grpc.StatusCode.OK
            assert isinstance(call.debug_error_string(), str | None)
            assert called.wait(DEADLINE_S)
            assert told == [call]
            late: list[Any] = []
            call.add_done_callback(late.append)
            assert late == [call]


@pytest.mark.parametrize("leased", [True, False])
def test_an_error_of_a_response_stream_is_found_without_reading(service: Any, leased: bool) -> None:
    """As gRPC's, a call that nobody iterates over tells its end (DESIGN §4)."""
    with service.connect() as channel:
        if leased:
            channel.session.open()
        call = channel.unary_stream(COUNT)(b"fail", timeout=10)
        assert call.code() is grpc.StatusCode.NOT_FOUND
        assert call.details() == "no such thing"
        assert tuple(call.trailing_metadata()) is not None
        assert call.exception(DEADLINE_S).code() is grpc.StatusCode.NOT_FOUND
        with pytest.raises(grpc.RpcError, match="no such thing"):
            call.result(DEADLINE_S)
        assert call.traceback() is not None
        assert call.done()


def test_a_response_stream_that_was_cancelled_says_so(service: Any) -> None:
    """CANCELLED, though unread, and FutureCancelledError for who asks the future (DESIGN §4)."""
    with service.connect() as channel:
        channel.session.open()
        call = channel.unary_stream(COUNT)(b"3", timeout=10)
        assert next(call)
        ended = threading.Event()
        call.add_done_callback(lambda _: ended.set())
        assert call.cancel()
        assert ended.wait(DEADLINE_S)
        assert call.cancelled()
        assert call.done()
        assert call.code() is grpc.StatusCode.CANCELLED
        with pytest.raises(grpc.FutureCancelledError):
            call.result(DEADLINE_S)


def test_the_end_is_awaited_while_another_thread_reads() -> None:
    """Who waits for the code does not take messages from who reads (DESIGN §4)."""
    kinds = Kinds()
    with serving("sync", kinds, methods=DECLARED) as service, service.connect() as channel:
        channel.session.open()
        kinds.gate.clear()
        call = channel.unary_stream(COUNT)(b"3", timeout=DEADLINE_S)
        codes: list[Any] = []
        waiting = threading.Thread(target=lambda: codes.append(call.code()))
        waiting.start()
        with pytest.raises(grpc.FutureTimeoutError):
            call.result(timeout=0.01)
        kinds.gate.set()
        assert list(call) == [b"1.0", b"1.1", b"1.2"]
        waiting.join(DEADLINE_S)
        assert codes == [grpc.StatusCode.OK]


def test_an_end_that_is_awaited_is_resumed_to() -> None:
    """A stream that broke off goes on while somebody waits for its end, unread (DESIGN §4)."""
    kinds = Kinds()
    with serving("sync", kinds, methods=DECLARED) as service, service.connect() as channel:
        channel.session.open()
        service.faults.arm(Fault.DROP_ANSWER)
        call = channel.unary_stream(COUNT)(b"0", timeout=DEADLINE_S)
        assert call.code() is grpc.StatusCode.OK
        assert list(call) == []
    assert kinds.effects == [b"0"]


def test_a_stream_that_nobody_holds_is_collected() -> None:
    """Its callback at gRPC's call does not keep it (DESIGN §9)."""
    import weakref

    kinds = Kinds()
    with serving("sync", kinds, methods=DECLARED) as service, service.connect() as channel:
        channel.session.open()
        call = channel.unary_stream(COUNT)(b"3", timeout=DEADLINE_S)
        assert next(call)
        gone = weakref.ref(call)
        del call
        gc.collect()
        until(lambda: gone() is None, "the stream is collected")


@pytest.mark.parametrize("kind", ["unary_unary", "unary_stream", "stream_unary", "stream_stream"])
async def test_methods_may_be_named_by_bytes(service: Any, kind: str) -> None:
    """As gRPC takes them (DESIGN §1)."""
    method = {
        "unary_unary": UNARY,
        "unary_stream": COUNT,
        "stream_unary": COLLECT,
        "stream_stream": ECHO,
    }[kind].encode()
    request: Any = b"1" if kind.startswith("unary") else iter([b"1"])
    with service.connect() as channel:
        call = getattr(channel, kind)(method)
        found = list(call(request, timeout=10)) if kind.endswith("stream") else call(request)
        assert found
    async with rifl.aio.connect(service.address) as aio_channel:
        request = b"1" if kind.startswith("unary") else iter([b"1"])
        aio_call = getattr(aio_channel, kind)(method)(request, timeout=10)
        if kind.endswith("stream"):
            assert [message async for message in aio_call]
        else:
            assert await aio_call


def test_errors_of_ours_have_empty_metadata() -> None:
    """Never None: who reads an error iterates over them, as over gRPC's (DESIGN §1)."""
    with rifl.connect("127.0.0.1:1") as channel, pytest.raises(rifl.CallError) as caught:
        channel.unary_unary(UNARY)(b"", timeout=0.1)
    assert caught.value.trailing_metadata() == ()
    assert caught.value.initial_metadata() == ()
    assert rifl.CallError(grpc.StatusCode.ABORTED).trailing_metadata() == ()
