"""A connection that takes all and answers nothing is replaced; a slow server's is not."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

import grpc
import pytest

import rifl
from rifl._client import lease_requests
from rifl.core._calling.retry import RetryPolicy
from tests.calls.services import Kinds, serving
from tests.client.conftest import Caller, Connect
from tests.client.protocol_server import Arrival, ProtocolServer
from tests.helpers.forgetting import ForgettingProxy
from tests.helpers.waiting import deadlines, until

UNARY, COUNT, COLLECT = "/t.Kinds/Unary", "/t.Kinds/Count", "/t.Kinds/Collect"
FAST = RetryPolicy(initial_backoff_s=0.01, max_backoff_s=0.05, silence_s=0.25)
# What a call would wait for, and what it may take.
DEADLINE_S, SOON_S = 60.0, 20.0


class Gated(Kinds):
    """Has its effect, and answers when the gate is open."""

    def unary(self, request: bytes, context: Any) -> bytes:
        """See ``Kinds``."""
        answer = super().unary(request, context)
        self.gate.wait(60)
        return answer

    def collect(self, requests: Iterator[bytes], context: Any) -> bytes:
        """See ``Kinds``."""
        answer = super().collect(requests, context)
        self.gate.wait(60)
        return answer


@contextmanager
def proxied(kinds: Kinds, server: str = "sync", **options: Any) -> Iterator[ForgettingProxy]:
    """Serve behind a proxy."""
    with serving(server, kinds, **options) as service:
        port = int(service.address.rpartition(":")[2])
        with closing(ForgettingProxy(port)) as proxy:
            yield proxy


def replaced(caplog: pytest.LogCaptureFixture) -> int:
    """Count the connections that were replaced."""
    return sum("connection_replaced" in record.getMessage() for record in caplog.records)


def in_time(caller: Caller, request: bytes) -> Any:
    """Make a call, which must end long before its deadline."""
    began = time.monotonic()
    answer = caller.call(request, UNARY, timeout=DEADLINE_S)
    assert time.monotonic() - began < SOON_S
    return answer


@pytest.mark.parametrize("server", ["sync", "aio"])
def test_an_idle_client_calls_on_another_connection(
    connect: Connect, server: str, caplog: pytest.LogCaptureFixture
) -> None:
    """And goes on there: the silent one is closed."""
    kinds = Kinds()
    with proxied(kinds, server) as proxy:
        caller = connect(proxy.target, retry=FAST)
        assert in_time(caller, b"one") == b"1"
        proxy.swallow()
        assert in_time(caller, b"two") == b"2"
        assert in_time(caller, b"three") == b"3"
        assert kinds.effects == [b"one", b"two", b"three"]
        assert replaced(caplog) == 1


def test_a_client_that_calls_nothing_finds_out_by_its_renewals(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """A renewal without an answer is the sign."""
    with ProtocolServer(term_s=0.6) as server, closing(ForgettingProxy(server.port)) as proxy:
        caller = connect(proxy.target, retry=FAST)
        assert caller.call(b"one", timeout=DEADLINE_S) == b"one"
        proxy.swallow()
        until(lambda: replaced(caplog), "another connection")
        before = len(server.renewals)
        server.wait_for(lambda: len(server.renewals) > before + 2)
        assert caller.call(b"two", timeout=DEADLINE_S) == b"two"
        assert server.grants == 1, "the client id is kept"
        assert replaced(caplog) == 1


def test_a_first_client_id_is_had_on_another_connection(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gRPC's channels share a connection: a new channel may begin on a silent one."""
    monkeypatch.setattr(lease_requests, "LEASE_TIMEOUT_S", 0.3)
    with ProtocolServer() as server, closing(ForgettingProxy(server.port)) as proxy:
        one = connect(proxy.target, retry=FAST)
        assert one.call(b"one", timeout=DEADLINE_S) == b"one"
        proxy.swallow()
        two = connect(proxy.target, retry=FAST)
        assert two.call(b"two", timeout=DEADLINE_S) == b"two"
        assert server.grants == 2


