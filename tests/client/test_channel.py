"""Particulars of one of the channels: TLS, forks, threads, stubs."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import subprocess
import sys
import threading
import weakref
from concurrent import futures
from typing import Any

import grpc
import pytest
import trustme
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

import lease_server
import rifl
import rifl.aio
from rifl._client.aio_channel import AioChannel
from rifl._client.errors import CallError
from rifl.core import Outcome
from tests.client.conftest import FAST, Connect
from tests.client.protocol_server import ECHO, Arrival, ProtocolServer, label


def flaky(arrival: Arrival, context: grpc.ServicerContext) -> bytes:
    """Lose each first attempt."""
    if arrival.attempt == 1:
        context.abort(grpc.StatusCode.UNAVAILABLE, "lost")
    label(context, "executed")
    return arrival.request


def test_mutual_tls(connect: Connect) -> None:
    """``credentials`` make the channel, its leases included, secure."""
    authority = trustme.CA()
    server_cert = authority.issue_cert("127.0.0.1")
    client_cert = authority.issue_cert("client@example.org")
    root = authority.cert_pem.bytes()
    credentials = grpc.ssl_server_credentials(
        [(server_cert.private_key_pem.bytes(), server_cert.cert_chain_pems[0].bytes())],
        root,
        require_client_auth=True,
    )
    with ProtocolServer(flaky, credentials=credentials) as server:
        caller = connect(
            server.target,
            credentials=grpc.ssl_channel_credentials(
                root, client_cert.private_key_pem.bytes(), client_cert.cert_chain_pems[0].bytes()
            ),
        )
        assert caller.call(b"secret", timeout=20) == b"secret"


class _NoKeepAlive(grpc.aio.ServerInterceptor):
    """As a server that asks for a token, which an interceptor adds to unary calls alone."""

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        if not details.method.endswith("/KeepAlive"):
            return await continuation(details)

        async def refuse(_: Any, context: Any) -> None:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "no token")

        return grpc.stream_stream_rpc_method_handler(refuse)


@pytest.mark.parametrize(
    "kind", ["grpc.server", "grpc.aio.server", "no room for streams", "no token for streams"]
)
def test_the_real_lease_service_and_a_generated_stub(connect: Connect, kind: str) -> None:
    """A generated stub works unchanged over real leases, unary and streamed (DESIGN §5)."""
    # By a clock that stands still: what the machine does meanwhile ends no lease.
    authority = lease_server.LeaseAuthority(
        lease_server.MemoryLeaseStorage(), term_s=0.9, clock=lambda: 0.0
    )
    servicer = health.HealthServicer()
    ready: futures.Future[tuple[int, Any]] = futures.Future()
    if kind == "grpc.server":
        server = grpc.server(futures.ThreadPoolExecutor(8))
        rifl.add_lease_service(server, authority, deduplicated=["*"])
        health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        ready.set_result((port, lambda: server.stop(None).wait()))
    else:

        async def serve() -> None:
            refusing = [_NoKeepAlive()] if kind == "no token for streams" else []
            server = grpc.aio.server(interceptors=refusing)
            room = 0 if kind == "no room for streams" else 1000
            rifl.add_lease_service(server, authority, deduplicated=["*"], max_streams_per_peer=room)
            health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
            port = server.add_insecure_port("127.0.0.1:0")
            await server.start()
            stop = asyncio.Event()
            loop = asyncio.get_running_loop()
            ready.set_result((port, lambda: loop.call_soon_threadsafe(stop.set)))
            await stop.wait()
            await server.stop(None)

        threading.Thread(target=asyncio.run, args=(serve(),)).start()
    port, stop = ready.result(20)
    try:
        caller = connect(f"127.0.0.1:{port}")
        session = caller.channel._client.session
        grant, streams = session.granted, []

        def granted(*told: Any) -> Any:
            # The first renewal, which may find no stream, can come at once.
            lease = grant(*told)
            streams.append(lease.streams)
            return lease

        session.granted = granted
        stub = caller.do(health_pb2_grpc.HealthStub, caller.channel)
        request = health_pb2.HealthCheckRequest()

        async def check() -> Any:
            return await stub.Check(request)

        reply = stub.Check(request) if caller.kind == "sync" else caller.on_loop(check())
        assert reply.status == health_pb2.HealthCheckResponse.SERVING
        client_id = caller.session.client_id
        lease = caller.channel._client.session.lease
        assert streams == [kind != "grpc.server"]
        first = lease.expires_at
        # Two terms of heartbeats: the id is still ours.
        condition = threading.Event()
        while lease.expires_at < first + 2 * lease.term_s:
            assert not condition.wait(0.01)
        assert caller.session.client_id == client_id
        assert lease.streams == (kind == "grpc.aio.server")
    finally:
        stop()


def test_with_call_and_future_offer_grpcs_call() -> None:
    """``with_call`` and ``future`` give calls with all of gRPC's methods."""
    with (
        ProtocolServer(flaky) as server,
        rifl.connect(server.target, retry=FAST) as channel,
    ):
        method = channel.unary_unary(ECHO)
        for call in (method.with_call(b"x", timeout=20)[1], method.future(b"x", timeout=20)):
            assert call.code() is grpc.StatusCode.OK
            assert ("rifl-outcome", "executed") in tuple(call.trailing_metadata())
            assert call.details() == ""
            assert call.initial_metadata() is not None
            assert not call.is_active()
            assert not call.add_callback(lambda: None)
        future = method.future(b"y")
        done = threading.Event()
        future.add_done_callback(lambda _: done.set())
        assert done.wait(20)
        assert future.exception() is None
        assert future.traceback() is None
        assert future.result() == b"y"
        assert future.time_remaining() is None
        with pytest.raises(grpc.FutureTimeoutError):
            channel.unary_unary("/test.Service/Never").future(b"", timeout=1e9).result(0)


