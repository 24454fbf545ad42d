"""The budget for retries and hedges, against real servers: who waits, and what is free."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from typing import Any

import grpc
import pytest
from prometheus_client import CollectorRegistry

import rifl
from rifl.core._calling.retry import RetryPolicy
from rifl.metrics import PrometheusObserver
from tests.client.conftest import Caller, Connect
from tests.client.protocol_server import Arrival, ProtocolServer, label
from tests.helpers.forgetting import ForgettingProxy
from tests.helpers.waiting import until

METHOD = "/test.Service/Echo"


class Held(rifl.Observer):
    """Counts what was held back."""

    def __init__(self) -> None:
        self.retries = 0
        self.hedges = 0

    def attempt_held_back(self, method: str, *, hedge: bool) -> None:
        assert method == METHOD
        if hedge:
            self.hedges += 1
        else:
            self.retries += 1


class Slow:
    """Answers first attempts when it is told to, and later ones at once: with their number."""

    def __init__(self) -> None:
        self.released = threading.Event()

    def __call__(self, arrival: Arrival, context: grpc.ServicerContext) -> bytes:
        if arrival.attempt == 1:
            assert self.released.wait(60)
        else:
            label(context, "replayed")
        return b"%d" % arrival.attempt


def start(caller: Caller, count: int) -> list[Any]:
    caller.do(caller.session.open)
    return [caller.start(b"", timeout=60) for _ in range(count)]


def test_an_attempt_that_finds_no_token_is_not_cut_off(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """Of eight slow calls two or so are sent again; the others' first attempts are answered."""
    slow, held, registry = Slow(), Held(), CollectorRegistry()
    retry = RetryPolicy(
        attempt_timeout_s=0.2, initial_backoff_s=0.01, budget_tokens=1.0, budget_ratio=0.0
    )
    with ProtocolServer(slow) as server:
        observers = [held, PrometheusObserver(registry)]
        caller = connect(server.target, retry=retry, observer=observers)
        try:
            begun = time.monotonic()
            calls = start(caller, 8)
            until(lambda: held.retries >= 6, "six calls wait for a token")
            probes = int(time.monotonic() - begun) + 1
        finally:
            slow.released.set()
        answers = [caller.result(call) for call in calls]
        # One token, a probe a second, and what came while the handlers were released.
        assert answers.count(b"1") >= 8 - 1 - probes - 1
        assert len(server.arrivals) <= 8 + 1 + probes + 1
    labels = {"method": METHOD, "attempt": "retry"}
    assert registry.get_sample_value("rifl_client_held_back_total", labels) == held.retries
    assert caplog.text.count("retries_held_back") == 1


def test_a_connection_that_dies_costs_no_token(connect: Connect) -> None:
    """All its calls are sent on at once, by the next connection, which is there in a moment."""
    slow = Slow()
    retry = RetryPolicy(budget_tokens=1.0, budget_ratio=0.0)
    with ProtocolServer(slow) as server, closing(ForgettingProxy(server.port)) as proxy:
        caller = connect(proxy.target, retry=retry)
        try:
            calls = start(caller, 30)
            server.wait_for(lambda: len(server.arrivals) == 30)
            begun = time.monotonic()
            proxy.cut()
            assert {caller.result(call) for call in calls} == {b"2"}
        finally:
            slow.released.set()
        # By probes alone it would take half a minute.
        assert time.monotonic() - begun < 15
        assert len(server.arrivals) == 60


def test_a_server_that_cancels_its_calls_and_leaves_costs_no_token(connect: Connect) -> None:
    """As one that stops does: those that wait for a token are sent once the connection is lost."""

    def cancelled(arrival: Arrival, context: grpc.ServicerContext) -> bytes:
        if arrival.attempt == 1:
            context.abort(grpc.StatusCode.CANCELLED, "stopping")
        label(context, "replayed")
        return b"2"

    held = Held()
    retry = RetryPolicy(budget_tokens=1.0, budget_ratio=0.0)
    with ProtocolServer(cancelled) as server, closing(ForgettingProxy(server.port)) as proxy:
        caller = connect(proxy.target, retry=retry, observer=held)
        calls = start(caller, 30)
        until(lambda: held.retries >= 25, "calls wait for a token")
        begun = time.monotonic()
        proxy.cut()
        assert {caller.result(call) for call in calls} == {b"2"}
        assert time.monotonic() - begun < 15


def test_attempts_that_find_no_connection_cost_no_token(connect: Connect) -> None:
    """While a server is away its calls are tried as often as ever."""
    held = Held()
    retry = RetryPolicy(
        initial_backoff_s=0.01, max_backoff_s=0.05, budget_tokens=1.0, budget_ratio=0.0
    )
    with ProtocolServer() as server:
        address = server.target
        caller = connect(address, retry=retry, observer=held)
        caller.do(caller.session.open)
    calls = [caller.start(b"x", timeout=60) for _ in range(20)]
    # Each is refused many times meanwhile.
    threading.Event().wait(0.5)
    with ProtocolServer(address=address, script=_replay):
        assert {caller.result(call) for call in calls} == {b"x"}
    assert held.retries == 0


def _replay(arrival: Arrival, context: grpc.ServicerContext) -> bytes:
    if arrival.attempt > 1:
        label(context, "replayed")
    return arrival.request


def test_hedges_are_held_back_when_the_bucket_is_low(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """All calls are slow: half of the tokens are for hedges; the operator is told once."""
    slow, held, registry = Slow(), Held(), CollectorRegistry()
    retry = RetryPolicy(budget_tokens=4.0, budget_ratio=0.0)
    with ProtocolServer(slow) as server:
        observers = [held, PrometheusObserver(registry)]
        caller = connect(server.target, retry=retry, observer=observers, hedge_after=0.05)
        try:
            calls = start(caller, 12)
            until(lambda: held.hedges == 10, "ten hedges wait")
            server.wait_for(lambda: len(server.arrivals) == 12 + 2)
        finally:
            slow.released.set()
        for call in calls:
            assert caller.result(call) in (b"1", b"2")
        assert len(server.arrivals) == 12 + 2
    labels = {"method": METHOD, "attempt": "hedge"}
    assert registry.get_sample_value("rifl_client_held_back_total", labels) == held.hedges
    assert caplog.text.count("hedges_held_back") == 1


def test_batches_wait_for_tokens_too(connect: Connect) -> None:
    """A batch that no server answers is sent once a second, and its RPC is not cut off."""
    held = Held()
    retry = RetryPolicy(
        attempt_timeout_s=0.1, initial_backoff_s=0.01, budget_tokens=1.0, budget_ratio=0.0
    )
    slow = Slow()
    with ProtocolServer(slow) as server:
        caller = connect(server.target, retry=retry, observer=held)
        caller.do(caller.session.open)
        begun = time.monotonic()
        results = caller.do(caller.channel.batch, METHOD, [rifl.BatchItem(b"a")], timeout=1.5)
        seconds = time.monotonic() - begun
        slow.released.set()
        assert results[0].outcome is rifl.Outcome.UNKNOWN
        assert held.retries >= 1
        assert len(server.arrivals) <= 1 + 1 + int(seconds) + 1
