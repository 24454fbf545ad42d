"""One channel over several servers: which of them a call reaches (DESIGN §3)."""

from __future__ import annotations

import threading
from concurrent import futures
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from rifl import Deduplicator
from rifl._client.errors import CallError
from rifl.core import Outcome
from rifl.core._calling.retry import RetryPolicy
from rifl.v1 import rifl_pb2
from tests.client.protocol_server import Arrival, ProtocolServer, label, refuse
from tests.helpers.servers import generic, serve
from tests.helpers.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.client.conftest import Connect


def lost(arrival: Arrival, context: grpc.ServicerContext) -> bytes:
    context.abort(grpc.StatusCode.UNAVAILABLE, "lost")
    raise AssertionError


def answer(arrival: Arrival, context: grpc.ServicerContext) -> bytes:
    if arrival.attempt > 1:
        label(context, "executed")
    return b"reply"


def both(*servers: ProtocolServer) -> str:
    return ",".join(server.target for server in servers)


@pytest.mark.parametrize("how", ["", "DRAINING", "STORE_UNAVAILABLE", "NOT_LEADER"])
def test_the_next_attempt_goes_elsewhere_as_the_same_call(connect: Connect, how: str) -> None:
    """A lost answer and a refusal before anything ran go to the next target (DESIGN §3)."""

    def refusing(arrival: Arrival, context: grpc.ServicerContext) -> bytes:
        if how:
            refuse(context, how)
        return lost(arrival, context)

    with ProtocolServer(refusing) as first, ProtocolServer(answer) as second:
        caller = connect(both(first, second))
        assert caller.call(b"one", timeout=20) == b"reply"
        assert caller.call(b"two", timeout=20) == b"reply"
        sent = [*first.arrivals, *second.arrivals]
        calls = [arrival.call for arrival in sent if arrival.call is not None]
        assert [call.attempt for call in calls] == [1, 2, 1]
        assert len({(call.client_id, call.seq, call.stamp) for call in calls[:2]}) == 1
        assert second.grants == 0, "the identity is kept"


def test_the_client_id_is_had_from_whoever_answers(connect: Connect) -> None:
    """Grants and heartbeats follow the same choice as calls (DESIGN §5)."""
    with ProtocolServer(answer) as gone:
        dead = gone.target
    with ProtocolServer(answer, term_s=0.6) as second:
        caller = connect(f"{dead},{second.target}")
        assert caller.call(b"one", timeout=20) == b"reply"
        assert second.grants == 1
        second.wait_for(lambda: bool(second.renewals))


def test_heartbeats_move_on_when_the_server_is_lost(connect: Connect) -> None:
    """An idle client keeps its id over the loss of the server that gave it (DESIGN §5)."""
    with ProtocolServer(answer) as second:
        with ProtocolServer(answer, term_s=0.6) as first:
            caller = connect(both(first, second))
            assert caller.call(b"one", timeout=20) == b"reply"
        second.wait_for(lambda: bool(second.renewals))
        assert caller.session.client_id == 1001
        assert second.grants == 0


def test_the_leader_is_followed_only_where_the_user_named_it(connect: Connect) -> None:
    """NOT_LEADER redirects to given targets; to others only if opted in (DESIGN §3)."""
    with ProtocolServer(answer) as third, ProtocolServer(answer) as second:

        def elsewhere(arrival: Arrival, context: grpc.ServicerContext) -> bytes:
            refuse(context, "NOT_LEADER", 0.0, {"leader": third.target})
            raise AssertionError

        with ProtocolServer(elsewhere) as first:
            assert connect(both(first, second, third)).call(b"x", timeout=20) == b"reply"
            assert (len(second.arrivals), len(third.arrivals)) == (0, 1)
            assert connect(both(first, second)).call(b"x", timeout=20) == b"reply"
            assert (len(second.arrivals), len(third.arrivals)) == (1, 1)
            following = connect(first.target, follow_leaders=True)
            assert following.call(b"x", timeout=20) == b"reply"
            assert (len(second.arrivals), len(third.arrivals)) == (1, 2)
            alone = connect(first.target, retry=RetryPolicy(max_attempts=3))
            with pytest.raises(CallError) as refused:
                alone.call(b"x", timeout=20)
            assert refused.value.outcome is Outcome.UNKNOWN
            assert len(third.arrivals) == 2


