"""Triggers, in short: calls end, none runs twice, and the server answers again afterwards.

The same triggers as of ``benchmarks.overload``, which measures how soon; here counts decide. A
burst of calls finds all places taken, or the server or its store away, until all have ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import psycopg
import psycopg_pool
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

import rifl
import rifl.aio
from benchmarks.overload.notes import read
from benchmarks.overload.server import METHOD as BENCH_METHOD
from rifl.v1 import rifl_pb2
from tests.helpers.servers import LoopThread, generic, serve
from tests.helpers.waiting import DEADLINE_S, until

pytestmark = pytest.mark.faults

METHOD = "/test.Trigger/Do"
FLAVORS = ["sync", "aio"]
_PLACES = 4
_BURST = 24
_TIMEOUT_S = 0.5
_NUMBERS = itertools.count()
_TOKENS = rifl.RetryPolicy().budget_tokens


class _Arrivals(grpc.ServerInterceptor):
    def __init__(self, service: Service) -> None:
        self._service = service

    def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
        self._service.arrived(details.method)
        return continuation(details)


class _AioArrivals(grpc.aio.ServerInterceptor):
    def __init__(self, service: Service) -> None:
        self._service = service

    async def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
        self._service.arrived(details.method)
        return await continuation(details)


class Service:
    """Servers of one method over one store, each with few places for its work.

    A call's effect is counted once it has a place, and the work is not held.
    """

    def __init__(self, flavor: str, url: str, kind: str, servers: int = 1, act: Any = None) -> None:
        self.arrivals = 0
        self.effects: Counter[bytes] = Counter()
        self.held = threading.Event()
        self._lock = threading.Lock()
        self._act = act
        self._stack = contextlib.ExitStack()
        self.stops: list[Callable[[float | None], None]] = []
        self.addresses: list[str] = []
        try:
            for _ in range(servers):
                self._serve(flavor, url, kind)
        except BaseException:
            self._stack.close()
            raise

    def _serve(self, flavor: str, url: str, kind: str) -> None:
        policy = rifl.MethodPolicy(kind=kind)
        dedup = rifl.Deduplicator(url, methods={METHOD: policy}, drain_s=0.0)
        self._stack.callback(dedup.close)
        places = asyncio.Semaphore(_PLACES)

        async def do(request: bytes, context: Any) -> bytes:
            async with places:
                while self.held.is_set():
                    await asyncio.sleep(0.005)
                if self._act is not None:
                    await self._act(request, context)
            self._did(request)
            return request

        def do_in_thread(request: bytes, context: Any) -> bytes:
            until(lambda: not self.held.is_set(), "the work goes on")
            if self._act is not None:
                self._act(request, context)
            self._did(request)
            return request

        counting: Any = _AioArrivals(self) if flavor == "aio" else _Arrivals(self)
        handlers = [generic("test.Trigger", {"Do": do if flavor == "aio" else do_in_thread})]
        served = self._stack.enter_context(
            serve(
                flavor,
                handlers,
                interceptors=[counting, dedup],
                dedup=dedup,
                threads=_PLACES,
                add=dedup.add_health,
            )
        )
        if served.loop is not None:
            loop = served.loop
            self._stack.callback(lambda: _close(dedup, loop))
        # Before the deduplicator waits for them.
        self._stack.callback(self.held.clear)
        self.stops.append(served.stop)
        self.addresses.append(served.address)

    def arrived(self, method: str) -> None:
        if method == METHOD:
            with self._lock:
                self.arrivals += 1

    def _did(self, request: bytes) -> None:
        with self._lock:
            self.effects[request] += 1

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def _close(dedup: rifl.Deduplicator, loop: LoopThread) -> None:
    loop.run(dedup.aclose())
    if (release := dedup._release) is not None:
        # Handlers were cancelled: in place of the end of the process.
        release._exiting.set()
        assert release.wait(DEADLINE_S)


class Client:
    """A channel of either kind, and bursts of calls over it."""

    def __init__(self, flavor: str, addresses: list[str], method: str, **options: Any) -> None:
        self._method = method
        self._loop = LoopThread() if flavor == "aio" else None
        if self._loop is None:
            self._channel: Any = rifl.connect(addresses, **options)
        else:
            self._channel = self._loop.run(self._connect(addresses, options))

    @staticmethod
    async def _connect(addresses: list[str], options: dict[str, Any]) -> Any:
        return rifl.aio.connect(addresses, **options)

    def begin(self, requests: list[bytes], timeout_s: float) -> Callable[[], list[Any]]:
        """Begin calls together; returns what waits for their answers, or errors."""
        do = self._channel.unary_unary(self._method)
        if self._loop is not None:

            async def all_of_them() -> list[Any]:
                calls = [do(each, timeout=timeout_s) for each in requests]
                return await asyncio.gather(*calls, return_exceptions=True)

            work = asyncio.run_coroutine_threadsafe(all_of_them(), self._loop.loop)
            return lambda: work.result(DEADLINE_S)
        calls = [do.future(each, timeout=timeout_s) for each in requests]

        def ended(call: Any) -> Any:
            error = call.exception(DEADLINE_S)
            return call.result() if error is None else error

        return lambda: [ended(call) for call in calls]

    def burst(self, requests: list[bytes], timeout_s: float = _TIMEOUT_S) -> list[Any]:
        """Make calls together; each has ended, by an answer or rifl's error."""
        found = self.begin(requests, timeout_s)()
        wrong = [each for each in found if not isinstance(each, bytes | rifl.CallError)]
        assert wrong == []
        return found

    def answered_again(self, request: Callable[[], bytes]) -> None:
        """Wait until a new call is answered in its time."""
        until(lambda: isinstance(self.burst([request()], 5.0)[0], bytes), "calls are answered")

    def close(self) -> None:
        if self._loop is None:
            self._channel.close()
        else:
            self._loop.run(self._channel.close())
            self._loop.close()


