"""Prometheus metrics over real servers and clients (DESIGN §9)."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from prometheus_client import CollectorRegistry, generate_latest

import rifl
from rifl.metrics import PrometheusObserver
from tests.echo import METHOD, aio_served, lose_answers, served
from tests.helpers.waiting import until


def _value(registry: CollectorRegistry, name: str, **labels: str) -> float:
    return registry.get_sample_value(name, labels) or 0.0


def _calls(registry: CollectorRegistry, outcome: str, reason: str = "") -> float:
    return _value(
        registry, "rifl_server_calls_total", method=METHOD, outcome=outcome, reason=reason
    )


def test_a_process_of_clients_alone_is_no_server() -> None:
    """It has no gauge that would look like a server's that refuses calls (DESIGN §9)."""
    registry = CollectorRegistry()
    observer = PrometheusObserver(registry)
    with (
        rifl.Deduplicator("memory:") as dedup,
        served(dedup) as target,
        rifl.connect(target, observer=observer) as channel,
    ):
        channel.unary_unary(METHOD)(b"one", timeout=10)
    text = generate_latest(registry).decode()
    assert "rifl_client_calls_total{" in text
    for name in ("rifl_server_serving", "rifl_server_clients", "rifl_server_outcomes_total{"):
        assert name not in text


def test_what_alerts_count_is_there_from_the_start() -> None:
    """With 0, without a method: the first is an increase, also once the server is closed (§9)."""
    registry = CollectorRegistry()

    def outcomes(outcome: str, reason: str) -> float | None:
        labels = {"outcome": outcome, "reason": reason}
        return registry.get_sample_value("rifl_server_outcomes_total", labels)

    with (
        rifl.Deduplicator("memory:", observer=PrometheusObserver(registry)) as dedup,
        served(dedup) as target,
        rifl.connect(target) as channel,
        grpc.insecure_channel(target) as plain,
    ):
        assert outcomes("unknown", "OUTCOME_UNKNOWN") == 0
        assert outcomes("not-executed", "BAD_HEADER") == 0
        assert outcomes("executed", "") == 0
        for request in (b"one", b"two"):
            channel.unary_unary(METHOD)(request, timeout=10)
        call: Any = plain.unary_unary(METHOD)
        with pytest.raises(grpc.RpcError):
            call(b"x", metadata=[("rifl-bin", b"\xff")], timeout=10)
        assert outcomes("executed", "") == 2
        assert registry.get_sample_value("rifl_server_serving") == 1
    assert outcomes("not-executed", "BAD_HEADER") == 1
    assert registry.get_sample_value("rifl_server_serving") is None


def test_a_refusal_of_the_first_moment_shows() -> None:
    """Also one that was told before the observer was attached (DESIGN §9)."""

    class Drains(PrometheusObserver):
        def attached(self, statistics: Any) -> None:
            # As a store does that fails in the background.
            statistics.__self__.drain()
            super().attached(statistics)

    registry = CollectorRegistry()
    with rifl.Deduplicator("memory:", observer=Drains(registry)):
        assert registry.get_sample_value("rifl_server_serving") == 0


def test_of_several_servers_one_that_refuses_shows() -> None:
    """Whichever was told of last: an operator has to look at it (DESIGN §9)."""
    registry = CollectorRegistry()
    observer = PrometheusObserver(registry)

    def serving() -> float | None:
        return registry.get_sample_value("rifl_server_serving")

    with rifl.Deduplicator("memory:", observer=observer):
        with rifl.Deduplicator("memory:", observer=observer) as refuses:
            assert serving() == 1
            refuses.drain()
            with rifl.Deduplicator("memory:", observer=observer):
                assert serving() == 0
        assert serving() == 1
    assert serving() is None
    with rifl.Deduplicator("memory:") as unobserved:
        unobserved.drain()
        assert not unobserved.statistics().serving


