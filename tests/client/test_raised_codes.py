"""Retry loops around the channel repeat nothing that may have run (DESIGN §3)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from grpc_status import rpc_status

import rifl
from rifl._grpc.status import read_error_info
from rifl.core import Outcome
from rifl.core._calling.retry import RetryPolicy
from rifl.testing import Fault
from tests.calls.services import Kinds, serving
from tests.client.protocol_server import ECHO, Arrival, ProtocolServer, label, refuse
from tests.helpers.ports import free_port
from tests.helpers.servers import generic, serve
from tests.helpers.waiting import deadlines

if TYPE_CHECKING:
    from tests.client.conftest import Connect

# The codes of google-api-core's transient errors, and those that its generated clients add.
_RETRIED = frozenset(
    {
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
    }
)
_TIMES = 3


def repeating(call: Callable[[], Any]) -> Any:
    """Call as google-api-core's Retry does: again, where the predicate takes the error."""
    for left in reversed(range(_TIMES)):
        try:
            return call()
        except grpc.RpcError as error:
            if error.code() not in _RETRIED or not left:
                raise
    raise AssertionError


def _lost(arrival: Arrival, context: grpc.ServicerContext) -> bytes:
    context.abort(grpc.StatusCode.UNAVAILABLE, "connection reset")
    return b""


def _refused(reason: str) -> Callable[[Arrival, grpc.ServicerContext], bytes]:
    def script(arrival: Arrival, context: grpc.ServicerContext) -> bytes:
        refuse(context, reason)
        return b""

    return script


def _unlabelled(arrival: Arrival, context: grpc.ServicerContext) -> bytes:
    if arrival.attempt == 1:
        context.abort(grpc.StatusCode.UNAVAILABLE, "connection reset")
    return b"from a replica that is not wrapped"


_WAYS = {
    "lost": (_lost, "UNAVAILABLE"),
    "a crash took it": (_refused("OUTCOME_UNKNOWN"), "ABORTED"),
    "still running": (_refused("IN_PROGRESS"), "ABORTED"),
    "record pending": (_refused("RECORD_PENDING"), "ABORTED"),
    "deposed": (_refused("DEPOSED"), "ABORTED"),
    "answer too large": (_refused("RESPONSE_TOO_LARGE"), "RESOURCE_EXHAUSTED"),
    "not wrapped": (_unlabelled, "UNKNOWN"),
}


@pytest.mark.parametrize("way", _WAYS)
def test_what_may_have_run_is_not_repeated_by_a_librarys_retry(connect: Connect, way: str) -> None:
    """One identity whatever the loop around it repeats; the error says what it was (DESIGN §3)."""
    script, ended_as = _WAYS[way]
    policy = RetryPolicy(initial_backoff_s=0.01, max_attempts=2)
    with ProtocolServer(script) as server:
        caller = connect(server.target, retry=policy)
        with pytest.raises(rifl.CallError) as caught:
            repeating(lambda: caller.call(b"", timeout=20))
        assert len({arrival.seq for arrival in server.arrivals}) == 1
    error = caught.value
    assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert error.outcome is not Outcome.NOT_EXECUTED
    assert error.original_code is grpc.StatusCode[ended_as]
    assert ended_as in str(error)
    # Who reads rich errors, as Google's clients do, rejects one that contradicts its status.
    rich = rpc_status.from_call(error)
    if rich is not None:
        assert (rich.code, rich.message) == (error.code().value[0], error.details())
        assert read_error_info(error.trailing_metadata()).reason == error.reason
    else:
        assert error.reason in ("", "NOT_WRAPPED")


def test_what_will_not_run_is_repeated(connect: Connect) -> None:
    """The handler's own "nothing happened" keeps the code it answered with (DESIGN §3)."""

    def script(arrival: Arrival, context: grpc.ServicerContext) -> bytes:
        label(context, "not-executed")
        context.abort(grpc.StatusCode.UNAVAILABLE, "rolled back")
        return b""

    with ProtocolServer(script) as server:
        caller = connect(server.target)
        with pytest.raises(rifl.CallError) as caught:
            repeating(lambda: caller.call(b"", timeout=20))
        assert len({arrival.seq for arrival in server.arrivals}) == _TIMES
    assert caught.value.code() is caught.value.original_code is grpc.StatusCode.UNAVAILABLE
    assert caught.value.outcome is Outcome.NOT_EXECUTED


