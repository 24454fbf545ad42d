"""Calls whose message never comes keep out none whose message does (DESIGN §5, §9)."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_interceptor import ServerInterceptor
from grpc_reflection.v1alpha import reflection_pb2

import rifl
import sharedlog
from lease_server.v1 import lease_server_pb2 as pb
from rifl._grpc.aio_entrance import AioEntrance
from rifl._grpc.entrance import WAITING, EntranceInterceptor, ServiceThreads
from rifl._grpc.status import read_error_info
from rifl._grpc.waiting import WaitingCall, WaitingCalls
from tests.helpers.half_open import half_open
from tests.helpers.servers import generic, serve
from tests.helpers.waiting import DEADLINE_S, until

_LEASES = "/lease_server.v1.LeaseServer/"
_TERM_S = 60.0
# A second, on a machine that does nothing else; without a thread they wait for ever.
_AT_MOST_S = 5.0
_OWN = [
    *(_LEASES + name for name in ("Grant", "Renew", "Release", "OpenSession", "CloseSession")),
    "/rifl.v1.Outcomes/Resolve",
    "/sharedlog.v1.Target/Connect",
    "/sharedlog.v1.Target/DeliverBatch",
    "/grpc.health.v1.Health/Check",
    "/grpc.health.v1.Health/Watch",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
]


_OURS_ON_A_LOOP = [
    _LEASES + "Grant",
    "/grpc.health.v1.Health/Check",
    "/grpc.health.v1.Health/Watch",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
]


def _never(over: threading.Event) -> Iterator[bytes]:
    """Yield nothing, until the call is over."""
    over.wait(60)
    yield from ()


@contextlib.contextmanager
def _on_a_loop(entrance: AioEntrance) -> Iterator[str]:
    with rifl.Deduplicator("memory:") as dedup:

        def add(server: Any) -> None:
            entrance.guard(server)
            dedup.add_to_server(server)
            dedup.add_health(server)
            dedup.add_reflection(server)

        with serve("aio", interceptors=[dedup.aio_interceptor()], add=add) as served:
            yield served.address


def _ask(channel: grpc.Channel, method: str, request: Any = None) -> bytes:
    """Call a method; fails if no answer comes."""
    raw = b"" if request is None else request.SerializeToString()
    answer: bytes = channel.unary_unary(method)(raw, timeout=_AT_MOST_S)
    return answer


def _echo(request: bytes, context: Any) -> bytes:
    return request


@pytest.fixture
def now() -> list[float]:
    """The server's time, in seconds; the test's to move."""
    return [0.0]


@pytest.fixture
def target(now: list[float]) -> Iterator[str]:
    """Serve all that is ours beside an application's method, with one thread of gRPC's."""
    with rifl.Deduplicator("memory:", term_s=_TERM_S, clock=lambda: now[0]) as dedup:

        def add(server: Any) -> None:
            dedup.add_health(server)
            dedup.add_reflection(server)
            sharedlog.add_target_to_server(
                server, dedup, {"orders": ["/p.S/Echo"]}, peers=["cn:a player"]
            )

        handlers = [generic("p.S", {"Echo": _echo})]
        with serve("sync", handlers, dedup=dedup, threads=1, add=add) as served:
            yield served.address


def test_a_crowd_of_half_open_calls_costs_no_client_its_lease(
    target: str, now: list[float]
) -> None:
    """Renewed as fast as they end for two terms, they delay no Renew and no Grant (§5)."""
    paths = [_LEASES + "Renew", _LEASES + "Grant"]
    crowd = {"127.0.0.1": paths * 100} | {f"127.0.1.{i}": [paths[i % 2]] for i in range(1, 101)}
    with grpc.insecure_channel(target) as channel:
        mine = pb.GrantReply.FromString(_ask(channel, _LEASES + "Grant"))
        renewal = pb.RenewRequest(client_id=mine.client_id, token=mine.token)
        with half_open(target, crowd) as strangers:
            while now[0] < 2 * _TERM_S:
                seen = strangers.ended
                until(lambda seen=seen: strangers.ended > seen + 50, "calls that made room")
                _ask(channel, _LEASES + "Renew", renewal)
                _ask(channel, _LEASES + "Grant")
                now[0] += _TERM_S / 2


def test_no_service_of_ours_waits_in_the_servers_threads(target: str) -> None:
    """The pool is the application's: its one thread is free whatever strangers open (§9)."""
    check = "/grpc.health.v1.Health/Check"
    with (
        grpc.insecure_channel(target) as channel,
        half_open(target, {"127.0.1.1": _OWN * 2}) as strangers,
    ):
        for _ in range(3):
            assert channel.unary_unary("/p.S/Echo")(b"x", timeout=_AT_MOST_S) == b"x"
            assert health_pb2.HealthCheckResponse.FromString(_ask(channel, check)).status == 1
        assert strangers.ended == 0