def test_a_serialiser_that_raises_sends_nothing() -> None:
    """As gRPC answers it, and not executed."""

    def broken(request: object) -> bytes:
        raise TypeError(f"not a request: {request!r}")

    with ProtocolServer() as server, rifl.connect(server.target) as channel:
        method = channel.unary_unary(ECHO, request_serializer=broken)
        for call in (method, method.with_call, method.future):
            with pytest.raises(CallError, match="serializing") as caught:
                call(1)
            assert caught.value.outcome is Outcome.NOT_EXECUTED
        assert server.arrivals == []


def test_a_deserialiser_that_raises_is_not_retried() -> None:
    """A reply that cannot be read would be the same again."""

    def broken(reply: bytes) -> object:
        raise TypeError(f"not a reply: {reply!r}")

    with ProtocolServer() as server, rifl.connect(server.target) as channel:
        channel.session.open()
        method = channel.unary_unary(ECHO, response_deserializer=broken)
        for call in (method, lambda request: method.future(request).result()):
            with pytest.raises(CallError, match="deserializing"):
                call(b"")
        assert len(server.arrivals) == 2


def test_interceptors_below_see_attempts_and_above_calls() -> None:
    """``interceptors`` run for each attempt; ``intercept_channel`` for each call."""

    class Counter(grpc.UnaryUnaryClientInterceptor):
        def __init__(self) -> None:
            self.seen = 0

        def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
            if details.method == ECHO:
                self.seen += 1
            return continuation(details, request)

    below, above = Counter(), Counter()
    with (
        ProtocolServer(flaky) as server,
        rifl.connect(server.target, interceptors=[below], retry=FAST) as channel,
    ):
        method = grpc.intercept_channel(channel, above).unary_unary(ECHO)
        assert method(b"a") == b"a"
        assert method.future(b"b").result(20) == b"b"
        assert (above.seen, below.seen) == (2, 4)
        with pytest.raises(CallError):
            method(b"c", timeout=0.000001)