def test_a_hedge_goes_to_another_target(connect: Connect) -> None:
    """The second attempt runs beside the first, on another server."""
    release = threading.Event()

    def slow(arrival: Arrival, context: grpc.ServicerContext) -> bytes:
        release.wait(20)
        return b"slow"

    def answer_after_the_first(arrival: Arrival, context: grpc.ServicerContext) -> bytes:
        # An answer ends the other attempt, which may be on its way.
        first.wait_for(lambda: bool(first.arrivals))
        return answer(arrival, context)

    try:
        with (
            ProtocolServer(slow) as first,
            ProtocolServer(answer_after_the_first) as second,
        ):
            caller = connect(both(first, second), hedge_after=0.05)
            assert caller.call(b"x", timeout=20) == b"reply"
            assert [arrival.attempt for arrival in first.arrivals] == [1]
            assert [arrival.attempt for arrival in second.arrivals] == [2]
            release.set()
    finally:
        release.set()


def test_a_server_that_hangs_is_left_by_the_next_attempt(connect: Connect) -> None:
    """After an attempt's time is over the next one goes elsewhere (DESIGN §3)."""
    release = threading.Event()

    def hangs(arrival: Arrival, context: grpc.ServicerContext) -> bytes:
        release.wait(20)
        return b"slow"

    try:
        with ProtocolServer(hangs) as first, ProtocolServer(answer) as second:
            retry = RetryPolicy(attempt_timeout_s=0.2, initial_backoff_s=0.01)
            caller = connect(both(first, second), retry=retry)
            assert caller.call(b"x", timeout=20) == b"reply"
            # However often that was, on a machine where the other one was slow, too.
            assert {arrival.attempt % 2 for arrival in first.arrivals} <= {1}
            assert {arrival.attempt % 2 for arrival in second.arrivals} == {0}
            release.set()
    finally:
        release.set()


def test_what_may_have_run_is_never_made_a_new_call(connect: Connect) -> None:
    """LEASE_EXPIRED by a server that does not share the store: unknown, no resend (DESIGN §3)."""

    def stranger(arrival: Arrival, context: grpc.ServicerContext) -> bytes:
        refuse(context, "LEASE_EXPIRED")
        raise AssertionError

    with ProtocolServer(lost) as first, ProtocolServer(stranger) as second:
        caller = connect(both(first, second))
        with pytest.raises(CallError) as failed:
            caller.call(b"x", timeout=20)
        assert failed.value.outcome is Outcome.UNKNOWN
        assert failed.value.reason == "LEASE_EXPIRED"
        assert len(first.arrivals) + len(second.arrivals) == 2


def test_other_methods_are_sent_once_to_the_current_target(connect: Connect) -> None:
    """What is not deduplicated is never retried, only sent where calls go now (DESIGN §5)."""
    plain = ("/test.Service/Plain",)
    with (
        ProtocolServer(lost, not_deduplicated=plain) as first,
        ProtocolServer(answer, not_deduplicated=plain) as second,
    ):
        caller = connect(both(first, second))
        caller.do(caller.session.open)
        with pytest.raises(CallError):
            caller.call(b"x", plain[0], timeout=20)
        assert caller.call(b"x", plain[0], timeout=20) == b"reply"
        assert (len(first.arrivals), len(second.arrivals)) == (1, 1)


def test_outcomes_are_asked_for_where_calls_go(connect: Connect) -> None:
    """Resolve follows the same choice (DESIGN §4)."""
    with ProtocolServer(lost) as first, ProtocolServer(lost) as second:
        for server in (first, second):
            server.resolve = lambda request, context: rifl_pb2.ResolveReply(
                outcome=rifl_pb2.OUTCOME_NOT_EXECUTED
            )
        caller = connect(both(first, second), retry=RetryPolicy(max_attempts=1))
        with pytest.raises(CallError) as failed:
            caller.call(b"x", timeout=20)
        first.server.stop(None).wait()
        resolution = caller.do(caller.session.resolve, failed.value.rpc_id)
        assert resolution.outcome is Outcome.NOT_EXECUTED


