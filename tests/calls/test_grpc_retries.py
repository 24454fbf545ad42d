"""gRPC's own retries, by a service config, on top of our channel (DESIGN §3)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import grpc
import grpc.aio
import pytest

import rifl
from rifl.core import LeaseExpired
from rifl.testing import Fault
from tests.calls.services import Kinds, serving
from tests.helpers.servers import serve

UNARY, COLLECT, COUNT = "/t.Kinds/Unary", "/t.Kinds/Collect", "/t.Kinds/Count"
DECLARED = dict.fromkeys((UNARY, COLLECT, COUNT), "plain")
_POLICY = {
    "maxAttempts": 5,
    "initialBackoff": "0.01s",
    "maxBackoff": "0.05s",
    "backoffMultiplier": 2,
    "retryableStatusCodes": ["UNAVAILABLE", "ABORTED", "DEADLINE_EXCEEDED"],
}
_CONFIG = json.dumps({"methodConfig": [{"name": [{"service": "t.Kinds"}], "retryPolicy": _POLICY}]})
OPTIONS = [("grpc.enable_retries", 1), ("grpc.service_config", _CONFIG)]
# What the SDK would retry is left to gRPC.
ONCE = rifl.RetryPolicy(max_attempts=1)


class Losing(grpc.ServerInterceptor):
    """Loses the answers to the first arrivals of each method, and keeps who sent them."""

    def __init__(self, times: int) -> None:
        self.times = times
        self.arrivals: dict[str, list[str]] = {}

    def intercept_service(self, continuation: Any, details: Any) -> Any:
        handler = continuation(details)
        if handler is None or details.method not in DECLARED:
            return handler
        seen = self.arrivals.setdefault(details.method, [])
        sent = dict(details.invocation_metadata)
        seen.append(sent.get("grpc-previous-rpc-attempts", "0"))
        if len(seen) > self.times:
            return handler

        def lose(context: Any) -> None:
            context.set_trailing_metadata(())
            context.abort(grpc.StatusCode.UNAVAILABLE, "the answer is lost")

        if handler.response_streaming:

            def stream(request: Any, context: Any) -> Iterator[Any]:
                list(handler.unary_stream(request, context))
                lose(context)
                yield b""

            return grpc.unary_stream_rpc_method_handler(stream)
        if handler.request_streaming:

            def collect(requests: Any, context: Any) -> Any:
                handler.stream_unary(requests, context)
                lose(context)

            return grpc.stream_unary_rpc_method_handler(collect)

        def unary(request: Any, context: Any) -> Any:
            handler.unary_unary(request, context)
            lose(context)

        return grpc.unary_unary_rpc_method_handler(unary)


@pytest.fixture
def lossy() -> Iterator[Any]:
    """A server that loses two answers of each method."""
    kinds, losing = Kinds(), Losing(2)
    with (
        rifl.Deduplicator("memory:", methods=DECLARED) as dedup,
        serve("sync", interceptors=[losing, dedup], dedup=dedup, add=kinds.adder("sync")) as served,
    ):
        yield kinds, losing, served.address


_ARRIVALS = {method: ["0", "1", "2"] for method in DECLARED}


def test_grpcs_retries_are_the_same_call(lossy: Any) -> None:
    """Identity and attempt travel with each of gRPC's own: one effect, the first answer."""
    kinds, losing, address = lossy
    with rifl.connect(address, options=OPTIONS, retry=ONCE) as channel:
        assert channel.unary_unary(UNARY)(b"x", timeout=20) == b"1"
        assert channel.stream_unary(COLLECT)(iter([b"a", b"b"]), timeout=20) == b"2"
        assert list(channel.unary_stream(COUNT)(b"2", timeout=20)) == [b"3.0", b"3.1"]
    assert kinds.effects == [b"x", b"a|b", b"2"]
    assert losing.arrivals == _ARRIVALS


async def test_grpcs_retries_are_the_same_aio_call(lossy: Any) -> None:
    """The same for asyncio."""
    kinds, losing, address = lossy
    async with rifl.aio.connect(address, options=OPTIONS, retry=ONCE) as channel:
        assert await channel.unary_unary(UNARY)(b"x", timeout=20) == b"1"
        assert await channel.stream_unary(COLLECT)(iter([b"a", b"b"]), timeout=20) == b"2"
        stream = channel.unary_stream(COUNT)(b"2", timeout=20)
        assert [message async for message in stream] == [b"3.0", b"3.1"]
    assert kinds.effects == [b"x", b"a|b", b"2"]
    assert losing.arrivals == _ARRIVALS


def test_both_retry_and_the_effect_is_one(lossy: Any) -> None:
    """More losses than gRPC retries: the SDK goes on with the same identity."""
    kinds, losing, address = lossy
    losing.times = 7
    with rifl.connect(address, options=OPTIONS) as channel:
        assert channel.unary_unary(UNARY)(b"x", timeout=20) == b"1"
    assert kinds.effects == [b"x"]
    assert losing.arrivals[UNARY] == ["0", "1", "2", "3", "4", "0", "1", "2"]


@pytest.mark.parametrize("how", ["channel", "interceptor"])
def test_what_grpc_sent_before_a_restart_is_not_sent_anew(how: str) -> None:
    """The first of gRPC's attempts ran; the second meets a server that knows the client no more.
    That is attempt 1 to the SDK, which must not take a new identity (DESIGN §3)."""
    kinds = Kinds()
    with serving("sync", kinds, methods=DECLARED) as service:
        service.faults.arm(Fault.KILL_AFTER_EFFECT)
        if how == "channel":
            channel: Any = service.connect(options=OPTIONS)
        else:
            # It cannot see the channel's options, and was told wrong.
            inner = grpc.insecure_channel(service.address, OPTIONS)
            interceptor = rifl.client_interceptor(inner, grpc_retries=False)
            channel = grpc.intercept_channel(inner, interceptor)
        with channel, pytest.raises(LeaseExpired) as caught:
            channel.unary_unary(UNARY)(b"x", timeout=20)
        assert caught.value.outcome is rifl.Outcome.UNKNOWN
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert kinds.effects == [b"x"]


async def test_what_grpc_sent_before_a_restart_is_not_sent_anew_by_aio() -> None:
    """The same for asyncio."""
    kinds = Kinds()
    with serving("sync", kinds, methods=DECLARED) as service:
        service.faults.arm(Fault.KILL_AFTER_EFFECT)
        async with rifl.aio.connect(service.address, options=OPTIONS) as channel:
            with pytest.raises(LeaseExpired) as caught:
                await channel.unary_unary(UNARY)(b"x", timeout=20)
        assert caught.value.outcome is rifl.Outcome.UNKNOWN
    assert kinds.effects == [b"x"]