@contextlib.contextmanager
def _client(flavor: str, addresses: list[str], **options: Any) -> Iterator[Client]:
    method = options.pop("method", METHOD)
    client = Client(flavor, addresses, method, **options)
    try:
        yield client
    finally:
        client.close()


def _health(address: str) -> Any:
    with grpc.insecure_channel(address) as channel:
        return (
            health_pb2_grpc.HealthStub(channel)
            .Check(health_pb2.HealthCheckRequest(), timeout=DEADLINE_S)
            .status
        )


def _new() -> bytes:
    return b"call %d" % next(_NUMBERS)


def _some(count: int = _BURST) -> list[bytes]:
    return [_new() for _ in range(count)]


def _bound(calls: int, seconds: float) -> float:
    """Return how many attempts a target gets: a budget's more, and a probe a second."""
    return calls * 1.1 + _TOKENS + seconds + 1


@pytest.mark.parametrize("flavor", FLAVORS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"retry": rifl.RetryPolicy(attempt_timeout_s=0.1, initial_backoff_s=0.01)},
        {"hedge_after": 0.05},
    ],
    ids=["load", "attempts", "hedges"],
)
def test_more_load_than_places(flavor: str, options: dict[str, Any]) -> None:
    """All places are held: attempts stay bounded, and the server is healthy all the while."""
    with (
        Service(flavor, "memory:", "idempotent") as service,
        _client(flavor, service.addresses, **options) as client,
    ):
        client.answered_again(_new)
        before, began = service.arrivals, time.monotonic()
        service.held.set()
        found = client.burst(_some(), 2 * _TIMEOUT_S)
        arrived, seconds = service.arrivals - before, time.monotonic() - began
        assert not [each for each in found if isinstance(each, bytes)]
        assert arrived <= _bound(_BURST, seconds)
        assert _health(service.addresses[0]) == health_pb2.HealthCheckResponse.SERVING
        service.held.clear()
        client.answered_again(_new)
        assert set(service.effects.values()) == {1}