def test_the_channel_is_ready_if_one_target_is(connect: Connect) -> None:
    """Connectivity is that of the best target, on either channel."""
    with ProtocolServer(answer) as gone:
        dead = gone.target
    with ProtocolServer(answer) as second:
        caller = connect(f"{dead},{second.target}")
        ready = grpc.ChannelConnectivity.READY
        if caller.kind == "sync":
            states: list[Any] = []
            future = grpc.channel_ready_future(caller.channel)
            future.result(timeout=20)
            caller.channel.subscribe(states.append)
            until(lambda: ready in states, "the subscriber is told")
            caller.channel.unsubscribe(states.append)
        else:
            caller.on_loop(caller.channel.channel_ready())
            assert caller.do(caller.channel.get_state) is ready


def test_streams_go_on_at_another_target(connect: Connect, tmp_path: Path) -> None:
    """Request and response streams lost with one server run at the next one (DESIGN §4)."""
    runs: list[str] = []

    def gather(requests: Any, context: Any) -> bytes:
        runs.append("gather")
        return b"".join(requests)

    def spread(request: bytes, context: Any) -> Any:
        runs.append("spread")
        return iter([request, request])

    handler = grpc.method_handlers_generic_handler(
        "test.Service",
        {
            "Gather": grpc.stream_unary_rpc_method_handler(gather),
            "Spread": grpc.unary_stream_rpc_method_handler(spread),
        },
    )
    declared: Any = {f"/test.Service/{name}": "plain" for name in ("Gather", "Spread")}
    dedup = Deduplicator(f"sqlite:///{tmp_path / 'calls.db'}", methods=declared)
    with (
        dedup,
        serve("sync", [handler], dedup=dedup) as first,
        serve("sync", [handler], dedup=dedup) as second,
    ):
        caller = connect([first.address, second.address])
        caller.do(caller.session.open)
        first.stop(None)
        for method, request in (("Gather", iter([b"a", b"b"])), ("Spread", b"c")):
            caller.channel._inner.router.targets.current = 0
            if caller.kind == "sync":
                name = "stream_unary" if method == "Gather" else "unary_stream"
                found = getattr(caller.channel, name)(f"/test.Service/{method}")(request)
                replies = [found] if method == "Gather" else list(found)
            else:
                replies = caller.on_loop(_aio_stream(caller.channel, method, request))
            assert replies == ([b"ab"] if method == "Gather" else [b"c", b"c"])
        assert runs == ["gather", "spread"]


async def _aio_stream(channel: Any, method: str, request: Any) -> list[bytes]:
    if method == "Gather":
        return [await channel.stream_unary(f"/test.Service/{method}")(request)]
    stream = channel.unary_stream(f"/test.Service/{method}")(request)
    return [message async for message in stream]


def test_many_callers_lose_a_server_and_each_call_happens_once(
    connect: Connect, tmp_path: Path
) -> None:
    """Two servers over one deduplicator, one stopped under load: effects count once (DESIGN §1)."""
    effects: list[bytes] = []
    store = Deduplicator(f"sqlite:///{tmp_path / 'calls.db'}")

    def effect(request: bytes, context: Any) -> bytes:
        effects.append(request)
        return request

    handlers = [generic("test.Service", {"Echo": effect})]
    with (
        store,
        serve("sync", handlers, dedup=store) as first,
        serve("sync", handlers, dedup=store) as second,
    ):
        caller = connect([first.address, second.address])
        wanted = [b"%d" % number for number in range(400)]
        with futures.ThreadPoolExecutor(8) as pool:
            results = [pool.submit(caller.call, request, timeout=20) for request in wanted]
            until(lambda: len(effects) > 100, "the load runs")
            first.stop(None)
            assert [result.result(30) for result in results] == wanted
        assert sorted(effects) == sorted(wanted)
