"""Calls through either channel against a real server, as their caller sees them (DESIGN §3, §4)."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING, Any

import grpc
import pytest

import rifl
from rifl._client.errors import CallError
from rifl.core import Outcome, RpcId
from rifl.core._calling.retry import RetryPolicy
from rifl.core._shared.errors import (
    LeaseExpired,
    NotDeduplicated,
    NotWrapped,
    OutcomeUnknown,
    PayloadMismatch,
    WindowExceeded,
)
from rifl.v1 import rifl_pb2
from tests.client.protocol_server import ECHO, Arrival, ProtocolServer, label, refuse
from tests.helpers.ports import free_port
from tests.helpers.servers import generic, serve
from tests.helpers.waiting import deadlines

if TYPE_CHECKING:
    from tests.client.conftest import Connect


def later(arrival: Arrival, context: grpc.ServicerContext) -> None:
    """Label a later attempt's answer, as a wrapped server does."""
    if arrival.attempt > 1:
        label(context, "replayed")


def test_every_attempt_is_the_same_call(connect: Connect) -> None:
    """Identity, stamp and bytes stay, the attempt number grows (DESIGN §3)."""

    def script(arrival: Arrival, context: grpc.ServicerContext) -> bytes:
        if arrival.attempt < 4:
            context.abort(grpc.StatusCode.UNAVAILABLE, "lost")
        later(arrival, context)
        return b"reply"

    with ProtocolServer(script) as server:
        assert connect(server.target).call(b"request", timeout=20) == b"reply"
        calls = [arrival.call for arrival in server.arrivals]
        assert [call.attempt for call in calls if call] == [1, 2, 3, 4]
        assert len({(c.client_id, c.seq, c.token, c.stamp) for c in calls if c}) == 1
        assert {arrival.request for arrival in server.arrivals} == {b"request"}
        assert calls[0] is not None
        assert calls[0].stamp[0] > 1_600_000_000_000_000


def test_answers_are_acknowledged_by_the_next_call(connect: Connect) -> None:
    """First_incomplete follows the answers, errors of the handler's included (DESIGN §3)."""

    def script(arrival: Arrival, context: grpc.ServicerContext) -> bytes:
        if arrival.request == b"fail":
            label(context, "executed")
            context.abort(grpc.StatusCode.NOT_FOUND, "no such thing")
        return b""

    with ProtocolServer(script) as server:
        caller = connect(server.target)
        caller.call(b"one")
        with pytest.raises(CallError) as caught:
            caller.call(b"fail")
        caller.call(b"two")
        assert [(a.seq, a.call and a.call.first_incomplete) for a in server.arrivals] == [
            (1, 1),
            (2, 2),
            (3, 3),
        ]
    error = caught.value
    assert type(error) is CallError
    assert (error.code(), error.details()) == (grpc.StatusCode.NOT_FOUND, "no such thing")
    assert (error.outcome, error.reason, error.rpc_id) == (
        Outcome.EXECUTED,
        "",
        RpcId(1001, 2),
    )


@pytest.mark.parametrize(
    ("reason", "cls", "outcome"),
    [
        ("PAYLOAD_MISMATCH", PayloadMismatch, Outcome.NOT_EXECUTED),
        ("OUTCOME_UNKNOWN", OutcomeUnknown, Outcome.UNKNOWN),
    ],
)
def test_refusals_are_typed(
    connect: Connect, reason: str, cls: type[CallError], outcome: Outcome
) -> None:
    """A refusal raises its class, a gRPC error and a core error at once (DESIGN §3)."""

    def script(arrival: Arrival, context: grpc.ServicerContext) -> bytes:
        refuse(context, reason)
        return b""

    with ProtocolServer(script) as server:
        with pytest.raises(cls) as caught:
            connect(server.target).call(b"")
        assert len(server.arrivals) == 1
    assert isinstance(caught.value, grpc.aio.AioRpcError)
    assert isinstance(caught.value, OutcomeUnknown) == (reason == "OUTCOME_UNKNOWN")
    assert (caught.value.reason, caught.value.outcome) == (reason, outcome)