@pytest.mark.parametrize("flavor", FLAVORS)
def test_redis_is_stopped_and_killed(flavor: str, own_redis: Any) -> None:
    """Of two servers over it neither answers, and none runs a call twice."""
    url = own_redis.url(timeout_s=1, beat_s=0.1, dead_after_s=60)
    with (
        Service(flavor, url, "plain", servers=2) as service,
        _client(flavor, service.addresses) as client,
    ):
        client.answered_again(_new)
        for begin, end in (
            (own_redis.suspend, own_redis.resume),
            (own_redis.stop, own_redis.start),
        ):
            before, began = service.arrivals, time.monotonic()
            begin()
            found = client.burst(_some())
            arrived, seconds = service.arrivals - before, time.monotonic() - began
            end()
            assert not [each for each in found if isinstance(each, bytes)]
            assert arrived <= 2 * _bound(_BURST, seconds)
            client.answered_again(_new)
        assert set(service.effects.values()) == {1}


@pytest.mark.parametrize("flavor", FLAVORS)
@pytest.mark.parametrize("servers", [2, 3])
def test_one_of_several_targets_stops(flavor: str, servers: int, shared_redis: Any) -> None:
    """With as many calls as they have places; all are answered by the others."""
    url = shared_redis.url(namespace=f"targets{next(_NUMBERS)}")
    with (
        Service(flavor, url, "idempotent", servers) as service,
        _client(flavor, service.addresses) as client,
    ):
        client.answered_again(_new)
        before = service.arrivals
        service.held.set()
        answers = client.begin(_some(), DEADLINE_S)
        until(lambda: service.arrivals > before, "calls have come")
        stopping = threading.Thread(target=service.stops[0], args=(0,))
        stopping.start()
        service.held.clear()
        found = answers()
        stopping.join(DEADLINE_S)
        assert [each for each in found if not isinstance(each, bytes)] == []
        client.answered_again(_new)
        # A handler of the one that stopped may be cut off before its end, and run again.
        assert set(service.effects.values()) == {1}


class _Rows:
    """Effects in a table of PostgreSQL, by as many connections as there are places."""

    def __init__(self, url: str, table: str, flavor: str) -> None:
        self.own = psycopg.connect(url, autocommit=True)
        self.own.execute(f"CREATE TABLE {table} (call bytea)")
        self._table = table
        self._insert = f"INSERT INTO {table} VALUES (%s)"  # noqa: S608 - the test's own
        self._aio = flavor == "aio"
        kind: Any = psycopg_pool.AsyncConnectionPool if self._aio else psycopg_pool.ConnectionPool
        self._pool: Any = kind(url, min_size=0, max_size=_PLACES, open=False)
        self._loop: Any = None
        self.act: Any = self._act_async if self._aio else self._act
        if not self._aio:
            self._pool.open()

    def _act(self, request: bytes, context: Any) -> None:
        with self._pool.connection() as connection, rifl.transaction(context, connection):
            connection.execute(self._insert, (request,))
            rifl.record(context, request, connection)

    async def _act_async(self, request: bytes, context: Any) -> None:
        self._loop = asyncio.get_running_loop()
        await self._pool.open()
        async with (
            self._pool.connection() as connection,
            rifl.aio.transaction(context, connection),
        ):
            await connection.execute(self._insert, (request,))
            await rifl.aio.record(context, request, connection)

    def most(self) -> int:
        counts = f"SELECT count(*) FROM {self._table} GROUP BY call ORDER BY 1 DESC LIMIT 1"  # noqa: S608 - as above
        row = self.own.execute(counts).fetchone()
        return int(row[0]) if row else 0

    def close_pool(self) -> None:
        if not self._aio:
            self._pool.close()
        elif self._loop is not None:
            asyncio.run_coroutine_threadsafe(self._pool.close(), self._loop).result(DEADLINE_S)

    def close(self) -> None:
        self.own.execute(f"DROP TABLE {self._table}")
        self.own.close()


