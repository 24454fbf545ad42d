"""A label that speaks of another identity says nothing of this one (DESIGN §3)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import grpc
import pytest

import rifl
from rifl._grpc.status import rich_status
from rifl._wire.envelope import BATCH_KEY
from rifl._wire.header import HEADER_KEY
from rifl._wire.labels import OUTCOME_KEY
from rifl.core import Outcome
from rifl.core._calling.retry import RetryPolicy
from rifl.core._shared.reasons import error_class
from tests.client.protocol_server import ECHO, Arrival, ProtocolServer
from tests.helpers.raw import RawClient
from tests.helpers.servers import KINDS, generic, serve

if TYPE_CHECKING:
    from tests.client.conftest import Caller, Connect

TELL = "/test.Service/Tell"
_RETRY = RetryPolicy(initial_backoff_s=0.01, max_backoff_s=0.02, max_attempts=3)


def forward(context: grpc.ServicerContext, reason: str, rpc: str) -> None:
    """Fail as a handler does whose server strips nothing: with its upstream's refusal."""
    cls = error_class(reason)
    assert cls is not None
    status = rich_status(grpc.StatusCode[cls.code_name], reason, "the upstream's", {"rpc": rpc})
    context.set_trailing_metadata((*status.trailing_metadata, (OUTCOME_KEY, cls.outcome.value)))
    context.abort(status.code, status.details)


@pytest.mark.parametrize("reason", ["LEASE_EXPIRED", "NOT_LEADER", "NOT_EXECUTED", "STALE_RPC"])
def test_a_refusal_of_another_identity_is_ignored(connect: Connect, reason: str) -> None:
    """Neither not-executed nor a new identity follows from it: it may have run (DESIGN §3)."""

    def script(arrival: Arrival, context: grpc.ServicerContext) -> bytes:
        forward(context, reason, "77/7")
        return b""

    with ProtocolServer(script) as server:
        caller = connect(server.target, retry=_RETRY)
        with pytest.raises(rifl.CallError) as caught:
            caller.call(b"", timeout=20)
        # One call to a server that deduplicates, however often it was sent.
        assert {arrival.seq for arrival in server.arrivals} == {1}
        assert server.grants == 1
    assert (caught.value.outcome, caught.value.reason) == (Outcome.UNKNOWN, "")
    assert type(caught.value) is rifl.CallError


def test_a_refusal_of_this_identity_counts(connect: Connect) -> None:
    """The same with our own identity: sent anew under another client id (DESIGN §3)."""

    def script(arrival: Arrival, context: grpc.ServicerContext) -> bytes:
        assert arrival.call is not None
        if arrival.call.client_id == 1001:
            forward(context, "LEASE_EXPIRED", str(arrival.call.rpc_id))
        return b"done"

    with ProtocolServer(script) as server:
        assert connect(server.target, retry=_RETRY).call(b"", timeout=20) == b"done"
        assert server.grants == 2


def test_a_lasting_lease_expired_is_not_asked_without_a_pause(connect: Connect) -> None:
    """Each new identity is an attempt; at the end the call is told not executed (DESIGN §3)."""

    def script(arrival: Arrival, context: grpc.ServicerContext) -> bytes:
        assert arrival.call is not None
        forward(context, "LEASE_EXPIRED", str(arrival.call.rpc_id))
        return b""

    with ProtocolServer(script) as server:
        caller = connect(server.target, retry=_RETRY)
        with pytest.raises(rifl.CallError, match="LEASE_EXPIRED") as caught:
            caller.call(b"", timeout=20)
        assert len(server.arrivals) == 3
    assert caught.value.outcome is Outcome.NOT_EXECUTED


