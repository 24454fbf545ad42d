"""``connect(metadata=)``: tokens of the client's own requests, and what a refusal says (§5)."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import grpc.aio
import pytest

import rifl
import rifl.aio
from rifl.core import ReentrantCall
from tests.helpers.waiting import until

UNARY = "/t.Own/Unary"
LEASES, OUTCOMES = "/lease_server.v1.LeaseServer/", "/rifl.v1.Outcomes/"
TOKEN = [("authorization", "Bearer of the service")]
CALLERS = [("authorization", "Bearer of the caller")]
OPENS = "drawn by: openssl rand -hex 32"


class _NoException(BaseException):
    """What libraries raise that ``except Exception`` may not catch."""


class _Gate:
    """Lets in what has a token, and notes the methods; of a sync server."""

    def __init__(self) -> None:
        self.let_in: list[str] = []

    def judge(self, handler: Any, details: Any) -> Any:
        if "authorization" in dict(details.invocation_metadata):
            self.let_in.append(details.method)
            return handler
        stream = handler.request_streaming
        return (grpc.stream_stream_rpc_method_handler if stream else _unary)(self.refusal())

    def refusal(self) -> Any:
        def refuse(request: Any, context: Any) -> Any:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "no token")

        return refuse


_unary = grpc.unary_unary_rpc_method_handler


class _SyncGate(_Gate, grpc.ServerInterceptor):
    def intercept_service(self, continuation: Any, details: Any) -> Any:
        return self.judge(continuation(details), details)


class _AioGate(_Gate, grpc.aio.ServerInterceptor):
    def refusal(self) -> Any:
        async def refuse(request: Any, context: Any) -> Any:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "no token")

        return refuse

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        return self.judge(await continuation(details), details)


class _Served:
    """A gated server, on threads or on a loop of a thread."""

    def __init__(self, kind: str, term_s: float) -> None:
        self.effects: list[bytes] = []
        self.dedup = rifl.Deduplicator("memory:", term_s=term_s)
        self.gate: Any = _SyncGate() if kind == "sync" else _AioGate()
        self.address = ""

    def handlers(self, unary: Any) -> Any:
        return grpc.method_handlers_generic_handler("t.Own", {"Unary": _unary(unary)})

    def run(self, request: bytes, context: Any) -> bytes:
        self.effects.append(request)
        return b"%d" % len(self.effects)

    async def arun(self, request: bytes, context: Any) -> bytes:
        return self.run(request, context)

    @contextlib.contextmanager
    def on_threads(self) -> Iterator[None]:
        server = grpc.server(
            ThreadPoolExecutor(4), interceptors=[self.gate, self.dedup.interceptor()]
        )
        server.add_generic_rpc_handlers((self.handlers(self.run),))
        self.dedup.add_to_server(server)
        self.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        try:
            yield
        finally:
            server.stop(None).wait()
            self.dedup.close()

    @contextlib.contextmanager
    def on_a_loop(self) -> Iterator[None]:
        ready, stop = threading.Event(), asyncio.Event()
        loop = asyncio.new_event_loop()

        async def main() -> None:
            around = [self.gate, self.dedup.aio_interceptor()]
            server = grpc.aio.server(interceptors=around)
            self.dedup.add_to_server(server)
            server.add_generic_rpc_handlers((self.handlers(self.arun),))
            self.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
            await server.start()
            ready.set()
            await stop.wait()
            await server.stop(None)
            await self.dedup.aclose()

        thread = threading.Thread(target=loop.run_until_complete, args=(main(),))
        thread.start()
        assert ready.wait(30)
        try:
            yield
        finally:
            loop.call_soon_threadsafe(stop.set)
            thread.join()
            loop.close()


@contextlib.contextmanager
def gated(kind: str, term_s: float = 60.0) -> Iterator[_Served]:
    served = _Served(kind, term_s)
    with served.on_threads() if kind == "sync" else served.on_a_loop():
        yield served


class _Asked:
    """The function: notes what it is asked for, and raises what it is told to."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.raises: BaseException | None = None
        self.gives: Any = TOKEN

    def __call__(self, method: str) -> Any:
        self.names.append(method)
        if self.raises is not None:
            raise self.raises
        return self.gives

    async def aio(self, method: str) -> Any:
        await asyncio.sleep(0)
        return self(method)