@pytest.mark.parametrize("flavor", FLAVORS)
def test_tables_are_locked(flavor: str, shared_postgres: Any) -> None:
    """The store's and the handlers' own, against all others."""
    schema = f"triggers{next(_NUMBERS)}{flavor}"
    rows = _Rows(shared_postgres.url(), f"{schema}_effects", flavor)
    with contextlib.closing(rows):
        url = shared_postgres.url(schema=schema, timeout_s=1)
        with (
            Service(flavor, url, "atomic", act=rows.act) as service,
            _client(flavor, service.addresses) as client,
        ):
            client.answered_again(_new)
            before, began = service.arrivals, time.monotonic()
            with rows.own.transaction():
                tables = rows.own.execute(
                    "SELECT format('%%I.%%I', schemaname, tablename) FROM pg_tables "
                    "WHERE schemaname = %s OR tablename = %s",
                    (schema, f"{schema}_effects"),
                ).fetchall()
                assert len(tables) > 2
                for (table,) in tables:
                    rows.own.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
                found = client.burst(_some())
                arrived, seconds = service.arrivals - before, time.monotonic() - began
            assert not [each for each in found if isinstance(each, bytes)]
            assert arrived <= _bound(_BURST, seconds)
            client.answered_again(_new)
            rows.close_pool()
        assert rows.most() == 1


class _Process:
    """The benchmark's service with ``max_running``, over SQLite, in a process of its own."""

    def __init__(self, folder: Path, flavor: str) -> None:
        self.notes = folder / "notes"
        self._folder = folder
        self._flavor = flavor
        self.port = 0
        self.start()

    def start(self) -> None:
        store = f"sqlite:///{self._folder}/s.db"
        arguments = ["--flavor", self._flavor, "--side", "places", "--kind", "atomic"]
        arguments += ["--store", store, "--own", store, "--port", str(self.port)]
        arguments += ["--notes", str(self.notes)]
        self.running = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.overload.server", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self.running.stdout is not None
        self.port = int(self.running.stdout.readline())

    def kill(self) -> None:
        self.running.kill()
        self.running.wait(DEADLINE_S)
        assert self.running.stdout is not None
        self.running.stdout.close()

    @property
    def arrivals(self) -> int:
        return len(read([self.notes]).arrivals[0])


def _message() -> bytes:
    key = _new().decode().replace(" ", "-")
    return rifl_pb2.MetadataEntry(key=key, value=b"inf").SerializeToString()


@pytest.mark.parametrize("flavor", FLAVORS)
def test_the_server_is_stopped_and_killed(flavor: str, tmp_path: Path) -> None:
    """With calls in its places, and more that wait for one (DESIGN §4)."""
    server = _Process(tmp_path, flavor)
    try:
        addresses = [f"127.0.0.1:{server.port}"]
        with _client(flavor, addresses, method=BENCH_METHOD) as client:
            client.answered_again(_message)
            before, began = server.arrivals, time.monotonic()
            answers = client.begin([_message() for _ in range(_BURST)], DEADLINE_S)
            until(lambda: server.arrivals > before, "calls have come")
            server.running.send_signal(signal.SIGSTOP)
            client.burst([_message() for _ in range(_BURST)])
            server.running.send_signal(signal.SIGCONT)
            assert [each for each in answers() if not isinstance(each, bytes)] == []
            client.answered_again(_message)
            # It may have got each of the second burst's, too.
            assert server.arrivals - before <= _bound(2 * _BURST + 1, time.monotonic() - began)
            before = server.arrivals
            answers = client.begin([_message() for _ in range(_BURST)], DEADLINE_S)
            until(lambda: server.arrivals > before, "calls have come")
            server.kill()
            client.burst([_message() for _ in range(_BURST)])
            server.start()
            assert [each for each in answers() if not isinstance(each, bytes)] == []
            client.answered_again(_message)
    finally:
        server.kill()
    assert read([server.notes]).doubled == 0