def test_a_server_of_ours_keeps_its_callers_methods_free_too() -> None:
    """As ``curp serve`` does: with one thread that answers, beside more strangers than wait."""
    interceptor = EntranceInterceptor(ServiceThreads("answering", 1), 60.0)
    crowd = {"127.0.1.1": ["/p.S/Echo"] * (WAITING + 2)}
    with (
        serve("sync", [generic("p.S", {"Echo": _echo})], interceptors=[interceptor]) as served,
        half_open(served.address, crowd) as strangers,
        grpc.insecure_channel(served.address) as channel,
    ):
        until(lambda: strangers.ended > 0, "calls that had to make room")
        for _ in range(3):
            assert channel.unary_unary("/p.S/Echo")(b"x", timeout=_AT_MOST_S) == b"x"


def test_a_message_has_so_much_time(caplog: pytest.LogCaptureFixture) -> None:
    """After ``max_message_s`` the call ends, also if no other call comes (§9)."""
    bounds = rifl.Bounds(max_message_s=0.1)
    calls = {"127.0.1.1": [_LEASES + "Renew", "/rifl.v1.Outcomes/Resolve"]}
    with (
        rifl.Deduplicator("memory:", bounds=bounds) as dedup,
        serve("sync", dedup=dedup) as served,
        half_open(served.address, calls, renews=False) as strangers,
    ):
        until(lambda: strangers.ended == 2, "the end of calls without a message")
    until(lambda: "calls_without_message" in caplog.text, "the event")
    assert caplog.text.count("calls_without_message") == 1, "once a minute"
    assert "source='127.0.1.1'" in caplog.text


def test_a_call_without_a_message_is_answered_as_by_grpc(target: str) -> None:
    """One that ends its requests at once is UNIMPLEMENTED, as a unary method of gRPC's."""
    with grpc.insecure_channel(target) as channel:
        for method in _OWN[:-1]:
            call: Any = channel.stream_unary(method)
            with pytest.raises(grpc.RpcError) as ended:
                call(iter(()), timeout=DEADLINE_S)
            assert ended.value.code() is grpc.StatusCode.UNIMPLEMENTED, method  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["sync", "aio"])