@pytest.mark.parametrize("kind", KINDS)
def test_a_handler_that_forwards_an_upstreams_lease_expired_runs_once(
    connect: Connect, kind: str
) -> None:
    """Lasting, and with all its metadata: one run for each call of the stub (DESIGN §3)."""
    runs: list[bytes] = []

    def ask(request: bytes) -> grpc.RpcError:
        runs.append(request)
        # A client id that the upstream has never heard of, as after its restart.
        value = upstream.header(1, client_id=upstream.client_id ^ (1 << 40))
        try:
            upstream.channel.unary_unary(ECHO)(b"", timeout=20, metadata=(("rifl-bin", value),))
        except grpc.RpcError as error:
            return error
        raise AssertionError

    def handler(request: bytes, context: grpc.ServicerContext) -> bytes:
        error = ask(request)
        context.set_trailing_metadata(error.trailing_metadata())
        context.abort(error.code(), error.details())
        return b""

    async def handler_aio(request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        error = ask(request)
        trailing = tuple((key, value) for key, value in error.trailing_metadata())
        await context.abort(error.code(), error.details(), trailing)
        return b""

    def echo(request: bytes, context: grpc.ServicerContext) -> bytes:
        return request

    behind, front = rifl.Deduplicator("memory:"), rifl.Deduplicator("memory:")
    methods = {"Echo": handler_aio if kind == "aio" else handler}
    with (
        behind,
        front,
        serve("sync", [generic("test.Service", {"Echo": echo})], dedup=behind) as upstream_served,
        serve(kind, [generic("test.Service", methods)], dedup=front) as served,
    ):
        upstream = RawClient(upstream_served.address)
        caller = connect(served.address, retry=_RETRY)
        for number in range(3):
            with pytest.raises(rifl.CallError) as caught:
                caller.call(b"%d" % number, timeout=20)
            assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
            assert (caught.value.outcome, caught.value.reason) == (Outcome.EXECUTED, "")
        upstream.channel.close()
    assert runs == [b"0", b"1", b"2"]


def test_metadata_that_is_passed_on_names_no_call_of_the_channel(connect: Connect) -> None:
    """Each call has its own identity, whatever its metadata was: a front's is its caller's."""
    came: list[Any] = []
    effects: list[bytes] = []

    def front(request: bytes, context: grpc.ServicerContext) -> bytes:
        came.append([(key, value) for key, value in context.invocation_metadata()])
        return request

    def back(request: bytes, context: grpc.ServicerContext) -> bytes:
        effects.append(request)
        return request

    with (
        rifl.Deduplicator("memory:") as ours,
        serve("sync", [generic("test.Service", {"Echo": front})], dedup=ours) as fronted,
        rifl.connect(fronted.address) as channel,
    ):
        channel.unary_unary(ECHO)(b"", timeout=30)
        channel.batch(ECHO, [rifl.BatchItem(b"")], timeout=30)[0].raise_for_status()
    single, batched = came
    assert HEADER_KEY in dict(single)
    assert {HEADER_KEY, BATCH_KEY} <= set(dict(batched))
    with (
        rifl.Deduplicator("memory:") as theirs,
        serve("sync", [generic("test.Service", {"Echo": back})], dedup=theirs) as served,
    ):
        caller = connect(served.address)
        for metadata in (single, single, batched):
            assert caller.call(b"x", timeout=30, metadata=metadata) == b"x"
            [told] = caller.do(
                caller.channel.batch,
                ECHO,
                [rifl.BatchItem(b"y")],
                timeout=30,
                metadata=metadata,
            )
            told.raise_for_status()
    assert effects == [b"x", b"y"] * 3


def test_nor_does_metadata_that_is_passed_on_of_a_response_stream(connect: Connect) -> None:
    """The same where a handler's caller, the handler's own call, or both are streams (§3, §4)."""
    came: list[Any] = []
    effects: list[bytes] = []

    def front(request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        came.append([(key, value) for key, value in context.invocation_metadata()])
        yield from (b"0", b"1")

    def back(request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        effects.append(request)
        yield from (b"0", b"1", b"2")

    def echo(request: bytes, context: grpc.ServicerContext) -> bytes:
        effects.append(request)
        return request

    def told(caller: Caller, metadata: Any) -> list[bytes]:
        call = caller.do(
            lambda: caller.channel.unary_stream(TELL)(b"x", timeout=30, metadata=metadata)
        )

        async def all_of() -> list[bytes]:
            return [each async for each in call]

        return list(call) if caller.kind == "sync" else caller.on_loop(all_of())

    with (
        rifl.Deduplicator("memory:", methods={TELL: "plain"}) as ours,
        serve("sync", [_streaming(front)], dedup=ours) as fronted,
    ):
        assert told(connect(fronted.address), None) == [b"0", b"1"]
    [metadata] = came
    assert HEADER_KEY in dict(metadata)
    with (
        rifl.Deduplicator("memory:", methods={TELL: "plain", ECHO: "plain"}) as theirs,
        serve("sync", [_streaming(back, echo)], dedup=theirs) as served,
    ):
        caller = connect(served.address)
        for _ in range(2):
            assert told(caller, metadata) == [b"0", b"1", b"2"]
            assert caller.call(b"y", timeout=30, metadata=metadata) == b"y"
    assert effects == [b"x", b"y"] * 2


def _streaming(tell: Any, echo: Any = None) -> Any:
    methods = {"Tell": grpc.unary_stream_rpc_method_handler(tell)}
    if echo is not None:
        methods["Echo"] = grpc.unary_unary_rpc_method_handler(echo)
    return grpc.method_handlers_generic_handler("test.Service", methods)