@pytest.mark.parametrize("reason", ["IN_PROGRESS", "RECORD_PENDING", "DEPOSED", "DRAINING"])
def test_waiting_refusals_are_retried(connect: Connect, reason: str) -> None:
    """Refusals that pass are retried under the same identity (DESIGN §3)."""

    def script(arrival: Arrival, context: grpc.ServicerContext) -> bytes:
        if arrival.attempt == 1:
            refuse(context, reason, retry_after_s=0.01)
        later(arrival, context)
        return b"done"

    with ProtocolServer(script) as server:
        assert connect(server.target).call(b"") == b"done"
        assert [arrival.seq for arrival in server.arrivals] == [1, 1]


def test_pushback_never_means_never(connect: Connect) -> None:
    """A negative ``grpc-retry-pushback-ms`` ends the retries (DESIGN §3)."""

    def script(arrival: Arrival, context: grpc.ServicerContext) -> bytes:
        context.set_trailing_metadata((("grpc-retry-pushback-ms", "-1"),))
        context.abort(grpc.StatusCode.UNAVAILABLE, "go away")
        return b""

    with ProtocolServer(script) as server:
        with pytest.raises(CallError, match="go away") as caught:
            connect(server.target).call(b"")
        assert len(server.arrivals) == 1
    assert caught.value.outcome is Outcome.UNKNOWN


def test_a_replica_that_is_not_wrapped_is_found_out(connect: Connect) -> None:
    """A later attempt answered without an outcome raises unknown (DESIGN §3)."""

    def script(arrival: Arrival, context: grpc.ServicerContext) -> bytes:
        if arrival.attempt == 1:
            context.abort(grpc.StatusCode.UNAVAILABLE, "lost")
        return b"ran again"

    with ProtocolServer(script) as server, pytest.raises(NotWrapped) as caught:
        connect(server.target).call(b"")
    assert caught.value.outcome is Outcome.UNKNOWN


def test_an_expired_lease_on_attempt_one_is_resent_under_a_new_id(connect: Connect) -> None:
    """LEASE_EXPIRED on attempt 1: one new id for all, each call runs once (DESIGN §3)."""
    lost: list[int] = []
    barrier = threading.Barrier(8)

    def script(arrival: Arrival, context: grpc.ServicerContext) -> bytes:
        assert arrival.call is not None
        if arrival.call.client_id == 1001 and arrival.request != b"first":
            barrier.wait(20)
            refuse(context, "LEASE_EXPIRED")
        return arrival.request

    with ProtocolServer(script) as server:
        caller = connect(server.target, on_lease_lost=lost.append)
        caller.call(b"first")
        calls = [caller.start(b"%d" % n) for n in range(8)]
        assert [caller.result(call) for call in calls] == [b"%d" % n for n in range(8)]
        assert server.grants == 2
        assert caller.session.client_id == 1002
        server.wait_for(lambda: lost == [1001])


@pytest.mark.parametrize("why", ["attempt", "option", "previous"])
def test_it_is_not_resent_where_it_may_have_run(connect: Connect, why: str) -> None:
    """On a later attempt, or with gRPC's own retries about, unknown is raised (DESIGN §3)."""

    def script(arrival: Arrival, context: grpc.ServicerContext) -> bytes:
        if why == "attempt" and arrival.attempt == 1:
            context.abort(grpc.StatusCode.UNAVAILABLE, "lost")
        refuse(
            context, "LEASE_EXPIRED", info={"previous_attempts": "1"} if why == "previous" else {}
        )
        return b""

    options = [("grpc.enable_retries", 1)] if why == "option" else []
    with ProtocolServer(script) as server:
        with pytest.raises(LeaseExpired) as caught:
            connect(server.target, options=options).call(b"")
        assert {arrival.call and arrival.call.client_id for arrival in server.arrivals} == {1001}
    assert caught.value.outcome is Outcome.UNKNOWN