def test_somebody_elses_exception_reaches_the_caller(connect: Connect) -> None:
    """What an interceptor below raises is not retried, nor lost."""

    class Broken(grpc.UnaryUnaryClientInterceptor):
        def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
            if details.method == ECHO:
                raise KeyError("mine")
            return continuation(details, request)

    class AioBroken(grpc.aio.UnaryUnaryClientInterceptor):
        async def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
            if details.method in (ECHO, ECHO.encode()):
                raise KeyError("mine")
            return await continuation(details, request)

    with ProtocolServer() as server:
        kind = connect("localhost:1").kind
        caller = connect(server.target, interceptors=[Broken() if kind == "sync" else AioBroken()])
        for _ in range(2):
            with pytest.raises(KeyError, match="mine"):
                caller.call(b"")
            with pytest.raises(KeyError, match="mine"):
                caller.result(caller.start(b""))


def test_what_breaks_an_exchange_about_the_lease_does_not_end_its_keeper(connect: Connect) -> None:
    """A token that an interceptor cannot read for a moment: asked again, soon after (§5)."""
    broken = {"Grant": 1, "Renew": 2, "KeepAlive": 2}
    leases = "/lease_server.v1.LeaseServer/"

    def added(method: Any) -> None:
        name = (method.decode() if isinstance(method, bytes) else method).removeprefix(leases)
        if broken.get(name, 0):
            broken[name] -= 1
            raise KeyError("no token at the moment")

    class Tokens(grpc.UnaryUnaryClientInterceptor, grpc.StreamStreamClientInterceptor):
        def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
            added(details.method)
            return continuation(details, request)

        def intercept_stream_stream(self, continuation: Any, details: Any, requests: Any) -> Any:
            added(details.method)
            return continuation(details, requests)

    class AioTokens(grpc.aio.UnaryUnaryClientInterceptor):
        async def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
            added(details.method)
            return await continuation(details, request)

    with ProtocolServer(term_s=0.6) as server:
        kind = connect("localhost:1").kind
        caller = connect(server.target, interceptors=[Tokens() if kind == "sync" else AioTokens()])
        assert caller.call(b"a", timeout=20) == b"a"
        server.wait_for(lambda: len(server.renewals) >= 2)
        assert caller.call(b"b", timeout=20) == b"b"


_USER: contextvars.ContextVar[str] = contextvars.ContextVar("user", default="none")


class _Users(grpc.UnaryUnaryClientInterceptor):
    """Notes in whose context each request is sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str, bytes]] = []

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        self._note(details.method, request)
        return continuation(details, request)

    def _note(self, method: Any, request: Any) -> None:
        method = method.decode() if isinstance(method, bytes) else method
        body = request if isinstance(request, bytes) else b""
        self.sent.append((method.rpartition("/")[2], _USER.get(), body))

    def check(self, users: int, attempts: int) -> None:
        """Each attempt was sent in its caller's context, and leases were asked for in none's."""
        calls = [(user, body) for name, user, body in self.sent if name == "Echo"]
        expected = {(f"user{n}", b"%d" % n) for n in range(users)}
        assert set(calls) == expected
        assert len(calls) == users * attempts
        assert {user for name, user, _ in self.sent if name != "Echo"} == {"none"}


class _AioUsers(_Users, grpc.aio.UnaryUnaryClientInterceptor):
    async def intercept_unary_unary(  # type: ignore[override]
        self, continuation: Any, details: Any, request: Any
    ) -> Any:
        self._note(details.method, request)
        return await continuation(details, request)


def test_attempts_are_sent_in_their_callers_context() -> None:
    """Whatever thread sends them: an interceptor finds the token of the call's own user there."""
    users = _Users()
    with (
        ProtocolServer(flaky) as server,
        rifl.connect(server.target, interceptors=[users], retry=FAST) as channel,
    ):
        method = channel.unary_unary(ECHO)
        calls = []
        for number in range(3):
            context = contextvars.copy_context()
            context.run(_USER.set, f"user{number}")
            calls.append(context.run(method.future, b"%d" % number))
        assert [each.result(20) for each in calls] == [b"0", b"1", b"2"]
    users.check(3, attempts=2)