def test_a_retry_shows_on_both_sides(tmp_path: Path) -> None:
    """A lost answer is one executed and one replayed arrival, and one retry (DESIGN §3, §9)."""
    registry = CollectorRegistry()
    observer = PrometheusObserver(registry)
    url = f"sqlite:///{tmp_path / 'rifl.db'}"
    with (
        rifl.Deduplicator(url, observer=observer) as dedup,
        served(dedup, around=[lose_answers(1)]) as target,
        rifl.connect(target, observer=observer) as channel,
    ):
        call = channel.unary_unary(METHOD)
        assert call(b"one", timeout=10) == b"one"
        assert call(b"two", timeout=10) == b"two"
        assert call.future(b"three", timeout=10).result() == b"three"
        assert _calls(registry, "executed") == 3
        assert _calls(registry, "replayed") == 1
        assert _value(registry, "rifl_server_clients") == 1
        assert _value(registry, "rifl_server_leases") == 1
        assert _value(registry, "rifl_server_running") == 0
        assert _value(registry, "rifl_server_serving") == 1
        dedup.drain()
        assert _value(registry, "rifl_server_serving") == 0
    ended = {"method": METHOD, "reason": "", "code": "OK"}
    assert _value(registry, "rifl_client_calls_total", outcome="executed", **ended) == 2
    assert _value(registry, "rifl_client_calls_total", outcome="replayed", **ended) == 1
    assert _value(registry, "rifl_client_attempts_total", method=METHOD) == 4
    assert _value(registry, "rifl_client_retries_total", method=METHOD) == 1
    commits = _value(registry, "rifl_store_commit_seconds_count")
    entries = _value(registry, "rifl_store_commit_entries_sum")
    # The client, before it was told its id; an intent and a record for each of the three calls.
    assert commits >= 3
    assert entries == 7
    assert _value(registry, "rifl_server_clients") == 0, "closed ones are not counted"
    assert b"rifl_server_call_seconds_bucket" in generate_latest(registry)


async def test_the_aio_shells_count_alike(tmp_path: Path) -> None:
    """An aio server and an aio client report as the sync ones do (DESIGN §9, thin shells)."""
    registry = CollectorRegistry()
    observer = PrometheusObserver(registry)

    async def picky(request: bytes, context: Any) -> bytes:
        if request == b"no":
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such thing")
        return request

    async with (
        rifl.Deduplicator("memory:", observer=observer) as dedup,
        aio_served(dedup, picky) as target,
        rifl.aio.connect(target, observer=observer) as channel,
    ):
        call = channel.unary_unary(METHOD)
        assert await call(b"one", timeout=10) == b"one"
        assert await call(b"two", timeout=10) == b"two"
        with pytest.raises(grpc.RpcError):
            await call(b"no", timeout=10)
    assert _calls(registry, "executed") == 3
    labels = {"method": METHOD, "reason": "", "outcome": "executed"}
    assert _value(registry, "rifl_client_calls_total", code="OK", **labels) == 2
    assert _value(registry, "rifl_client_calls_total", code="NOT_FOUND", **labels) == 1


def test_a_waiting_duplicate_is_counted_while_it_waits() -> None:
    """The gauge of waiters follows duplicates of a running call (DESIGN §4 step 2)."""
    registry = CollectorRegistry()
    begun, go_on = threading.Event(), threading.Event()

    def slow(request: bytes, context: Any) -> bytes:
        begun.set()
        go_on.wait(20)
        return request

    with (
        rifl.Deduplicator("memory:", observer=PrometheusObserver(registry)) as dedup,
        served(dedup, slow) as target,
        rifl.connect(target, hedge_after=0.05) as channel,
    ):
        future = channel.unary_unary(METHOD).future(b"slow", timeout=20)
        assert begun.wait(20)
        while not _value(registry, "rifl_server_waiting"):
            assert not future.done()
        assert _value(registry, "rifl_server_running") == 1
        go_on.set()
        assert future.result() == b"slow"
        # The answer may come by the other arrival.
        until(lambda: not _value(registry, "rifl_server_waiting"), "nobody waits any more")


def test_refusals_are_counted_by_reason() -> None:
    """A header that cannot be read is counted under its reason (DESIGN §3)."""
    registry = CollectorRegistry()
    with (
        rifl.Deduplicator("memory:", observer=PrometheusObserver(registry)) as dedup,
        served(dedup) as target,
        grpc.insecure_channel(target) as channel,
    ):
        call: Any = channel.unary_unary(METHOD)
        with pytest.raises(grpc.RpcError):
            call(b"x", metadata=[("rifl-bin", b"\xff")], timeout=10)
    assert _calls(registry, "not-executed", "BAD_HEADER") == 1


def test_a_cancelled_aio_call_is_counted() -> None:
    """A call its caller gave up is told as cancelled, outcome unknown (DESIGN §3)."""
    registry = CollectorRegistry()
    observer = PrometheusObserver(registry)

    async def run() -> None:
        arrived, go_on = asyncio.Event(), asyncio.Event()

        async def stuck(request: bytes, context: Any) -> bytes:
            if request == b"stuck":
                arrived.set()
                await go_on.wait()
            return request

        async with (
            rifl.Deduplicator("memory:", observer=observer) as dedup,
            aio_served(dedup, stuck) as target,
            rifl.aio.connect(target, observer=observer) as channel,
        ):
            method = channel.unary_unary(METHOD)
            await method(b"warm", timeout=10)
            call = method(b"stuck", timeout=10)
            await arrived.wait()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            go_on.set()

    asyncio.run(run())
    labels = {"method": METHOD, "reason": "", "outcome": "unknown", "code": "CANCELLED"}
    assert _value(registry, "rifl_client_calls_total", **labels) == 1