def test_a_key_that_no_attempt_has_run_keeps_its_code(connect: Connect) -> None:
    """Sent again, it names the same call, which others may have run (DESIGN §3)."""
    policy = RetryPolicy(initial_backoff_s=0.01, max_attempts=2)
    kinds = Kinds()
    with serving("sync", kinds) as service:
        caller = connect(service.address, retry=policy, session="s")
        caller.do(caller.session.open)
        service.faults.arm(Fault.STORE_DOWN, times=2)
        with pytest.raises(rifl.CallError, match="STORE_UNAVAILABLE") as caught:
            caller.call(b"", "/t.Kinds/Unary", timeout=20, metadata=[rifl.key("k")])
    assert kinds.effects == []
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert caught.value.outcome is Outcome.UNKNOWN
    caller = connect(f"127.0.0.1:{free_port()}", session="s")
    with pytest.raises(rifl.CallError) as caught:
        caller.call(b"", timeout=0.2, metadata=[rifl.key("k")])
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert caught.value.outcome is Outcome.UNKNOWN


def test_a_deadline_without_a_server_stays_one(connect: Connect) -> None:
    """Nothing was sent, so DEADLINE_EXCEEDED may be repeated (DESIGN §3)."""
    caller = connect(f"127.0.0.1:{free_port()}")
    with pytest.raises(rifl.CallError) as caught:
        caller.call(b"", timeout=0.2)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert caught.value.outcome is Outcome.NOT_EXECUTED


class _Slow:
    """A handler whose effect is there before its caller's deadline, and whose answer is not."""

    def __init__(self) -> None:
        self.effects: list[bytes] = []
        self.release = threading.Event()

    def __call__(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        self.effects.append(request)
        self.release.wait(20)
        return b""

    def served(self, dedup: rifl.Deduplicator) -> Any:
        """Serve it, with a thread for each call of a test."""
        handler = generic("test.Service", {"Echo": self})
        return serve("sync", [handler], dedup=dedup, threads=64)


def test_a_deadline_that_passed_is_not_repeated(connect: Connect) -> None:
    """Bare gRPC under such a loop has the effect each time; our channel once (DESIGN §3)."""
    slow = _Slow()
    with (
        rifl.Deduplicator("memory:") as dedup,
        slow.served(dedup) as served,
    ):
        for timeout_s in deadlines():
            bare = b"bare %g" % timeout_s
            with grpc.insecure_channel(served.address) as channel, pytest.raises(grpc.RpcError):
                repeating(partial(channel.unary_unary(ECHO), bare, timeout=timeout_s))
            if slow.effects.count(bare) == _TIMES:
                break
        caller = connect(served.address)
        caller.do(caller.session.open)
        for timeout_s in deadlines():
            ours = b"ours %g" % timeout_s
            with pytest.raises(rifl.CallError) as caught:
                repeating(partial(caller.call, ours, timeout=timeout_s))
            if ours in slow.effects:
                break
        assert slow.effects.count(ours) == 1
        slow.release.set()
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert caught.value.original_code is grpc.StatusCode.DEADLINE_EXCEEDED


def test_an_application_that_looks_for_deadline_exceeded_gets_it(connect: Connect) -> None:
    """By the channel's option; other codes are no different (DESIGN §3)."""
    slow = _Slow()
    with (
        rifl.Deduplicator("memory:") as dedup,
        slow.served(dedup) as served,
    ):
        caller = connect(served.address, keep_deadline_exceeded=True)
        caller.do(caller.session.open)
        for timeout_s in deadlines():
            request = b"%g" % timeout_s
            with pytest.raises(rifl.CallError) as caught:
                caller.call(request, timeout=timeout_s)
            if request in slow.effects:
                break
        slow.release.set()
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert caught.value.outcome is Outcome.UNKNOWN


def test_the_items_of_a_batch_say_the_same(connect: Connect) -> None:
    """An item that may have run is FAILED_PRECONDITION, and raises as a single call (DESIGN §3)."""
    slow = _Slow()
    with (
        rifl.Deduplicator("memory:") as dedup,
        slow.served(dedup) as served,
    ):
        caller = connect(served.address)
        caller.do(caller.session.open)
        for timeout_s in deadlines():
            items = [rifl.BatchItem(b"%s %g" % (each, timeout_s)) for each in (b"one", b"two")]
            results = caller.do(caller.channel.batch, ECHO, items, timeout=timeout_s)
            if items[0].request in slow.effects:
                break
        slow.release.set()
    for result in results:
        assert result.outcome is Outcome.UNKNOWN
        assert result.code is grpc.StatusCode.FAILED_PRECONDITION
        assert result.original_code is grpc.StatusCode.DEADLINE_EXCEEDED
        with pytest.raises(rifl.CallError, match="DEADLINE_EXCEEDED") as caught:
            result.raise_for_status()
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
