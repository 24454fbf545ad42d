"""A NAT or a balancer forgets an idle connection, and drops what comes (deploying.md)."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import grpc
import pytest

import rifl
from rifl._client.settings import channel_options
from rifl.core._calling.retry import RetryPolicy
from tests.client.conftest import Connect
from tests.client.protocol_server import ProtocolServer
from tests.client.test_targets import answer
from tests.helpers.forgetting import ForgettingProxy

# What gRPC servers bear that were not told otherwise.
SERVERS_BEAR_MS = 300_000


def test_an_attempt_on_a_forgotten_connection_is_made_again_on_another_one(
    connect: Connect,
) -> None:
    """Long before the call's deadline, and under the same identity."""
    with ProtocolServer(answer, address="127.0.0.1:0") as server:
        port = int(server.target.rpartition(":")[2])
        with closing(ForgettingProxy(port)) as proxy:
            # The other way to find such a connection could be faster, on a busy machine.
            retry = RetryPolicy(silence_s=None)
            options = [("grpc.keepalive_timeout_ms", 1_000)]
            caller = connect(proxy.target, retry=retry, options=options)
            assert caller.call(b"one", timeout=60) == b"reply"
            before = len(server.arrivals)
            proxy.forget()
            assert caller.call(b"two", timeout=30) == b"reply"
            assert proxy.connections == 2
            assert len(server.arrivals) == before + 1


def test_channels_break_such_connections_and_no_server_minds() -> None:
    """By default; what a user says instead is kept."""
    found = dict(channel_options(None)[0])
    assert found["grpc.keepalive_timeout_ms"] == 5_000
    assert found["grpc.keepalive_time_ms"] > SERVERS_BEAR_MS
    own = dict(channel_options([("grpc.keepalive_time_ms", 30_000)])[0])
    assert own["grpc.keepalive_time_ms"] == 30_000


@pytest.mark.long
def test_a_server_with_our_options_is_pinged_while_idle_and_stays() -> None:
    """Each eleven seconds, which other servers end after the third."""
    handler = grpc.unary_unary_rpc_method_handler(lambda request, context: request)
    server = grpc.server(ThreadPoolExecutor(1), options=rifl.SERVER_OPTIONS)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("test.Service", {"Echo": handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    pings: list[tuple[str, Any]] = [
        ("grpc.keepalive_time_ms", 11_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]
    try:
        with (
            closing(ForgettingProxy(port)) as proxy,
            grpc.insecure_channel(proxy.target, options=pings) as channel,
        ):
            echo = channel.unary_unary("/test.Service/Echo")
            assert echo(b"x", timeout=60) == b"x"
            threading.Event().wait(60.0)
            assert echo(b"x", timeout=60) == b"x"
            assert proxy.connections == 1
    finally:
        server.stop(None)