def test_the_deadline_leaves_it_unknown_then_resolvable(connect: Connect) -> None:
    """A deadline that passed means unknown; resolve tells later, once (DESIGN §4)."""
    release = threading.Event()

    def script(arrival: Arrival, context: grpc.ServicerContext) -> bytes:
        release.wait(20)
        return b"late"

    def resolve(request: Any, context: grpc.ServicerContext) -> Any:
        assert (request.client_id, request.token, request.seq) == (
            caller.session.client_id,
            b"token-of-a-test",
            1,
        )
        return rifl_pb2.ResolveReply(
            outcome=rifl_pb2.OUTCOME_EXECUTED,
            record=rifl_pb2.CompletionRecord(response=b"late", has_response=True),
        )

    with ProtocolServer(script) as server:
        server.resolve = resolve
        for timeout_s in deadlines():
            caller = connect(server.target)
            client_id = caller.do(caller.session.open)
            with pytest.raises(CallError) as caught:
                caller.call(b"", timeout=timeout_s)
            if any(each.call and each.call.client_id == client_id for each in server.arrivals):
                break
        release.set()
        error = caught.value
        assert (error.code(), error.outcome) == (
            grpc.StatusCode.FAILED_PRECONDITION,
            Outcome.UNKNOWN,
        )
        caller.call(b"", timeout=20)
        assert server.arrivals[-1].call is not None
        assert server.arrivals[-1].call.first_incomplete == 1
        resolution = caller.do(caller.session.resolve, error.rpc_id)
        assert (resolution.outcome, resolution.reply, resolution.error) == (
            Outcome.EXECUTED,
            b"late",
            None,
        )
        caller.call(b"", timeout=20)
        assert server.arrivals[-1].call.first_incomplete == 3
        with pytest.raises(CallError, match="STALE_RPC"):
            caller.do(caller.session.resolve, error.rpc_id)


def test_resolutions_tell_errors_and_the_unknown(connect: Connect) -> None:
    """A recorded error answer is told whole, and so is a lost outcome (DESIGN §4)."""
    answers = [
        rifl_pb2.ResolveReply(outcome=rifl_pb2.OUTCOME_UNKNOWN),
        rifl_pb2.ResolveReply(
            outcome=rifl_pb2.OUTCOME_EXECUTED,
            record=rifl_pb2.CompletionRecord(
                code=5,
                details="gone",
                trailing_metadata=[rifl_pb2.MetadataEntry(key="k", value=b"v")],
            ),
        ),
    ]

    def script(arrival: Arrival, context: grpc.ServicerContext) -> bytes:
        context.abort(grpc.StatusCode.UNAVAILABLE, "lost")
        return b""

    attempts: list[int] = []

    def resolve(request: Any, context: grpc.ServicerContext) -> Any:
        attempts.append(request.seq)
        if len(attempts) == 1:
            context.abort(grpc.StatusCode.UNAVAILABLE, "lost")
        return answers.pop(0)

    with ProtocolServer(script) as server:
        server.resolve = resolve
        caller = connect(server.target, retry=RetryPolicy(initial_backoff_s=0.01, max_attempts=2))
        with pytest.raises(CallError) as caught:
            caller.call(b"")
        rpc_id = caught.value.rpc_id
        assert caller.do(caller.session.resolve, rpc_id).outcome is Outcome.UNKNOWN
        found = caller.do(caller.session.resolve, rpc_id)
    assert (found.outcome, found.reply) == (Outcome.EXECUTED, None)
    assert (found.error.code(), found.error.details()) == (grpc.StatusCode.NOT_FOUND, "gone")
    assert tuple(found.error.trailing_metadata()) == (("k", "v"),)


def test_a_cancelled_call_is_unknown_and_named(connect: Connect) -> None:
    """Cancelling leaves the call resolvable by its ``rpc_id`` (DESIGN §4)."""
    release = threading.Event()

    def script(arrival: Arrival, context: grpc.ServicerContext) -> bytes:
        if arrival.request == b"slow":
            release.wait(20)
        return b""

    def resolve(request: Any, context: grpc.ServicerContext) -> Any:
        return rifl_pb2.ResolveReply(outcome=rifl_pb2.OUTCOME_NOT_EXECUTED)

    with ProtocolServer(script) as server:
        server.resolve = resolve
        caller = connect(server.target)
        caller.call(b"first")
        call = caller.start(b"slow")
        server.wait_for(lambda: len(server.arrivals) == 2)
        assert caller.do(call.cancel)
        release.set()
        assert call.cancelled()
        assert call.done()
        with pytest.raises(BaseException) as caught:  # noqa: PT011 - either
            caller.result(call)
        assert type(caught.value).__name__ in ("FutureCancelledError", "CancelledError")
        assert caller.do(call.code) is grpc.StatusCode.CANCELLED
        assert call.rpc_id == RpcId(1001, 2)
        resolution = caller.do(caller.session.resolve, call.rpc_id)
        assert resolution.outcome is Outcome.NOT_EXECUTED