@pytest.mark.parametrize("kind", ["sync", "aio"])
async def test_a_token_per_call_goes_with_a_function_for_the_clients_own(kind: str) -> None:
    """Grant, renewals, the session's and Release are let in; each attempt asks anew (§5)."""
    asked, renewing = _Asked(), {f"{LEASES}Renew", f"{LEASES}KeepAlive"}
    with gated(kind, term_s=1.0) as served:
        with rifl.connect(served.address, metadata=asked) as channel:
            unary = channel.unary_unary(UNARY)
            assert unary(b"x", timeout=30, metadata=CALLERS) == b"1"
            until(lambda: renewing & set(asked.names), "a renewal")
        assert f"{LEASES}Grant" in asked.names
        until(lambda: f"{LEASES}Release" in served.gate.let_in, "the release")
        asked.names.clear()
        async with rifl.aio.connect(served.address, metadata=asked.aio) as aio_channel:
            assert await aio_channel.unary_unary(UNARY)(b"x", timeout=30, metadata=CALLERS) == b"2"
            while not renewing & set(asked.names):
                await asyncio.sleep(0.01)
        assert asked.names[0] == f"{LEASES}Grant"
        assert f"{LEASES}Release" in served.gate.let_in
        assert UNARY not in asked.names


@pytest.mark.parametrize("kind", ["sync", "aio"])
async def test_a_refused_request_of_the_client_is_named_with_what_helps(kind: str) -> None:
    """Which call was refused, and three ways out; the call was not executed (DESIGN §5)."""
    for session, name in ((None, "Grant"), ("s", "OpenSession")):
        opening = {} if session is None else {"session": session, "secret": OPENS}
        more = [*CALLERS, *([] if session is None else [rifl.key("k")])]
        with gated(kind) as served:
            errors: list[rifl.CallError] = []
            with rifl.connect(served.address, **opening) as channel:
                try:
                    channel.unary_unary(UNARY)(b"x", timeout=30, metadata=more)
                except rifl.CallError as error:
                    errors.append(error)
            async with rifl.aio.connect(served.address, **opening) as aio_channel:
                try:
                    await aio_channel.unary_unary(UNARY)(b"x", timeout=30, metadata=more)
                except rifl.CallError as error:
                    errors.append(error)
            assert served.effects == []
        assert [error.code() for error in errors] == [grpc.StatusCode.UNAUTHENTICATED] * 2
        for error in errors:
            assert f"{LEASES}{name}" in str(error)
            for way in ("metadata=", "interceptors=", "composite"):
                assert way in str(error)
            if session is None:
                assert error.outcome is rifl.Outcome.NOT_EXECUTED


@pytest.mark.parametrize(
    ("raised", "gives"),
    [
        (OSError("the token server is away"), TOKEN),
        (_NoException("a library's"), TOKEN),
        (None, [("authorization",)]),
        (None, [("authorization", 7)]),
        (None, [("Not A Name", "x")]),
        (None, 7),
    ],
)
async def test_what_the_function_raises_is_the_calls_error(raised: Any, gives: Any) -> None:
    """At once, not executed; the next call asks again, and the lease's keeper lives (DESIGN §5)."""
    with gated("sync") as served:
        asked = _Asked()
        with rifl.connect(served.address, metadata=asked) as channel:
            asked.raises, asked.gives = raised, gives
            for call in (
                lambda: channel.unary_unary(UNARY)(b"x", timeout=60, metadata=CALLERS),
                lambda: channel.session.open(timeout=60),
            ):
                with pytest.raises(rifl.CallError, match=r"connect\(metadata=\) raised") as caught:
                    call()
                assert caught.value.outcome is rifl.Outcome.NOT_EXECUTED
                assert "composite" not in str(caught.value)
            asked.raises, asked.gives = None, TOKEN
            assert channel.unary_unary(UNARY)(b"x", timeout=60, metadata=CALLERS) == b"1"
        asked = _Asked()
        async with rifl.aio.connect(served.address, metadata=asked.aio) as aio_channel:
            unary = aio_channel.unary_unary(UNARY)
            asked.raises, asked.gives = raised, gives
            with pytest.raises(rifl.CallError, match=r"connect\(metadata=\) raised") as caught:
                await unary(b"x", timeout=60, metadata=CALLERS)
            assert caught.value.outcome is rifl.Outcome.NOT_EXECUTED
            asked.raises, asked.gives = None, TOKEN
            assert await unary(b"x", timeout=60, metadata=CALLERS) == b"2"