def test_watches_have_a_share_of_each_address(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What anybody may keep open is bounded for each address: others still watch (§9)."""
    monkeypatch.setattr("rifl._server.health._WATCHES_OF_ONE", 2)
    watch = "/grpc.health.v1.Health/Watch"
    crowd = {"127.0.1.1": [watch] * 5}
    with (
        rifl.Deduplicator("memory:") as dedup,
        serve(kind, dedup=dedup, add=dedup.add_health) as served,
        half_open(served.address, crowd, renews=False, message=b"") as strangers,
        grpc.insecure_channel(served.address) as channel,
    ):
        until(lambda: strangers.ended == 3, "the end of the watches over the share")
        mine = channel.unary_stream(watch)(b"", timeout=DEADLINE_S)
        assert health_pb2.HealthCheckResponse.FromString(next(mine)).status == 1
        mine.cancel()


@pytest.mark.parametrize("method", _OURS_ON_A_LOOP)
def test_on_a_loop_of_ours_the_refusal_says_why(method: str) -> None:
    """A message that does not come is refused as TOO_MANY, when its time is over (§9)."""
    with (
        _on_a_loop(AioEntrance(0.1)) as target,
        grpc.insecure_channel(target) as channel,
    ):
        over = threading.Event()
        call = channel.stream_stream(method)(_never(over), timeout=DEADLINE_S)
        with pytest.raises(grpc.RpcError) as refused:
            list(call)
        over.set()
        info = read_error_info(call.trailing_metadata())
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED  # type: ignore[attr-defined]
        assert info is not None
        assert info.reason == "TOO_MANY"


def test_on_a_loop_of_ours_the_oldest_makes_room() -> None:
    """Calls that wait are bounded there, too; those with a message are answered (§9)."""
    with (
        _on_a_loop(AioEntrance()) as target,
        grpc.insecure_channel(target) as channel,
        half_open(target, {"127.0.1.1": _OURS_ON_A_LOOP * 65}, renews=False) as strangers,
    ):
        until(lambda: strangers.ended == 65 * 4 - WAITING, "calls that had to make room")
        for _ in range(3):
            assert pb.GrantReply.FromString(_ask(channel, _LEASES + "Grant")).client_id
        with pytest.raises(grpc.RpcError) as empty:
            channel.stream_unary(_LEASES + "Grant")(iter(()), timeout=DEADLINE_S)
        assert empty.value.code() is grpc.StatusCode.UNIMPLEMENTED  # type: ignore[attr-defined]
        watch = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"", timeout=DEADLINE_S)
        assert health_pb2.HealthCheckResponse.FromString(next(watch)).status == 1
        watch.cancel()
        described = channel.stream_stream(_OURS_ON_A_LOOP[-1])(
            iter([reflection_pb2.ServerReflectionRequest(list_services="").SerializeToString()]),
            timeout=DEADLINE_S,
        )
        assert len(list(described)) == 1


class _GrpcInterceptor(ServerInterceptor):
    """``grpc-interceptor``'s kind."""

    def intercept(self, method: Any, request: Any, context: Any, method_name: str) -> Any:
        _authorise(context)
        return method(request, context)


class _Wrapping(grpc.ServerInterceptor):
    """One of its own, which tells unary handlers apart in one of the usual ways."""

    def __init__(self, wrap: Callable[[Any], Any]) -> None:
        self._wrap = wrap

    def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        """Wrap what is unary."""
        handler = continuation(handler_call_details)
        return None if handler is None else self._wrap(handler)


def _authorise(context: Any) -> None:
    if ("token", "mine") not in context.invocation_metadata():
        context.abort(grpc.StatusCode.UNAUTHENTICATED, "show the token")


def _guarded(handler: Any) -> Any:
    @functools.wraps(handler.unary_unary)
    def guarded(request: Any, context: Any) -> Any:
        _authorise(context)
        return handler.unary_unary(request, context)

    return guarded


def _made(handler: Any) -> Any:
    return grpc.unary_unary_rpc_method_handler(
        _guarded(handler), handler.request_deserializer, handler.response_serializer
    )


_INTERCEPTORS: dict[str, Any] = {
    "grpc-interceptor": _GrpcInterceptor(),
    "by unary_unary": _Wrapping(lambda each: _made(each) if each.unary_unary else each),
    "by request_streaming": _Wrapping(
        lambda each: each if each.request_streaming or each.response_streaming else _made(each)
    ),
    "by _replace": _Wrapping(
        lambda each: each._replace(unary_unary=_guarded(each)) if each.unary_unary else each
    ),
}


@pytest.mark.parametrize("kind", _INTERCEPTORS)
def test_interceptors_that_wrap_unary_handlers_refuse_strangers(kind: str) -> None:
    """An interceptor finds a unary handler, so that no interceptor is left out."""
    with rifl.Deduplicator("memory:") as dedup:
        chain = [_INTERCEPTORS[kind], dedup]
        with (
            serve("sync", interceptors=chain, dedup=dedup, add=dedup.add_health) as served,
            grpc.insecure_channel(served.address) as channel,
        ):
            for method in (_LEASES + "Grant", "/grpc.health.v1.Health/Check"):
                ask = channel.unary_unary(method)
                with pytest.raises(grpc.RpcError) as refused:
                    ask(b"", timeout=DEADLINE_S)
                assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED  # type: ignore[attr-defined]
                assert ask(b"", timeout=DEADLINE_S, metadata=(("token", "mine"),))


def test_the_oldest_of_the_address_that_holds_most_makes_room() -> None:
    """Among addresses that hold as many, the one that has waited longest."""
    waiting: WaitingCalls[WaitingCall] = WaitingCalls(4, grace_s=2.0)
    calls = [
        WaitingCall(SimpleNamespace(peer=lambda source=source: source), now, 10.0)
        for now, source in enumerate("ababcc")
    ]
    a1, b1, a2, b2, c1, _ = calls
    assert [waiting.enter(call) for call in calls] == [False] * 4 + [True] * 2
    assert waiting.take_crowding(1.9) == [], "each may wait a while"
    assert waiting.take_crowding(5.0) == [a1, b1]
    assert not waiting.crowded
    assert not waiting.leave(a1)
    assert waiting.leave(a2)
    assert waiting.take_expired(14.0) == [b2, c1]
    assert len(waiting) == 1