@pytest.mark.parametrize("first", ["lost", "refused"])
def test_a_late_copy_of_a_refused_call_makes_no_promise_false(connect: Connect, first: str) -> None:
    """What was sent and refused for the moment is unknown: a proxy's copy may run yet, until
    the call is resolved, which it can be (DESIGN §3, §4)."""
    effects: list[int] = []
    fenced: list[int] = []

    def script(arrival: Arrival, context: grpc.ServicerContext) -> bytes:
        if first == "lost" and arrival.attempt == 1 and refusing:
            context.abort(grpc.StatusCode.UNAVAILABLE, "lost")
        if not refusing:
            effects.append(arrival.seq)
            return b""
        refuse(context, "DRAINING")
        return b""

    def resolve(request: Any, context: grpc.ServicerContext) -> Any:
        fenced.append(request.seq)
        return rifl_pb2.ResolveReply(outcome=rifl_pb2.OUTCOME_NOT_EXECUTED)

    refusing = True
    policy = RetryPolicy(initial_backoff_s=0.01, max_attempts=2)
    with ProtocolServer(script) as server:
        server.resolve = resolve
        caller = connect(server.target, retry=policy)
        with pytest.raises(CallError, match="DRAINING") as caught:
            caller.call(b"")
        assert caught.value.outcome is Outcome.UNKNOWN
        # The copy, of the very bytes that were refused, when the server is up again.
        refusing = False
        with grpc.insecure_channel(server.target) as proxy:
            value = server.arrivals[0].header
            proxy.unary_unary(ECHO)(b"", timeout=20, metadata=(("rifl-bin", value),))
        assert effects == [1]
        resolution = caller.do(caller.session.resolve, caught.value.rpc_id)
        assert resolution.outcome is Outcome.NOT_EXECUTED
        assert fenced == [1]


def test_an_attempt_has_a_timeout_of_its_own(connect: Connect) -> None:
    """A hanging attempt is given up and retried within the deadline."""
    release = threading.Event()

    def script(arrival: Arrival, context: grpc.ServicerContext) -> bytes:
        if arrival.attempt == 1:
            release.wait(20)
        later(arrival, context)
        return b"second"

    with ProtocolServer(script) as server:
        caller = connect(
            server.target, retry=RetryPolicy(initial_backoff_s=0.01, attempt_timeout_s=0.2)
        )
        assert caller.call(b"", timeout=20) == b"second"
        release.set()


def test_hedges_are_the_same_call(connect: Connect) -> None:
    """A slow attempt is joined by a second one of the same identity."""
    release = threading.Event()

    def script(arrival: Arrival, context: grpc.ServicerContext) -> bytes:
        if arrival.attempt == 1:
            release.wait(20)
        later(arrival, context)
        return b"%d" % arrival.attempt

    with ProtocolServer(script) as server:
        caller = connect(server.target, hedge_after=0.05)
        assert caller.call(b"", timeout=20) == b"2"
        release.set()
        assert caller.result(caller.start(b"")) in (b"1", b"2")
        assert {arrival.seq for arrival in server.arrivals[:2]} == {1}


