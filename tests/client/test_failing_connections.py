"""A channel that finds no connection stops trying while no call waits, and goes on with the next.

What is counted are connections: each is taken and closed at once, by a server that is no gRPC's.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import grpc
import pytest

from rifl.core._calling.silence import FailingConnection
from tests.client.conftest import Caller, Connect
from tests.client.protocol_server import Arrival, ProtocolServer, label
from tests.helpers.refusing import STOPPED_S, refusing
from tests.helpers.waiting import until

PLAIN = "/test.Service/Plain"


def replay(arrival: Arrival, context: grpc.ServicerContext) -> bytes:
    """Answer as a server that may have seen the call before."""
    if arrival.attempt > 1:
        label(context, "replayed")
    return arrival.request


def opened(
    connect: Connect, *, method: str = "/test.Service/Echo", **server: Any
) -> tuple[Caller, str]:
    """Return a client that has an id, and the address of its server, which is away."""
    with ProtocolServer(**server) as running:
        caller = connect(running.target)
        assert caller.call(b"first", method=method) == b"first"
        return caller, running.target


def fail(caller: Caller) -> None:
    """Make a call that fails, as there is no server."""
    with pytest.raises(grpc.RpcError):
        caller.call(b"lost", timeout=0.3)


def test_once_no_call_waits_it_stops(connect: Connect) -> None:
    """And the next call connects at once, also to a server that is back."""
    caller, address = opened(connect)
    with refusing(address) as taken:
        fail(caller)
        until(lambda: taken.none_for(STOPPED_S), "no connection is tried")
        before = taken.connections
        assert before >= 1
        fail(caller)
        assert taken.connections > before
    with ProtocolServer(address=address, script=replay) as server:
        assert caller.call(b"x", timeout=30) == b"x"
        assert server.grants == 0


def test_while_a_call_waits_it_goes_on(connect: Connect) -> None:
    """Another one that fails meanwhile changes nothing."""
    caller, address = opened(connect)
    with refusing(address) as taken:
        waiting = caller.start(b"x", timeout=60)
        fail(caller)
        before = taken.connections
        until(lambda: taken.connections >= before + 5, "it tries again and again")
    with ProtocolServer(address=address, script=replay):
        assert caller.result(waiting) == b"x"


def test_a_renewal_that_fails_connects_once(connect: Connect) -> None:
    """Reconnects of an idle client come as seldom as its renewals."""
    caller, address = opened(connect, term_s=6.0)
    with refusing(address) as taken:
        until(lambda: taken.connections >= 1, "a renewal is due")
        until(lambda: taken.none_for(0.5), "it stops until the next one")
    assert caller.session.client_id is not None


@pytest.mark.parametrize("streams", [False, True])
def test_what_is_passed_through_and_waits_for_a_connection_is_not_ended(
    connect: Connect, streams: bool
) -> None:
    """``wait_for_ready`` of a method that is not deduplicated, and of a stream both ways."""
    caller, address = opened(connect, not_deduplicated=(PLAIN,))
    got: list[Any] = []

    def wait() -> None:
        if not streams:
            got.append(caller.call(b"x", method=PLAIN, timeout=60, wait_for_ready=True))
        elif caller.kind == "sync":
            both = caller.channel.stream_stream(PLAIN)
            got.extend(both(iter([b"x"]), timeout=60, wait_for_ready=True))
        else:

            async def read() -> bytes:
                both = caller.channel.stream_stream(PLAIN)
                call = both(iter([b"x"]), timeout=60, wait_for_ready=True)
                found: bytes = await call.read()
                return found

            got.append(caller.on_loop(read()))

    with refusing(address) as taken:
        fail(caller)
        waiting = threading.Thread(target=wait)
        waiting.start()
        before = taken.connections
        until(lambda: taken.connections >= before + 5, "it tries again and again")
    with ProtocolServer(address=address, script=replay):
        waiting.join(60)
        assert got == [b"x"]


def test_whoever_watches_the_channel_sees_it_connect(connect: Connect) -> None:
    """A subscriber may wait for the server: the channel goes on trying."""
    caller, address = opened(connect)
    if caller.kind == "sync":
        caller.channel.subscribe(lambda state: None)
        watch = None
    else:

        async def ready() -> Any:
            return asyncio.ensure_future(caller.channel.channel_ready())

        watch = caller.on_loop(ready())
    with refusing(address) as taken:
        fail(caller)
        before = taken.connections
        until(lambda: taken.connections >= before + 5, "it tries again and again")
    with ProtocolServer(address=address, script=replay):
        assert caller.call(b"x", timeout=30) == b"x"
        if watch is not None:

            async def seen() -> None:
                await watch

            caller.on_loop(seen())


def test_a_target_that_is_away_is_not_tried_while_calls_go_to_another(connect: Connect) -> None:
    """However busy the client is there."""
    with ProtocolServer() as first:
        away = first.target
    with refusing(away) as taken, ProtocolServer(script=replay) as second:
        caller = connect([away, second.target])
        ended = threading.Event()

        def busy() -> None:
            while not ended.is_set():
                assert caller.call(b"x", timeout=60) == b"x"

        calls = threading.Thread(target=busy)
        calls.start()
        try:
            until(lambda: taken.none_for(STOPPED_S), "the first one is left alone")
        finally:
            ended.set()
            calls.join()
        assert taken.connections >= 1


def test_the_rule() -> None:
    """A channel stops at once behind other targets, and a second after a call that failed."""
    rule = FailingConnection()
    assert rule.ends_at(waiting=False, in_flight=False, current=True) == float("-inf")
    rule.called(10.0)
    assert rule.ends_at(waiting=False, in_flight=False, current=True) == 11.0
    assert rule.ends_at(waiting=False, in_flight=True, current=False) == float("-inf")
    for current in (True, False):
        assert rule.ends_at(waiting=True, in_flight=False, current=current) is None
    assert rule.ends_at(waiting=False, in_flight=True, current=True) is None