def test_attempts_are_sent_in_their_callers_context_on_an_event_loop() -> None:
    """Calls that wait for a client id are sent by the task that gets it."""
    users = _AioUsers()

    async def one(method: Any, number: int) -> bytes:
        _USER.set(f"user{number}")
        reply: bytes = await method(b"%d" % number)
        return reply

    async def all_of_them(target: str) -> list[bytes]:
        channel = rifl.aio.connect(target, interceptors=[users], retry=FAST)
        async with channel:
            method = channel.unary_unary(ECHO)
            return await asyncio.gather(*(one(method, number) for number in range(3)))

    with ProtocolServer(flaky) as server:
        assert asyncio.run(all_of_them(server.target)) == [b"0", b"1", b"2"]
    users.check(3, attempts=2)


def test_the_interceptor_alone_retries_safely() -> None:
    """On a channel built by somebody else, blocking and as a future."""
    with (
        ProtocolServer(flaky) as server,
        grpc.insecure_channel(server.target) as leases,
        grpc.insecure_channel(server.target) as theirs,
    ):
        interceptor = rifl.client_interceptor(leases, retry=FAST)
        method = grpc.intercept_channel(theirs, interceptor).unary_unary(ECHO)
        assert method(b"a") == b"a"
        assert method.with_call(b"b")[0] == b"b"
        assert method.future(b"c").result(20) == b"c"
        with pytest.raises(CallError):
            method(b"late", timeout=0.000001)
        assert {arrival.seq for arrival in server.arrivals} >= {1, 2, 3}
        assert interceptor.session.client_id == 1001
        interceptor.close()


async def test_the_aio_interceptor_alone_retries_safely() -> None:
    """On an aio channel built by somebody else."""
    with ProtocolServer(flaky) as server:
        async with grpc.aio.insecure_channel(server.target) as leases:
            interceptor = rifl.aio.client_interceptor(leases, retry=FAST)
            async with grpc.aio.insecure_channel(
                server.target, interceptors=[interceptor]
            ) as theirs:
                method = theirs.unary_unary(ECHO)
                assert await asyncio.gather(*(method(b"%d" % n) for n in range(5))) == [
                    b"%d" % n for n in range(5)
                ]
                call = method(b"x")
                assert await call.code() is grpc.StatusCode.OK
                with pytest.raises(CallError):
                    await method(b"late", timeout=0.000001)
            await interceptor.close()
            assert interceptor.session.client_id == 1001


async def test_an_aio_call_needs_no_awaiting() -> None:
    """A call that nobody awaits is sent, and retried."""
    with ProtocolServer(flaky) as server:
        async with rifl.aio.connect(server.target, retry=FAST) as channel:
            await channel.session.open()
            method = channel.unary_unary(ECHO)
            done = asyncio.Event()
            call = method(b"x", timeout=20)
            call.add_done_callback(lambda _: done.set())
            async with asyncio.timeout(20):
                await done.wait()
            assert call.done()
            assert not call.cancelled()
            assert [arrival.attempt for arrival in server.arrivals] == [1, 2]
            assert await call.details() == ""
            await call.wait_for_connection()
            assert await call == b"x"
            assert await call == b"x"
            assert 0 < (call.time_remaining() or 0) <= 20


async def test_cancelling_the_awaiting_task_cancels_the_call() -> None:
    """As in grpc.aio; the call stays resolvable (DESIGN §4)."""
    release = threading.Event()

    def script(arrival: Arrival, context: grpc.ServicerContext) -> bytes:
        if arrival.request == b"slow":
            release.wait(20)
        return b""

    with ProtocolServer(script) as server:
        async with rifl.aio.connect(server.target) as channel:
            method = channel.unary_unary(ECHO)
            await method(b"")
            call = method(b"slow")

            async def wait() -> bytes:
                reply: bytes = await call
                return reply

            task = asyncio.create_task(wait())
            await asyncio.to_thread(server.wait_for, lambda: len(server.arrivals) == 2)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            release.set()
            assert call.cancelled()
            client = channel._client
            assert call.rpc_id is not None
            assert client.session.unresolved(call.rpc_id, client.now()) is not None