def test_hedges_in_healthy_traffic_are_nobodys_bug(connect: Connect) -> None:
    """A hedge that comes late gets the answer; none is refused as STALE_RPC (DESIGN §3)."""
    seen: list[str] = []

    class Seen(rifl.Observer):
        def call_served(self, served: Any) -> None:
            seen.append(served.reason)

    turn = threading.Semaphore(3)

    def echo(request: bytes, context: Any) -> bytes:
        # Some wait for others, for about as long as a hedge takes.
        with turn:
            return request

    with (
        rifl.Deduplicator("memory:", observer=Seen()) as dedup,
        serve("sync", [generic("test.Service", {"Echo": echo})], dedup=dedup, threads=32) as served,
    ):
        caller = connect(served.address, hedge_after=0.001)
        caller.do(caller.session.open)
        for _ in range(40):
            calls = [caller.start(b"%d" % n, timeout=20) for n in range(15)]
            assert [caller.result(call) for call in calls] == [b"%d" % n for n in range(15)]
    assert len(seen) > 600
    assert set(seen) == {""}


def test_methods_that_are_not_deduplicated_are_sent_once(connect: Connect) -> None:
    """No header and no retry for what the grant leaves out (DESIGN §5)."""

    def script(arrival: Arrival, context: grpc.ServicerContext) -> bytes:
        if arrival.request == b"fail":
            context.abort(grpc.StatusCode.UNAVAILABLE, "down")
        return arrival.request

    read = "/test.Service/Read"
    with ProtocolServer(script, not_deduplicated=(read,)) as server:
        caller = connect(server.target)
        for _ in range(2):
            assert caller.call(b"x", read) == b"x"
            with pytest.raises(CallError, match="down") as caught:
                caller.call(b"fail", read)
            assert (caught.value.rpc_id, caught.value.outcome) == (None, Outcome.UNKNOWN)
        assert [arrival.header for arrival in server.arrivals] == [None] * 4


def test_a_server_without_leases_is_a_typed_error(connect: Connect) -> None:
    """An unwrapped server is NOT_DEDUPLICATED and gets no call (DESIGN §5)."""
    with ProtocolServer(leases=False) as server:
        caller = connect(server.target)
        with pytest.raises(NotDeduplicated) as caught:
            caller.call(b"", timeout=20)
        assert server.arrivals == []
        with pytest.raises(NotDeduplicated):
            caller.do(caller.session.open)
    assert caught.value.outcome is Outcome.NOT_EXECUTED


@pytest.mark.parametrize("code", ["UNIMPLEMENTED", "PERMISSION_DENIED", "UNKNOWN"])
def test_what_grant_was_answered_is_in_the_error(connect: Connect, code: str) -> None:
    """Of each form of call: it alone tells a server that is not wrapped from a proxy's refusal,
    or from one that is tried again (DESIGN §5)."""

    def answer(context: grpc.ServicerContext) -> None:
        context.abort(grpc.StatusCode[code], "as told")

    with ProtocolServer(deduplicated=(ECHO,)) as server:
        server.on_grant = answer
        caller = connect(server.target)

        def batch(**given: Any) -> None:
            (result,) = caller.do(caller.channel.batch, ECHO, [rifl.BatchItem(b"")], **given)
            result.raise_for_status()

        forms: list[Any] = [
            lambda **given: caller.call(b"", **given),
            batch,
            lambda **given: caller.do(caller.session.open, **given),
        ]
        for form in forms:
            if code == "UNKNOWN":
                for timeout_s in deadlines():
                    with pytest.raises(CallError) as caught:
                        form(timeout=timeout_s)
                    assert caught.value.outcome is Outcome.NOT_EXECUTED
                    if "as told" in caught.value.details():
                        break
                continue
            with pytest.raises(CallError) as caught:
                form(timeout=20)
            error = caught.value
            assert error.outcome is Outcome.NOT_EXECUTED
            unhosted = code == "UNIMPLEMENTED"
            assert error.details().startswith(f"no client id: {code}: as told")
            assert ("Deduplicator.add_to_server" in error.details()) == unhosted
            assert error.reason == ("NOT_DEDUPLICATED" if unhosted else "")
            assert error.code().name == ("FAILED_PRECONDITION" if unhosted else code)
        assert server.arrivals == []


def test_a_server_that_cannot_be_reached_is_named_with_the_reason(connect: Connect) -> None:
    """A call that ran out of time before it had an id tells what stood in its way."""
    caller = connect(f"127.0.0.1:{free_port()}")
    for timeout_s in deadlines():
        with pytest.raises(CallError, match="not sent") as caught:
            caller.call(b"", timeout=timeout_s)
        if re.search(r"not sent; last attempt: .*connect", str(caught.value)):
            break
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert caught.value.outcome is Outcome.NOT_EXECUTED