def test_a_function_that_exits_ends_neither_the_thread_nor_the_process() -> None:
    """SystemExit in the lease's thread: the request is tried again (DESIGN §5)."""
    asked = _Asked()
    asked.raises = SystemExit("bye")
    with gated("sync") as served, rifl.connect(served.address, metadata=asked) as channel:
        future = channel.unary_unary(UNARY).future(b"x", timeout=60, metadata=CALLERS)
        until(lambda: asked.names, "the function was asked")
        asked.raises = None
        assert future.result() == b"1"


async def test_a_function_that_was_cancelled_in_aio_is_a_failed_one() -> None:
    """CancelledError of its own making leaves the keeper's task alive (DESIGN §5)."""
    asked = _Asked()
    with gated("sync") as served:
        async with rifl.aio.connect(served.address, metadata=asked.aio) as channel:
            asked.raises = asyncio.CancelledError()
            with pytest.raises(rifl.CallError, match="raised CancelledError"):
                await channel.unary_unary(UNARY)(b"x", timeout=60, metadata=CALLERS)
            asked.raises = None
            assert await channel.unary_unary(UNARY)(b"x", timeout=60, metadata=CALLERS) == b"1"


def test_the_function_runs_under_no_lock_and_may_hang() -> None:
    """Meanwhile other threads use the channel, whose calls end in time; close does not wait."""
    hung, gate, asked = threading.Event(), threading.Event(), _Asked()

    def hanging(method: str) -> Any:
        hung.set()
        assert gate.wait(60)
        return asked(method)

    with gated("sync") as served:
        channel = rifl.connect(served.address, metadata=hanging)
        late = channel.unary_unary(UNARY).future(b"x", timeout=0.5, metadata=CALLERS)
        assert hung.wait(60)
        assert channel.session.client_id is None
        error = late.exception()
        assert isinstance(error, rifl.CallError)
        assert error.outcome is rifl.Outcome.NOT_EXECUTED
        channel.close()
        gate.set()
    assert served.effects == []


class _Calling:
    """The function: calls its own channel, and notes what comes of it."""

    def __init__(self) -> None:
        self.channel: Any = None
        self.refused: list[rifl.CallError] = []
        self.done: list[bytes] = []

    def __call__(self, method: str) -> Any:
        within = self.channel.unary_unary(UNARY)
        ways = [
            lambda: within(b"within", metadata=CALLERS),
            lambda: within.future(b"within", metadata=CALLERS).result(),
            lambda: self.channel.batch(UNARY, [rifl.BatchItem(b"within")])[0].raise_for_status(),
            self.channel.session.open,
        ]
        if not method.endswith("/Grant"):
            self.done.append(ways[0]())
            return TOKEN
        for way in ways:
            try:
                way()
            except rifl.CallError as error:
                self.refused.append(error)
        return TOKEN

    async def aio(self, method: str) -> Any:
        within = self.channel.unary_unary(UNARY)
        if not method.endswith("/Grant"):
            self.done.append(await within(b"within", metadata=CALLERS))
            return TOKEN

        async def call() -> Any:
            return await within(b"within", metadata=CALLERS)

        async def batch() -> None:
            results = await self.channel.batch(UNARY, [rifl.BatchItem(b"within")])
            results[0].raise_for_status()

        for way in (call(), asyncio.create_task(call()), batch(), self.channel.session.open()):
            try:
                await way
            except rifl.CallError as error:
                self.refused.append(error)
        return TOKEN