def test_renewals_on_a_stream_go_on_elsewhere(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """The heartbeat stream is opened anew, however often its connection falls silent."""
    kinds = Kinds()
    with proxied(kinds, "aio", term_s=0.6) as proxy:
        caller = connect(proxy.target, retry=FAST)
        for at, request in enumerate((b"one", b"two", b"three")):
            assert in_time(caller, request) == b"%d" % (at + 1)
            proxy.swallow()
            until(lambda: replaced(caplog) == at + 1, "another connection")  # noqa: B023
        assert kinds.effects == [b"one", b"two", b"three"]


def test_what_is_only_passed_through_ends_with_its_connection(connect: Connect) -> None:
    """As when a connection breaks: sent once, and nobody knows whether it ran."""
    gate, plain = threading.Event(), "/test.Service/Plain"

    def slow(arrival: Arrival, context: grpc.ServicerContext) -> bytes:
        gate.wait(60)
        return arrival.request

    with (
        ProtocolServer(slow, term_s=0.6, not_deduplicated=(plain,)) as server,
        closing(ForgettingProxy(server.port)) as proxy,
        ThreadPoolExecutor(1) as pool,
    ):
        caller = connect(proxy.target, retry=FAST)
        caller.do(caller.session.open, SOON_S)
        call = pool.submit(caller.call, b"one", plain, timeout=DEADLINE_S)
        server.wait_for(lambda: len(server.arrivals) == 1)
        proxy.swallow()
        with pytest.raises(rifl.CallError) as failed:
            call.result(SOON_S)
        assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
        assert failed.value.outcome is rifl.Outcome.UNKNOWN
        gate.set()
        assert caller.call(b"two", plain, timeout=DEADLINE_S) == b"two"


@pytest.mark.parametrize("kind", ["call", "future", "batch", "requests", "responses"])
def test_what_begins_as_a_connection_is_closed_is_sent_on_the_next_one(kind: str) -> None:
    """A thread may hold the method of a channel that was replaced: nothing was sent there."""
    kinds = Kinds()
    with serving("sync", kinds) as service, closing(Caller("sync", service.address)) as caller:
        assert caller.call(b"before", UNARY) == b"1"
        make = start(kind, caller)
        channel = caller.channel._inner
        send = caller.channel.unary_unary(UNARY)
        for at in (1, 2):
            # Without a word to those who hold it.
            channel.replace(0, channel.another(0)).close()
            assert make() == (b"%d.0" % (2 * at) if kind == "responses" else b"%d" % (2 * at))
            assert send(b"x") == b"%d" % (2 * at + 1)


def start(kind: str, caller: Caller) -> Any:
    """Return what makes a call of a kind, and waits for its answer."""
    channel, sync = caller.channel, caller.kind == "sync"
    if kind == "call":
        return lambda: caller.call(b"1", UNARY, timeout=DEADLINE_S)
    if kind == "future":
        return lambda: caller.result(caller.start(b"1", UNARY, timeout=DEADLINE_S))
    if kind == "batch":
        items = [(b"1", None)]
        return lambda: caller.do(channel.batch, UNARY, items, timeout=DEADLINE_S)[0].response
    if kind == "requests":
        send = channel.stream_unary(COLLECT)
        if sync:
            return lambda: send(iter([b"1"]), timeout=DEADLINE_S)

        async def requests() -> Any:
            return await send(iter([b"1"]), timeout=DEADLINE_S)

        return lambda: caller.on_loop(requests())
    read = channel.unary_stream(COUNT)
    if sync:
        return lambda: b"".join(read(b"1", timeout=DEADLINE_S))

    async def responses() -> Any:
        return b"".join([each async for each in read(b"1", timeout=DEADLINE_S)])

    return lambda: caller.on_loop(responses())


@pytest.mark.parametrize("kind", ["call", "future", "batch", "requests", "responses"])
def test_a_call_in_flight_gets_its_first_answer(
    connect: Connect, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The answer that was swallowed is had again, by the same identity; the effect is one."""
    kinds = Gated()
    with proxied(kinds) as proxy, ThreadPoolExecutor(1) as pool:
        caller = connect(proxy.target, retry=FAST)
        assert in_time(caller, b"before") == b"1"
        kinds.gate.clear()
        answer = pool.submit(start(kind, caller))
        until(lambda: len(kinds.effects) == 2, "the call")
        proxy.swallow()
        kinds.gate.set()
        assert answer.result(SOON_S) == (b"2.0" if kind == "responses" else b"2")
        assert kinds.effects == [b"before", b"1"]
        assert replaced(caplog) == 1


def test_a_call_with_a_key_in_a_named_session_moves_too(connect: Connect) -> None:
    """Its identity has no seq, and is looked after all the same."""
    kinds = Kinds()
    with proxied(kinds) as proxy:
        caller = connect(proxy.target, retry=FAST, session="job", secret=b"s" * 16)
        results = caller.do(caller.channel.batch, UNARY, [(b"1", "a")], timeout=DEADLINE_S)
        assert [each.response for each in results] == [b"1"]
        proxy.swallow()
        results = caller.do(caller.channel.batch, UNARY, [(b"2", "b")], timeout=DEADLINE_S)
        assert [each.response for each in results] == [b"2"]
        assert kinds.effects == [b"1", b"2"]


@pytest.mark.parametrize("workers", [4, 1], ids=["answers", "has-no-thread"])
def test_a_slow_handler_is_waited_for(
    connect: Connect, workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    """On its connection, sent once: the client asks, and no other connection is faster."""
    gate = threading.Event()

    def slow(arrival: Arrival, context: grpc.ServicerContext) -> bytes:
        gate.wait(60)
        return arrival.request

    with (
        ProtocolServer(slow, workers=workers) as server,
        closing(ForgettingProxy(server.port)) as proxy,
        ThreadPoolExecutor(1) as pool,
    ):
        caller = connect(proxy.target, retry=FAST)
        caller.do(caller.session.open, SOON_S)
        # On a slow machine another connection may have brought the client id.
        caplog.clear()
        at_first = caller.channel._inner.at(0)
        answer = pool.submit(caller.call, b"one", timeout=DEADLINE_S)
        if workers == 1:
            until(lambda: proxy.connections >= 3, "others were tried, and were no faster")
        else:
            server.wait_for(lambda: len(server.renewals) >= 5)
        gate.set()
        assert answer.result(SOON_S) == b"one"
        assert [arrival.attempt for arrival in server.arrivals] == [1]
        assert caller.channel._inner.at(0) is at_first
        assert not caplog.records, "there is a client id, and nothing to tell of it"
        assert not replaced(caplog)


def test_many_calls_at_once_move_once(connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    """Those in flight, and those that begin meanwhile."""
    kinds, many = Kinds(), 24
    with proxied(kinds) as proxy, ThreadPoolExecutor(many) as pool:
        caller = connect(proxy.target, retry=FAST)
        assert in_time(caller, b"before") == b"1"
        proxy.swallow()
        requests = [b"%d" % at for at in range(5 * many)]
        answers = list(pool.map(lambda each: in_time(caller, each), requests))
        assert sorted(kinds.effects) == sorted([b"before", *requests])
        assert len(set(answers)) == len(requests)
        assert replaced(caplog) == 1


def test_all_targets_behind_a_middle_box_are_had_again(connect: Connect) -> None:
    """One after the other falls silent; calls do not go round among them."""
    kinds = Kinds()
    with proxied(kinds) as first, closing(ForgettingProxy(first.port)) as second:
        caller = connect([first.target, second.target], retry=FAST)
        for request in (b"1", b"2", b"3"):
            assert in_time(caller, request) == request
            first.swallow()
            second.swallow()
        assert kinds.effects == [b"1", b"2", b"3"]


def test_without_a_bound_nothing_is_replaced(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """``silence_s=None``: the call's own deadline ends it, and its outcome is unknown."""
    kinds = Kinds()
    with proxied(kinds) as proxy:
        caller = connect(proxy.target, retry=RetryPolicy(silence_s=None))
        assert in_time(caller, b"one") == b"1"
        proxy.swallow()
        for timeout_s in deadlines(1.0):
            with pytest.raises(rifl.CallError) as failed:
                caller.call(b"two", UNARY, timeout=timeout_s)
            if failed.value.outcome is not rifl.Outcome.NOT_EXECUTED:
                break
        assert failed.value.outcome is rifl.Outcome.UNKNOWN
        assert not replaced(caplog)