def test_first_calls_share_one_grant_that_is_retried(connect: Connect) -> None:
    """Concurrent first calls wait for one Grant, repeated while it fails."""
    failures = iter([True, True])

    def flaky(context: grpc.ServicerContext) -> None:
        if next(failures, False):
            context.abort(grpc.StatusCode.UNAVAILABLE, "starting")

    with ProtocolServer() as server:
        server.on_grant = flaky
        caller = connect(server.target)
        calls = [caller.start(b"%d" % n, timeout=20) for n in range(10)]
        assert [caller.result(call) for call in calls] == [b"%d" % n for n in range(10)]
        assert server.grants == 1
        assert caller.do(caller.session.open) == caller.session.client_id == 1001


def test_without_a_server_nothing_was_executed(connect: Connect) -> None:
    """No client id within the deadline: not executed."""
    caller = connect("localhost:1")
    with pytest.raises(CallError) as caught:
        caller.call(b"", timeout=0.3)
    assert caught.value.outcome is Outcome.NOT_EXECUTED
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


def test_a_client_that_waits_for_a_server_logs_once(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """However often it asks for a client id; again when it was there in between (DESIGN §9)."""

    def told() -> int:
        return sum("lease_server_not_reached" in record.getMessage() for record in caplog.records)

    asked: list[bool] = []

    def flaky(context: grpc.ServicerContext) -> None:
        asked.append(True)
        if len(asked) <= 4:
            context.abort(grpc.StatusCode.UNAVAILABLE, "starting")

    with ProtocolServer() as server:
        server.on_grant = flaky
        caller = connect(server.target)
        assert caller.call(b"x", timeout=20) == b"x"
        assert len(asked) == 5
    assert told() == 1


def test_calls_wait_for_their_own_window(connect: Connect) -> None:
    """A full window makes callers wait, to their deadline at most (DESIGN §3)."""
    release = threading.Event()

    def script(arrival: Arrival, context: grpc.ServicerContext) -> bytes:
        if arrival.request == b"slow":
            release.wait(20)
        return arrival.request

    with ProtocolServer(script, window=2) as server:
        caller = connect(server.target)
        slow = [caller.start(b"slow") for _ in range(2)]
        server.wait_for(lambda: len(server.arrivals) == 2)
        with pytest.raises(WindowExceeded, match="not sent") as caught:
            caller.call(b"late", timeout=0.1)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert caught.value.outcome is Outcome.NOT_EXECUTED
        waiting = [caller.start(b"%d" % n, timeout=20) for n in range(6)]
        release.set()
        assert [caller.result(call) for call in waiting] == [b"%d" % n for n in range(6)]
        assert [caller.result(call) for call in slow] == [b"slow"] * 2


def test_an_answer_over_the_receive_limit_does_not_loop(connect: Connect) -> None:
    """The limit travels in the header; what exceeds it anyway is asked for once."""
    with ProtocolServer(lambda arrival, context: b"x" * 5000) as server:
        caller = connect(server.target, options=[("grpc.max_receive_message_length", 1000)])
        with pytest.raises(CallError, match="larger than max") as caught:
            caller.call(b"", timeout=20)
        assert len(server.arrivals) == 1
        assert server.arrivals[0].call is not None
        assert server.arrivals[0].call.max_response_bytes == 1000
    assert caught.value.outcome is Outcome.UNKNOWN


def test_call_options_reach_every_attempt(connect: Connect) -> None:
    """Metadata and compression of the caller's go with each attempt."""

    def script(arrival: Arrival, context: grpc.ServicerContext) -> bytes:
        if arrival.attempt == 1:
            context.abort(grpc.StatusCode.UNAVAILABLE, "lost")
        later(arrival, context)
        return b""

    with ProtocolServer(script) as server:
        connect(server.target).call(
            b"x" * 100,
            metadata=(("who", "me"),),
            wait_for_ready=True,
            compression=grpc.Compression.Gzip,
        )
        assert [dict(arrival.metadata)["who"] for arrival in server.arrivals] == ["me", "me"]


def test_calls_survive_a_server_that_comes_late(connect: Connect) -> None:
    """A call begun before its server waits for it by retrying."""
    address = f"127.0.0.1:{free_port()}"
    caller = connect(address)
    call = caller.start(b"early", timeout=30)
    with ProtocolServer(address=address):
        assert caller.result(call) == b"early"


def test_streams_pass_through(connect: Connect) -> None:
    """Streams are the inner channel's own (DESIGN §1)."""
    with ProtocolServer() as server:
        caller = connect(server.target)
        method = caller.channel.stream_stream("/test.Service/Stream")
        if caller.kind == "sync":
            assert list(method(iter([b"a", b"b"]))) == [b"a", b"b"]
            return

        async def stream() -> list[bytes]:
            return [reply async for reply in method(iter([b"a", b"b"]))]

        assert caller.on_loop(stream()) == [b"a", b"b"]


def test_close_gives_an_idle_id_back_and_ends_calls(connect: Connect) -> None:
    """Release for an idle client; later calls fail as gRPC's do."""
    with ProtocolServer() as server:
        caller = connect(server.target)
        caller.call(b"")
        caller.do(caller.channel.close)
        assert server.released == [1001]
        with pytest.raises((ValueError, grpc.aio.UsageError), match="closed"):
            caller.call(b"")


def test_close_with_calls_under_way_releases_nothing(connect: Connect) -> None:
    """An id with calls outstanding is left to expire; they end cancelled."""
    release = threading.Event()

    def script(arrival: Arrival, context: grpc.ServicerContext) -> bytes:
        if arrival.request == b"slow":
            release.wait(20)
        return b""

    with ProtocolServer(script) as server:
        caller = connect(server.target)
        caller.call(b"")
        call = caller.start(b"slow")
        server.wait_for(lambda: len(server.arrivals) == 2)
        caller.do(caller.channel.close)
        release.set()
        assert caller.do(call.code) is grpc.StatusCode.CANCELLED
        assert server.released == []
        assert server.grants == 1


def test_idle_clients_renew_and_a_lost_lease_is_noticed(connect: Connect) -> None:
    """A heartbeat after a third of the term; a refused one means a new id (DESIGN §5)."""
    refused = threading.Event()

    def script(arrival: Arrival, context: grpc.ServicerContext) -> bytes:
        if refused.is_set() and arrival.call is not None and arrival.call.client_id == 1001:
            refuse(context, "LEASE_EXPIRED")
        return b""

    with ProtocolServer(script, term_s=0.3) as server:
        caller = connect(server.target)
        caller.call(b"")
        server.wait_for(lambda: len(server.renewals) >= 3)
        assert set(server.renewals) == {1001}

        def expired(context: grpc.ServicerContext) -> None:
            refused.set()
            refuse(context, "LEASE_EXPIRED")

        server.on_renew = expired
        assert refused.wait(20)
        server.on_renew = None
        caller.call(b"", timeout=20)
        last = server.arrivals[-1].call
        assert last is not None
        assert (last.client_id, last.seq) == (1002, 1)


def test_echo_method_is_the_default(connect: Connect) -> None:
    """The tests' default method is the server's echo: a guard of the tests themselves (§9)."""
    with ProtocolServer() as server:
        assert connect(server.target).call(b"x", ECHO) == b"x"


@pytest.mark.parametrize("code", ["UNAUTHENTICATED", "PERMISSION_DENIED"])
def test_a_server_that_lets_no_lease_through_says_what_to_do(connect: Connect, code: str) -> None:
    """The first thing that an interceptor for tokens meets: the call was not sent."""

    def refuse(context: grpc.ServicerContext) -> None:
        context.abort(grpc.StatusCode[code], "no token")

    with ProtocolServer() as server:
        server.on_grant = refuse
        caller = connect(server.target)
        with pytest.raises(rifl.CallError, match=r"no token.*LeaseServer.*interceptors=") as failed:
            caller.call(b"x", timeout=20)
        assert failed.value.code() is grpc.StatusCode[code]
        assert failed.value.outcome is rifl.Outcome.NOT_EXECUTED
        assert server.arrivals == []