def test_connectivity_passes_through() -> None:
    """``subscribe`` and ``unsubscribe`` are the inner channel's."""
    with ProtocolServer() as server, rifl.connect(server.target) as channel:
        grpc.channel_ready_future(channel).result(20)


def test_a_client_that_is_dropped_leaves_no_thread() -> None:
    """Garbage collected without ``close``, its thread ends."""
    with ProtocolServer() as server:
        channel = rifl.connect(server.target)
        channel.unary_unary(ECHO)(b"")
        keeper = channel._client._keeper._thread
        assert keeper is not None
        assert keeper.is_alive()
        gone = weakref.ref(channel._client)
        del channel
        gc.collect()
        assert gone() is None
        keeper.join(20)
        assert not keeper.is_alive()


def test_a_stub_keeps_its_dropped_channel_alive() -> None:
    """As with gRPC's own channels."""
    with ProtocolServer() as server:
        method = rifl.connect(server.target).unary_unary(ECHO)
        gc.collect()
        assert method(b"x") == b"x"


def test_a_forked_child_is_refused() -> None:
    """In a forked child every use of the parent's channel raises ForkedProcess (DESIGN §5)."""
    with ProtocolServer() as server:
        forked = subprocess.run(
            [sys.executable, "-m", "tests.client.forker", server.target],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert forked.stdout == "18 of 18 refused, still here\n", forked.stderr


@pytest.mark.parametrize(
    "wrong", [{"hedge_after": 0}, {"window": 0}, {"unresolved_for": -1.0}, {"unresolved_limit": -1}]
)
def test_settings_are_checked(wrong: dict[str, Any]) -> None:
    """Settings that make no sense are refused when built (DESIGN §9)."""
    with pytest.raises(ValueError, match="must"):
        rifl.connect("localhost:1", **wrong)


@pytest.mark.parametrize("secure", [False, True])
async def test_grpcs_own_functions_may_be_replaced_by_ours(
    monkeypatch: pytest.MonkeyPatch, secure: bool
) -> None:
    """A library's channels become ours, with one of gRPC's inside (DESIGN §1)."""
    credentials = grpc.local_channel_credentials() if secure else None
    name = "secure_channel" if secure else "insecure_channel"
    more = () if credentials is None else (credentials,)

    def replace(module: Any, connect: Any) -> None:
        def replaced(target: str, *args: Any, **kwargs: Any) -> Any:
            return connect(target, credentials, options=kwargs.get("options") or ())

        monkeypatch.setattr(module, name, replaced)

    replace(grpc, rifl.connect)
    replace(grpc.aio, rifl.aio.connect)
    with ProtocolServer(credentials=grpc.local_server_credentials() if secure else None) as server:
        for opened in (
            getattr(grpc, name)(server.target, *more, options=[("grpc.max_metadata_size", 9000)]),
            rifl.connect(server.target, credentials),
        ):
            with opened as channel:
                assert isinstance(channel, rifl.Channel)
                assert not isinstance(channel._inner, rifl.Channel)
                assert channel.unary_unary(ECHO)(b"x", timeout=20) == b"x"
        async with getattr(grpc.aio, name)(server.target, *more) as aio_channel:
            assert isinstance(aio_channel, AioChannel)
            assert not isinstance(aio_channel._inner, AioChannel)
            assert await aio_channel.unary_unary(ECHO)(b"x", timeout=20) == b"x"


def test_whoever_wrapped_grpcs_functions_sees_our_channels(monkeypatch: pytest.MonkeyPatch) -> None:
    """As instrumentations do, at any time (DESIGN §9)."""
    seen: list[str] = []
    original = grpc.insecure_channel

    def wrapped(target: str, *args: Any, **kwargs: Any) -> grpc.Channel:
        seen.append(target)
        return original(target, *args, **kwargs)

    monkeypatch.setattr(grpc, "insecure_channel", wrapped)
    rifl.connect("127.0.0.1:1").close()
    assert seen == ["127.0.0.1:1"]