def test_the_interceptor_alone_counts_too() -> None:
    """A channel built by somebody else reports through the interceptor (DESIGN §9)."""
    registry = CollectorRegistry()
    with (
        rifl.Deduplicator("memory:") as dedup,
        served(dedup, around=[lose_answers(1)]) as target,
        grpc.insecure_channel(target, options=[("grpc.enable_retries", 0)]) as plain,
    ):
        interceptor = rifl.client_interceptor(
            plain, grpc_retries=False, observer=PrometheusObserver(registry)
        )
        call: Any = grpc.intercept_channel(plain, interceptor).unary_unary(METHOD)
        assert call(b"one", timeout=10) == b"one"
        assert call.future(b"two", timeout=10).result() == b"two"
        interceptor.close()
    labels = {"method": METHOD, "reason": "", "code": "OK"}
    assert _value(registry, "rifl_client_calls_total", outcome="replayed", **labels) == 1
    assert _value(registry, "rifl_client_calls_total", outcome="executed", **labels) == 1
    assert _value(registry, "rifl_client_attempts_total", method=METHOD) == 3


async def test_the_aio_interceptor_alone_counts_too() -> None:
    """The same on an event loop (DESIGN §9, thin shells)."""
    registry = CollectorRegistry()
    async with (
        rifl.Deduplicator("memory:") as dedup,
        aio_served(dedup) as target,
        grpc.aio.insecure_channel(target) as plain,
    ):
        interceptor = rifl.aio.client_interceptor(plain, observer=PrometheusObserver(registry))
        async with grpc.aio.insecure_channel(target, interceptors=[interceptor]) as channel:
            call: Any = channel.unary_unary(METHOD)
            assert await call(b"one", timeout=10) == b"one"
        await interceptor.close()
    assert _value(registry, "rifl_client_attempts_total", method=METHOD) == 1


def test_an_observer_that_raises_breaks_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Calls go on, on both sides, whatever an observer does; the log hears once (DESIGN §9)."""

    class Broken(rifl.Observer):
        def call_served(self, served: Any) -> None:
            raise RuntimeError("server's")

        def call_begins(self, method: str, metadata: Any) -> Any:
            raise RuntimeError("client's")

        def call_ended(self, ended: Any, begun: Any) -> None:
            raise RuntimeError("client's")

    with (
        rifl.Deduplicator("memory:", observer=Broken()) as dedup,
        served(dedup) as target,
        rifl.connect(target, observer=Broken()) as channel,
    ):
        call = channel.unary_unary(METHOD)
        for number in (b"1", b"2", b"3"):
            assert call(number, timeout=10) == number
    told = [record for record in caplog.records if "observer_failed" in record.getMessage()]
    assert len(told) == 3


def test_without_an_observer_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody watches, so no clock is read and nothing is built for it (DESIGN §9, no cost)."""

    def forbidden(*_: Any) -> Any:
        raise AssertionError("measured, and nobody asked")

    monkeypatch.setattr("rifl._server.reply.time", SimpleNamespace(perf_counter=forbidden))
    monkeypatch.setattr("rifl._server.reply.ServedCall", forbidden)
    monkeypatch.setattr("rifl._client.state.EndedCall", forbidden)
    monkeypatch.setattr("rifl._client.exchange.EndedCall", forbidden)
    with (
        rifl.Deduplicator("memory:") as dedup,
        served(dedup, around=[lose_answers(1)]) as target,
        rifl.connect(target) as channel,
    ):
        call = channel.unary_unary(METHOD)
        assert call(b"one", timeout=10) == b"one"
        assert call(b"two", timeout=10) == b"two"


def test_a_batch_counts_each_of_its_items() -> None:
    """Items are calls on both sides; batches are counted by their size (DESIGN §4, §9)."""
    registry = CollectorRegistry()
    observer = PrometheusObserver(registry)
    with (
        rifl.Deduplicator("memory:", observer=observer) as dedup,
        served(dedup) as target,
        rifl.connect(target, observer=observer, session="s") as channel,
    ):
        items = [rifl.BatchItem(b"x", key) for key in (b"1", b"2", b"1")]
        items.append(rifl.BatchItem(b"y", b"1"))
        channel.batch(METHOD, items, timeout=10)
    assert _calls(registry, "executed") == 2
    assert _calls(registry, "replayed") == 1
    assert _calls(registry, "not-executed", "PAYLOAD_MISMATCH") == 1
    ended = {"method": METHOD, "reason": "", "code": "OK"}
    assert _value(registry, "rifl_client_calls_total", outcome="executed", **ended) == 2
    for side in ("server", "client"):
        assert _value(registry, f"rifl_{side}_batch_items_count", method=METHOD) == 1
        assert _value(registry, f"rifl_{side}_batch_items_sum", method=METHOD) == 4
