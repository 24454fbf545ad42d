"""Places for handlers on real servers: ``MethodPolicy(max_running=...)`` (DESIGN §4)."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from structlog.testing import capture_logs

import rifl
from rifl._server.rooms import PoolPlaces
from rifl._wire.envelope import encode_batch, parse_reply
from rifl.core import Overloaded
from rifl.core._serving.policy import PolicyError
from rifl.core._shared.call import Call
from tests.helpers.raw import RawClient, read
from tests.helpers.servers import KINDS, generic, serve
from tests.helpers.waiting import DEADLINE_S, until

_HOLD, _OTHER = "/test.Room/Hold", "/test.Room/Other"
_OVERLOADED = ("UNAVAILABLE", "OVERLOADED", "not-executed")


class Room:
    """A server whose handlers, in one room, hold their places until the test lets them go."""

    def __init__(self, kind: str, url: str, policy: rifl.MethodPolicy, threads: int = 16) -> None:
        self.runs: Counter[bytes] = Counter()
        self.order: list[bytes] = []
        self.running = self.most = 0
        self.go = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(32)
        self.dedup = rifl.Deduplicator(
            url, methods={_HOLD: policy, _OTHER: policy}, bounds=rifl.Bounds(max_waiters=4)
        )

        def begin(request: bytes) -> None:
            with self._lock:
                self.runs[request] += 1
                self.order.append(request)
                self.running += 1
                self.most = max(self.most, self.running)

        def end() -> None:
            with self._lock:
                self.running -= 1

        def hold(request: bytes, context: Any) -> bytes:
            begin(request)
            self.go.acquire(timeout=DEADLINE_S)
            end()
            return b"did " + request

        async def hold_on_loop(request: bytes, context: Any) -> bytes:
            begin(request)
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._pool, lambda: self.go.acquire(timeout=DEADLINE_S))
            end()
            return b"did " + request

        handler = hold_on_loop if kind == "aio" else hold
        handlers = [generic("test.Room", {"Hold": handler, "Other": handler})]
        self._serving = serve(kind, handlers, dedup=self.dedup, threads=threads)
        self.served = self._serving.__enter__()

    def runs_are(self, count: int) -> None:
        until(lambda: self.running == count, f"{count} run")

    def queued(self, count: int) -> None:
        until(lambda: self.dedup.statistics().queued == count, f"{count} wait for a place")

    def release(self, count: int = 1) -> None:
        for _ in range(count):
            self.go.release()

    def close(self) -> None:
        self.release(100)
        if self.served.loop is not None:
            self.served.loop.run(self.dedup.aclose())
        self._serving.__exit__(None, None, None)
        self.dedup.close()
        self._pool.shutdown(wait=False)


@pytest.fixture
def room(request: Any, tmp_path: Path) -> Iterator[Any]:
    """Makes such servers, and stops them."""
    made: list[Room] = []

    def make(server: str, store: str = "memory:", threads: int = 16, **policy: Any) -> Room:
        url = store
        if store == "sqlite":
            url = f"sqlite:///{tmp_path}/s.db"
        elif store in ("redis", "postgres"):
            url = request.getfixturevalue(f"shared_{store}").url()
        declared = rifl.MethodPolicy(**{"kind": "plain", **policy})
        made.append(Room(server, url, declared, threads))
        return made[-1]

    yield make
    for server in made:
        server.close()


_IN_MEMORY = [(kind, "memory:") for kind in KINDS]


@pytest.mark.parametrize(
    ("kind", "store"), [*_IN_MEMORY, ("aio", "sqlite"), ("aio", "redis"), ("sync", "postgres")]
)
def test_no_more_run_than_there_are_places(room: Any, kind: str, store: str) -> None:
    """Those of all methods of one policy together; each runs once, and is answered."""
    server = room(kind, store, max_running=2)
    with RawClient(server.served.address) as client:
        calls = [
            client.future(_HOLD if seq % 2 else _OTHER, b"%d" % seq, seq) for seq in range(1, 7)
        ]
        server.runs_are(2)
        server.queued(4)
        server.release(6)
        assert [read(call).response for call in calls] == [b"did %d" % seq for seq in range(1, 7)]
    assert server.most == 2
    assert set(server.runs.values()) == {1}


@pytest.mark.parametrize(("kind", "store"), [*_IN_MEMORY, ("sync", "redis"), ("aio", "postgres")])
def test_only_what_would_run_needs_a_place(room: Any, kind: str, store: str) -> None:
    """A duplicate, an answer that stands and ``resolve`` wait for none, and are not refused (§4.2).

    A new call is, and sent again it runs once.
    """
    server = room(kind, store, kind="idempotent", max_running=1, max_waiting=0)
    with RawClient(server.served.address) as client, capture_logs() as events:
        server.release()
        assert client.call(_HOLD, b"1", 1).ok
        running = client.future(_HOLD, b"2", 2)
        server.runs_are(1)
        assert client.call(_HOLD, b"3", 3).refusal == _OVERLOADED
        assert client.call(_HOLD, b"3", 3, attempt=2).refusal == _OVERLOADED
        assert client.call(_HOLD, b"4", None, key=b"k").refusal == (
            *_OVERLOADED[:2],
            "unknown",
        )
        again = client.call(_HOLD, b"1", 1, attempt=2)
        assert (again.response, again.outcome) == (b"did 1", "replayed")
        assert client.resolve(1).outcome
        duplicate = client.future(_HOLD, b"2", 2, attempt=2)
        until(
            lambda: server.dedup.statistics().waiting or duplicate.done(), "the duplicate has come"
        )
        server.release()
        assert read(running).response == b"did 2"
        assert read(duplicate).response == b"did 2"
        server.release()
        assert client.call(_HOLD, b"3", 3, attempt=3).response == b"did 3"
    assert server.runs == {b"1": 1, b"2": 1, b"3": 1}
    (event,) = [each for each in events if each["event"] == "overloaded"]
    assert event["method"] == _HOLD


@pytest.mark.parametrize(("kind", "store"), [*_IN_MEMORY, ("aio", "redis")])
def test_a_call_whose_caller_left_is_not_run(room: Any, kind: str, store: str) -> None:
    """Neither one that cancelled, nor one whose deadline passed; their places are others'.

    gRPC does not tell plain functions on an event loop's server that their caller cancelled.
    """
    server = room(kind, store, max_running=1)
    with RawClient(server.served.address) as client:
        first = client.future(_HOLD, b"1", 1)
        server.runs_are(1)
        if kind != "threads":
            left = client.future(_HOLD, b"2", 2)
            again = client.future(_HOLD, b"4", 4, attempt=2)
            server.queued(2)
            left.cancel()
            again.cancel()
            server.queued(0)
        assert not client.call(_HOLD, b"3", 3, timeout=0.5).ok
        server.queued(0)
        server.release(3)
        assert read(first).ok
        assert client.call(_HOLD, b"4", 4, attempt=3).ok
        assert client.call(_HOLD, b"5", 5).ok
    assert server.order == [b"1", b"4", b"5"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_takes_one_place_and_keeps_its_order(room: Any, kind: str) -> None:
    """Its items run one after another; refused, none has run, and sent again each runs once."""
    server = room(kind, "sqlite", max_running=1, max_waiting=1)
    with RawClient(server.served.address) as client:

        def batch(first: int, attempt: int = 1) -> Any:
            seqs = [first, first + 1]
            metadata = (
                ("rifl-bin", client.header(None, first=first, attempt=attempt)),
                ("rifl-batch", "1"),
            )
            body = encode_batch([b"%d" % seq for seq in seqs], [], seqs)
            return client.channel.unary_unary(_HOLD).future(body, DEADLINE_S, metadata)

        first = batch(1)
        server.runs_are(1)
        second = batch(3)
        server.queued(1)
        refused = read(batch(5))
        assert refused.refusal == _OVERLOADED
        server.release(4)
        for each in (first, second):
            assert [item.record.code for item in parse_reply(each.result(), 2).items()] == [0, 0]
        server.release(2)
        assert read(batch(5, 2)).ok
    assert server.order == [b"%d" % seq for seq in range(1, 7)]
    assert server.most == 1


def test_a_pool_has_more_threads_than_places() -> None:
    """Else none could wait for a place: refused at start, as is a bound for a stream."""
    policy = rifl.MethodPolicy(max_running=4)
    with rifl.Deduplicator("memory:", default=policy) as dedup:
        server = grpc.server(ThreadPoolExecutor(4), interceptors=[dedup.interceptor()])
        with pytest.raises(PolicyError, match="4 threads"):
            dedup.add_to_server(server)
        server.stop(0)
    for wrong in ({"max_running": 0}, {"max_waiting": 1}, {"max_running": 1, "max_waiting": -1}):
        with pytest.raises(PolicyError):
            rifl.MethodPolicy(**wrong)  # type: ignore[arg-type]


def test_a_full_pool_runs_no_call_that_has_too_little_time(room: Any) -> None:
    """What would start a handler, that is; an answer that stands is given, and a free pool runs it.

    One in sixteen of them runs, too.
    """
    server = room("sync", threads=2)
    engine = server.dedup._engine
    with RawClient(server.served.address) as client, RawClient(server.served.address) as other:
        server.release()
        assert client.call(_HOLD, b"1", 1).ok
        held = [client.future(_HOLD, b"%d" % seq, seq) for seq in (2, 3)]
        server.runs_are(2)
        # Not before: the first of these two may find the other one waiting.
        for _ in range(16):
            engine.pooled.of(_HOLD, rifl.MethodPolicy()).times.note(10 * DEADLINE_S)
        # Both threads run; the first of these finds the next one waiting behind it.
        calls = []
        for seq in (4, 5, 6):
            calls.append(other.future(_HOLD, b"%d" % seq, seq, timeout=DEADLINE_S))
            until(lambda: engine.pool_queue() == len(calls), "calls wait for a thread")
        again = client.future(_HOLD, b"1", 1, attempt=2)
        until(lambda: engine.pool_queue() == 4, "calls wait for a thread")
        server.release()
        assert [read(call).refusal for call in calls] == [_OVERLOADED] * 3
        assert read(again).outcome == "replayed"
        server.release()
        assert all(read(call).ok for call in held)
        server.release()
        assert other.call(_HOLD, b"4", 4, attempt=2).ok
    assert server.order[:3] == [b"1", b"2", b"3"] or server.order[:3] == [b"1", b"3", b"2"]
    assert server.order[3:] == [b"4"]


def test_a_run_that_ended_too_late_is_told_to_the_pool() -> None:
    """Calls that have hardly the time of one are refused then, and were not before."""
    now = 0.0
    pool = PoolPlaces(rifl.MethodPolicy(), lambda: now)

    def run(seconds: float, time_s: float) -> None:
        nonlocal now
        context = SimpleNamespace(time_remaining=lambda: time_s)
        place = pool.place(Call(7, b"", 1), context)
        place.enter()
        now += seconds
        place.leave(ran=True)

    for _ in range(16):
        run(0.04, 1.0)
    run(0.04, 0.07)
    run(0.04, 0.04)
    with pytest.raises(Overloaded):
        run(0.04, 0.07)