_PATIENT = rifl.RetryPolicy(max_elapsed_s=None)


@pytest.mark.parametrize("kind", ["sync", "aio"])
async def test_a_function_that_calls_its_own_channel_waits_for_no_lease(kind: str) -> None:
    """It would wait for itself: refused, nothing sent; with a lease it is done (DESIGN §9)."""
    with gated(kind, term_s=1.0) as served:
        calling = _Calling()
        with rifl.connect(served.address, metadata=calling, retry=_PATIENT) as channel:
            calling.channel = channel
            first = channel.unary_unary(UNARY).future(b"x", metadata=CALLERS)
            assert first.result(timeout=60) == b"1"
            until(lambda: calling.done, "a renewal's call is done")
        _check_refused(calling, 4)
        calling = _Calling()
        async with (
            asyncio.timeout(60),
            rifl.aio.connect(served.address, metadata=calling.aio, retry=_PATIENT) as aio_channel,
        ):
            calling.channel = aio_channel
            assert await aio_channel.unary_unary(UNARY)(b"x", metadata=CALLERS)
            while not calling.done:
                await asyncio.sleep(0.01)
        _check_refused(calling, 4)


def _check_refused(calling: _Calling, count: int) -> None:
    assert len(calling.refused) == count
    for error in calling.refused:
        assert isinstance(error, ReentrantCall)
        assert error.outcome is rifl.Outcome.NOT_EXECUTED
        assert "connect(metadata=)" in str(error)


async def test_resolutions_and_the_sessions_end_carry_it_too() -> None:
    """Asked for with their own names; an error of the function is theirs (DESIGN §4, §5)."""
    asked = _Asked()
    with gated("sync") as served:
        opening = {"session": "s", "secret": OPENS}
        with rifl.connect(served.address, metadata=asked) as channel:
            assert channel.unary_unary(UNARY)(b"x", timeout=30, metadata=CALLERS) == b"1"
            with pytest.raises(rifl.CallError) as refused:
                channel.unary_unary(UNARY)(b"y", timeout=30)
            assert refused.value.outcome is rifl.Outcome.UNKNOWN
            rpc_id = refused.value.rpc_id
            assert rpc_id is not None
            asked.raises = OSError("away")
            with pytest.raises(rifl.CallError, match="Resolve was not sent"):
                channel.session.resolve(rpc_id, timeout=30)
            asked.raises = None
            found = channel.session.resolve(rpc_id, timeout=30)
            assert found.outcome is rifl.Outcome.NOT_EXECUTED
            assert asked.names[-1] == f"{OUTCOMES}Resolve"
        with rifl.connect(served.address, metadata=asked, **opening) as channel:
            channel.session.open(timeout=30)
            channel.session.close(timeout=30)
            assert asked.names[-1] == f"{LEASES}CloseSession"
        async with rifl.aio.connect(
            served.address, metadata=asked.aio, session="t", secret=OPENS
        ) as aio_channel:
            await aio_channel.session.open(timeout=30)
            await aio_channel.session.close(timeout=30)
            assert asked.names[-1] == f"{LEASES}CloseSession"


def test_a_function_of_the_wrong_kind_is_refused_at_once() -> None:
    """A coroutine function for threads, or entries in place of a function (DESIGN §5)."""
    with pytest.raises(ValueError, match=r"rifl\.aio"):
        rifl.connect("127.0.0.1:1", metadata=_Asked().aio)
    with pytest.raises(ValueError, match="function of the method"):
        rifl.connect("127.0.0.1:1", metadata=TOKEN)
