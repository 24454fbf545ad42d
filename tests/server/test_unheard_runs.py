"""Handlers on an event loop that no caller waits for are cancelled (DESIGN §4)."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import psycopg
import psycopg_pool
import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy.ext.asyncio import create_async_engine
from structlog.testing import capture_logs

import rifl
import rifl.aio
from rifl._wire.envelope import encode_batch
from rifl.metrics import PrometheusObserver
from rifl.v1 import rifl_pb2
from tests.helpers.raw import RawClient, read
from tests.helpers.servers import generic, serve
from tests.helpers.waiting import DEADLINE_S, until

_ACT = "/test.Left/Act"


class Left:
    """A server whose first run of each request waits, until it is cancelled or let go."""

    def __init__(self, url: str, policy: rifl.MethodPolicy, within: Any = None) -> None:
        self.runs: list[bytes] = []
        self.waiting: list[bytes] = []
        self.cancelled: list[bytes] = []
        self.go = asyncio.Event()
        self.let_out = asyncio.Event()
        # What a cancelled handler does.
        self.swallows = self.lingers = False
        self.within: Callable[..., Any] = self._wait_first if within is None else within
        self.registry = CollectorRegistry()
        observer = PrometheusObserver(self.registry)
        self.dedup = rifl.Deduplicator(url, methods={_ACT: policy}, observer=observer)
        self._serving = serve("aio", [generic("test.Left", {"Act": self._act})], dedup=self.dedup)
        self.served = self._serving.__enter__()
        self.loop: Any = self.served.loop

    async def _act(self, request: bytes, context: Any) -> bytes:
        self.runs.append(request)
        return await self.within(self, request, context)  # type: ignore[no-any-return]

    async def wait(self, request: bytes) -> None:
        """Wait in the first run of a request."""
        if self.runs.count(request) > 1 or self.go.is_set():
            return
        self.waiting.append(request)
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled.append(request)
            if self.lingers:
                await self.let_out.wait()
            if not self.swallows:
                raise

    @staticmethod
    async def _wait_first(left: Left, request: bytes, context: Any) -> bytes:
        await left.wait(request)
        return b"did " + request

    def release(self) -> None:
        self.loop.loop.call_soon_threadsafe(self.go.set)

    def turns(self) -> None:
        """Let the loop do all that it has to do."""

        async def some() -> None:
            for _ in range(10):
                await asyncio.sleep(0)

        self.loop.run(some())

    def runs_are(self, count: int) -> None:
        until(lambda: len(self.waiting) == count, f"{count} runs wait")

    def cancellations_are(self, count: int) -> None:
        until(lambda: len(self.cancelled) == count, f"{count} runs are cancelled")

    def duplicate_waits(self, count: int = 1) -> None:
        until(lambda: self.dedup.statistics().waiting == count, "duplicates wait")

    def close(self) -> None:
        self.release()
        self.loop.loop.call_soon_threadsafe(self.let_out.set)
        self.loop.run(self.dedup.aclose())
        if (release := self.dedup._release) is not None:
            # Handlers were cancelled: in place of the end of the process.
            release._exiting.set()
            assert release.wait(DEADLINE_S)
        self._serving.__exit__(None, None, None)


@pytest.fixture
def left() -> Iterator[Any]:
    """Makes such servers, and stops them."""
    made: list[Left] = []

    def make(url: str = "memory:", within: Any = None, **policy: Any) -> Left:
        policy.setdefault("kind", "idempotent")
        made.append(Left(url, rifl.MethodPolicy(**policy), within))
        return made[-1]

    yield make
    for server in made:
        server.close()


@pytest.mark.parametrize("room", [None, 1])
@pytest.mark.parametrize("url", ["memory:", "sqlite", "redis"])
def test_a_run_whose_caller_cancels_is_cancelled_and_runs_again(
    left: Any, url: str, room: int | None, tmp_path: Path, request: Any
) -> None:
    """A place of its is another's then."""
    where = {"memory:": lambda: url, "sqlite": lambda: f"sqlite:///{tmp_path}/s.db"}
    store = where.get(url, lambda: request.getfixturevalue("shared_redis").url())()
    server = left(store, max_running=room)
    with RawClient(server.served.address) as client, capture_logs() as events:
        call = client.future(_ACT, b"1", 1)
        server.runs_are(1)
        call.cancel()
        server.cancellations_are(1)
        again = client.call(_ACT, b"1", 1, attempt=2)
        assert (again.response, again.outcome) == (b"did 1", "executed")
        assert client.call(_ACT, b"1", 1, attempt=3).outcome == "replayed"
    assert server.runs == [b"1", b"1"]
    assert [each["method"] for each in events if each["event"] == "handler_cancelled"] == [_ACT]
    cancelled = {"method": _ACT}
    assert server.registry.get_sample_value("rifl_server_cancelled_total", cancelled) == 1


@pytest.mark.parametrize("policy", [{"kind": "plain"}, {"cancel_unheard": False}])
def test_what_may_not_run_again_goes_on(left: Any, policy: dict[str, Any]) -> None:
    """So does what a policy leaves alone: the retry gets its answer."""
    server = left(**policy)
    with RawClient(server.served.address) as client:
        call = client.future(_ACT, b"1", 1)
        server.runs_are(1)
        call.cancel()
        again = client.future(_ACT, b"1", 1, attempt=2)
        server.duplicate_waits()
        server.turns()
        server.release()
        assert read(again).response == b"did 1"
    assert (server.runs, server.cancelled) == ([b"1"], [])


def test_a_batch_goes_on(left: Any) -> None:
    """Its handlers are as before: those that run, run to their end."""
    server = left()
    with RawClient(server.served.address) as client:
        metadata = (("rifl-bin", client.header(None)), ("rifl-batch", "1"))
        body = encode_batch([b"1"], [], [1])
        batch = client.channel.unary_unary(_ACT).future(body, DEADLINE_S, metadata)
        server.runs_are(1)
        batch.cancel()
        again = client.future(_ACT, b"1", 1, attempt=2)
        server.duplicate_waits()
        server.release()
        assert read(again).response == b"did 1"
    assert (server.runs, server.cancelled) == ([b"1"], [])


def test_a_duplicate_that_waits_keeps_it(left: Any) -> None:
    """Until that has left, too."""
    server = left()
    with RawClient(server.served.address) as client:
        call = client.future(_ACT, b"1", 1)
        server.runs_are(1)
        second, third = (client.future(_ACT, b"1", 1, attempt=each) for each in (2, 3))
        server.duplicate_waits(2)
        call.cancel()
        second.cancel()
        server.duplicate_waits(1)
        server.turns()
        assert server.cancelled == []
        third.cancel()
        server.cancellations_are(1)
    assert server.runs == [b"1"]


@pytest.mark.parametrize("store", ["redis", "postgres"])
def test_a_duplicate_that_waits_at_another_replica_runs_the_call(
    left: Any, store: str, request: Any
) -> None:
    """It keeps no run here, and is woken at once: the call runs there, and not here again."""
    apart = {"redis": "namespace", "postgres": "schema"}[store]
    url = request.getfixturevalue(f"shared_{store}").url(**{apart: "woken"})
    here, there = left(url), left(url)
    there.go.set()
    with (
        RawClient(here.served.address) as client,
        RawClient(there.served.address, grant=False) as other,
    ):
        other.client_id, other.token = client.client_id, client.token
        call = client.future(_ACT, b"1", 1)
        here.runs_are(1)
        again = other.future(_ACT, b"1", 1, attempt=2)
        there.duplicate_waits()
        call.cancel()
        here.cancellations_are(1)
        reply = read(again)
        assert (reply.response, reply.outcome) == (b"did 1", "executed")
    assert (here.runs, there.runs) == ([b"1"], [b"1"])


@pytest.mark.parametrize("url", ["memory:", "sqlite", "redis"])
def test_a_cancelled_idempotent_call_may_have_run(
    left: Any, url: str, tmp_path: Path, request: Any
) -> None:
    """What it did by then stands: who asks is not told that it did not run."""
    where = {"memory:": lambda: url, "sqlite": lambda: f"sqlite:///{tmp_path}/s.db"}
    server = left(where.get(url, lambda: request.getfixturevalue("shared_redis").url())())
    with RawClient(server.served.address) as client:
        call = client.future(_ACT, b"1", 1)
        server.runs_are(1)
        call.cancel()
        server.cancellations_are(1)
        assert client.resolve(1).outcome == rifl_pb2.OUTCOME_UNKNOWN
    assert server.runs == [b"1"]


def test_the_header_says_for_how_long_a_call_is_tried(left: Any) -> None:
    """An attempt's deadline is not the call's: it goes on for the next one, until that time."""
    server = left()
    with RawClient(server.served.address) as client:
        attempt = client.call(_ACT, b"1", 1, timeout=0.5, try_ms=600_000)
        assert attempt.code is grpc.StatusCode.DEADLINE_EXCEEDED
        server.runs_are(1)
        assert client.call(_ACT, b"1", 1, timeout=0.5, try_ms=600_000, attempt=2).code
        server.turns()
        assert server.cancelled == []
        assert not client.call(_ACT, b"2", 2, timeout=0.5, try_ms=1000).ok
        server.cancellations_are(1)
        assert server.cancelled == [b"2"]
        again = client.future(_ACT, b"1", 1, attempt=3)
        server.duplicate_waits()
        server.release()
        assert read(again).response == b"did 1"
    assert server.runs == [b"1", b"2"]


def test_a_client_with_an_attempt_timeout_gets_the_first_run(left: Any) -> None:
    """Its header says that more attempts come; each would begin anew otherwise."""
    server = left()
    retry = rifl.RetryPolicy(attempt_timeout_s=0.5, initial_backoff_s=0.01)
    with rifl.connect(server.served.address, retry=retry) as channel:
        call = channel.unary_unary(_ACT).future(b"1", timeout=DEADLINE_S)
        server.runs_are(1)
        server.duplicate_waits()
        server.release()
        assert call.result() == b"did 1"
    assert (server.runs, server.cancelled) == ([b"1"], [])


def test_one_that_swallows_its_cancellation_has_answered(left: Any) -> None:
    """It is cancelled once."""
    server = left()
    server.swallows = True
    with RawClient(server.served.address) as client:
        call = client.future(_ACT, b"1", 1)
        server.runs_are(1)
        call.cancel()
        server.cancellations_are(1)
        again = client.call(_ACT, b"1", 1, attempt=2)
        assert (again.response, again.outcome) == (b"did 1", "replayed")
    assert server.runs == [b"1"]


def test_a_retry_waits_for_one_that_cleans_up(left: Any) -> None:
    """However long that takes: it runs after it, not beside it."""
    server = left()
    server.lingers = True
    with RawClient(server.served.address) as client:
        call = client.future(_ACT, b"1", 1)
        server.runs_are(1)
        call.cancel()
        server.cancellations_are(1)
        assert client.call(_ACT, b"1", 1, attempt=2, timeout=0.5).response is None
        assert server.runs == [b"1"]
        again = client.future(_ACT, b"1", 1, attempt=3)
        server.duplicate_waits()
        server.loop.loop.call_soon_threadsafe(server.let_out.set)
        assert read(again).response == b"did 1"
    assert server.runs == [b"1", b"1"]


@pytest.fixture
def file(tmp_path: Path) -> str:
    """A SQLite file with a table of effects, which is the store, too."""
    path = f"{tmp_path}/s.db"
    with closing(sqlite3.connect(path)) as first, first:
        first.execute("CREATE TABLE effect (value BLOB)")
    return path


def _effects(file: str) -> list[bytes]:
    with closing(sqlite3.connect(file)) as after:
        return sorted(value for (value,) in after.execute("SELECT value FROM effect"))


async def _in_a_shared_block(left: Left, request: bytes, context: Any) -> bytes:
    async with rifl.aio.transaction(context) as connection:
        connection.execute("INSERT INTO effect VALUES (?)", (request,))
        await left.wait(request)
        rifl.record(context, b"did " + request, connection)
    return b"did " + request


def test_a_cancelled_shared_block_leaves_no_effect(left: Any, file: str) -> None:
    """Its part is rolled back, those of others stand, and the retry has its effect once (§6)."""
    server = left(f"sqlite:///{file}", _in_a_shared_block, kind="atomic")
    with RawClient(server.served.address) as client:
        call = client.future(_ACT, b"1", 1)
        server.runs_are(1)
        other = client.future(_ACT, b"2", 2)
        call.cancel()
        server.cancellations_are(1)
        server.runs_are(2)
        server.release()
        assert read(other).ok
        assert client.call(_ACT, b"1", 1, attempt=2).response == b"did 1"
    server.turns()
    assert _effects(file) == [b"1", b"2"]


def _is_not_cut_off(server: Left, client: RawClient, call: Any) -> Any:
    """Have the caller leave, and a duplicate; returns another one, which waits."""
    call.cancel()
    again = client.future(_ACT, b"1", 1, attempt=2)
    server.duplicate_waits()
    again.cancel()
    server.duplicate_waits(0)
    server.turns()
    assert server.cancelled == []
    last = client.future(_ACT, b"1", 1, attempt=3)
    server.duplicate_waits()
    return last


def test_what_is_recorded_in_the_handlers_own_transaction_is_not_cut_off(
    left: Any, file: str
) -> None:
    """Its COMMIT is the handler's, and may have begun (§6)."""

    async def act(left: Left, request: bytes, context: Any) -> bytes:
        with closing(sqlite3.connect(file)) as connection, connection:
            connection.execute("INSERT INTO effect VALUES (?)", (request,))
            rifl.record(context, b"did " + request, connection)
            await left.wait(request)
        return b"did " + request

    server = left(f"sqlite:///{file}", act, kind="atomic")
    with RawClient(server.served.address) as client:
        call = client.future(_ACT, b"1", 1)
        server.runs_are(1)
        last = _is_not_cut_off(server, client, call)
        server.release()
        assert read(last).response == b"did 1"
    assert (server.runs, server.cancelled, _effects(file)) == ([b"1"], [], [b"1"])


def test_the_end_of_a_shared_block_is_not_cut_off(
    left: Any, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that has left its own waits for the commit, which another one's part delays (§6)."""
    monkeypatch.setattr("rifl._stores.sqlite.write_queue.OPEN_S", DEADLINE_S)
    leaves = asyncio.Event()

    async def act(left: Left, request: bytes, context: Any) -> bytes:
        try:
            async with rifl.aio.transaction(context) as connection:
                connection.execute("INSERT INTO effect VALUES (?)", (request,))
                if request == b"1":
                    left.waiting.append(request)
                    await leaves.wait()
                else:
                    await left.wait(request)
                rifl.record(context, b"did " + request, connection)
        except asyncio.CancelledError:
            left.cancelled.append(request)
            raise
        return b"did " + request

    server = left(f"sqlite:///{file}", act, kind="atomic")
    with RawClient(server.served.address) as client:
        call = client.future(_ACT, b"1", 1)
        server.runs_are(1)
        other = client.future(_ACT, b"2", 2)
        until(lambda: len(server.runs) == 2, "the other one waits for its turn")
        server.loop.loop.call_soon_threadsafe(leaves.set)
        server.runs_are(2)
        last = _is_not_cut_off(server, client, call)
        server.release()
        assert [read(each).response for each in (last, other)] == [b"did 1", b"did 2"]
    assert (server.runs, server.cancelled) == ([b"1", b"2"], [])
    assert _effects(file) == [b"1", b"2"]


class Effects:
    """A table in PostgreSQL, and a lock for which the end of a transaction waits."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.own = psycopg.connect(url, autocommit=True)
        self.own.execute(
            "CREATE TABLE unheard (value bytea);"
            "CREATE FUNCTION unheard_waits() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "PERFORM pg_advisory_xact_lock_shared(4711); RETURN NULL; END $$;"
            "CREATE CONSTRAINT TRIGGER waits AFTER INSERT ON unheard DEFERRABLE INITIALLY DEFERRED "
            "FOR EACH ROW EXECUTE FUNCTION unheard_waits()"
        )

    async def within(self, left: Left, request: bytes, context: Any) -> bytes:
        connection = await psycopg.AsyncConnection.connect(self.url)
        try:
            async with rifl.aio.transaction(context, connection):
                await connection.execute("INSERT INTO unheard VALUES (%s)", (request,))
                await left.wait(request)
                rifl.record(context, b"did " + request, connection)
        except asyncio.CancelledError:
            if not left.waiting:
                left.cancelled.append(request)
            raise
        finally:
            await connection.close()
        return b"did " + request

    @property
    def commits_wait(self) -> bool:
        waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        return self._number(waits) > 0

    @property
    def count(self) -> int:
        return self._number("SELECT count(*) FROM unheard")

    def _number(self, query: str) -> int:
        row = self.own.execute(query).fetchone()  # type: ignore[call-overload]
        return int(row[0])

    def close(self) -> None:
        self.own.execute("DROP TABLE unheard; DROP FUNCTION unheard_waits")
        self.own.close()


@pytest.fixture
def effects(shared_postgres: Any) -> Iterator[Effects]:
    """A table of effects."""
    made = Effects(shared_postgres.url())
    yield made
    made.close()


@pytest.mark.parametrize("claim", [None, "always"])
def test_a_cancelled_transaction_leaves_no_effect(
    left: Any, effects: Effects, shared_postgres: Any, claim: Any
) -> None:
    """The retry waits until it is rolled back, and has its effect once (§6)."""
    server = left(shared_postgres.url(), effects.within, kind="atomic", claim=claim)
    with RawClient(server.served.address) as client:
        call = client.future(_ACT, b"1", 1)
        server.runs_are(1)
        call.cancel()
        server.cancellations_are(1)
        assert client.call(_ACT, b"1", 1, attempt=2).response == b"did 1"
    assert (len(server.runs), effects.count) == (2, 1)


class Pooled:
    """Effects by connections of a pool that has one: a library's, or SQLAlchemy's."""

    def __init__(self, effects: Effects, kind: str) -> None:
        self._effects = effects
        self._kind = kind
        self._pool: Any = None

    async def within(self, left: Left, request: bytes, context: Any) -> bytes:
        async with await self._connection() as connection:
            insert = "INSERT INTO unheard VALUES (%s)"
            async with rifl.aio.transaction(context, connection):
                if self._kind == "psycopg":
                    await connection.execute(insert, (request,))
                else:
                    await connection.exec_driver_sql(insert, (request,))
                await left.wait(request)
                rifl.record(context, b"did " + request, connection)
        return b"did " + request

    async def _connection(self) -> Any:
        url = self._effects.url
        if self._kind == "psycopg":
            if self._pool is None:
                self._pool = psycopg_pool.AsyncConnectionPool(
                    url, min_size=1, max_size=1, open=False
                )
                await self._pool.open()
            return self._pool.connection()
        if self._pool is None:
            self._pool = create_async_engine(
                url.replace("postgresql:", "postgresql+psycopg:"), pool_size=1, max_overflow=0
            )
        return self._pool.connect()

    async def close(self) -> None:
        await (self._pool.close() if self._kind == "psycopg" else self._pool.dispose())


@pytest.mark.parametrize("pool", ["psycopg", "sqlalchemy"])
def test_a_cancelled_handler_gives_its_connection_back_clean(
    left: Any, effects: Effects, shared_postgres: Any, pool: str
) -> None:
    """The pool's only one: the retry, and another call, have their effects by it, once each."""
    pooled = Pooled(effects, pool)
    server = left(shared_postgres.url(), pooled.within, kind="atomic")
    with RawClient(server.served.address) as client:
        call = client.future(_ACT, b"1", 1)
        server.runs_are(1)
        call.cancel()
        server.cancellations_are(1)
        again = client.call(_ACT, b"1", 1, attempt=2)
        assert again.response == b"did 1"
        server.release()
        assert client.call(_ACT, b"2", 2).response == b"did 2"
    server.loop.run(pooled.close())
    assert (server.runs, effects.count) == ([b"1", b"1", b"2"], 2)


def test_a_commit_that_has_begun_is_not_cut_off(
    left: Any, effects: Effects, shared_postgres: Any
) -> None:
    """The retry gets the answer that it records (§6)."""
    server = left(shared_postgres.url(), effects.within, kind="atomic")
    server.release()
    effects.own.execute("SELECT pg_advisory_lock(4711)")
    with RawClient(server.served.address) as client:
        call = client.future(_ACT, b"1", 1)
        until(lambda: effects.commits_wait, "the COMMIT waits")
        last = _is_not_cut_off(server, client, call)
        effects.own.execute("SELECT pg_advisory_unlock(4711)")
        assert read(last).response == b"did 1"
    assert (server.runs, effects.count, server.cancelled) == ([b"1"], 1, [])


@pytest.mark.parametrize("cancels", [False, True])
def test_a_cancelled_handler_may_have_left_a_thread(left: Any, cancels: bool) -> None:
    """So the store is held until the process ends, as if it ran (§6, End)."""
    server = left("memory:")
    with RawClient(server.served.address) as client:
        call = client.future(_ACT, b"1", 1)
        server.runs_are(1)
        if cancels:
            call.cancel()
            server.cancellations_are(1)
            assert client.call(_ACT, b"1", 1, attempt=2).ok
        server.release()
        read_all = client.call(_ACT, b"2", 2)
        assert read_all.ok
    until(lambda: not server.dedup.statistics().running, "all have ended")
    with capture_logs() as events:
        server.loop.run(server.dedup.aclose())
        release = server.dedup._release
        until(lambda: release.done or events, "it is let go, or held")
    assert release.done is not cancels
    assert any(each["event"] == "kept_until_exit" for each in events) is cancels


@pytest.mark.parametrize("policy", [{"kind": "plain"}, {"cancel_unheard": False}])
def test_beyond_a_bound_of_runs_for_no_caller_new_calls_are_refused(
    left: Any, policy: dict[str, Any]
) -> None:
    """Those that ran are duplicates' meanwhile, and no call runs twice."""
    server = left(max_unheard=1, **policy)

    def unheard(count: int) -> None:
        gauge = "rifl_server_unheard"
        until(lambda: server.registry.get_sample_value(gauge) == count, f"{count} for no caller")

    with RawClient(server.served.address) as client, capture_logs() as events:
        calls = [client.future(_ACT, b"%d" % seq, seq) for seq in (1, 2)]
        server.runs_are(2)
        for call in calls:
            call.cancel()
        unheard(2)
        refused = client.call(_ACT, b"3", 3)
        assert refused.refusal == ("UNAVAILABLE", "OVERLOADED", "not-executed")
        labels = {"outcome": "not-executed", "reason": "OVERLOADED"}
        assert server.registry.get_sample_value("rifl_server_outcomes_total", labels) == 1
        first = client.future(_ACT, b"1", 1, attempt=2)
        unheard(1)
        third = client.future(_ACT, b"3", 3, attempt=2)
        server.runs_are(3)
        first.cancel()
        unheard(2)
        again = client.future(_ACT, b"1", 1, attempt=3)
        unheard(1)
        server.release()
        assert [read(each).response for each in (again, third)] == [b"did 1", b"did 3"]
        assert client.call(_ACT, b"2", 2, attempt=2).outcome == "replayed"
    unheard(0)
    assert sorted(server.runs) == [b"1", b"2", b"3"]
    # One in ten seconds at most.
    told = [each for each in events if each["event"] == "handler_unheard"]
    assert told
    assert {each["method"] for each in told} == {_ACT}


def _bound(server: Left, kind: Any) -> Any:
    return server.dedup._engine.unheard.of(_ACT, rifl.MethodPolicy(kind=kind)).bound


def _came_too_late(bound: Any, loop: asyncio.AbstractEventLoop) -> None:
    for _ in range(32):
        bound.too_late(60.0, loop.time())


@pytest.mark.parametrize("kind", ["plain", "idempotent"])
@pytest.mark.parametrize("url", ["memory:", "redis"])
def test_once_calls_came_too_late_few_run_and_others_are_refused(
    left: Any, kind: str, url: str, request: Any
) -> None:
    """Not what needs no handler: a duplicate, an answer that stands, ``resolve``. None runs twice.

    One that was refused runs once another one has ended.
    """
    server = left(
        url if url == "memory:" else request.getfixturevalue("shared_redis").url(), kind=kind
    )
    bound = _bound(server, kind)
    with RawClient(server.served.address) as client:
        server.go.set()
        assert client.call(_ACT, b"1", 1).ok
        server.go.clear()
        server.loop.loop.call_soon_threadsafe(_came_too_late, bound, server.loop.loop)
        until(lambda: bound.counts, "calls are counted")
        calls = {seq: client.future(_ACT, b"%d" % seq, seq) for seq in range(2, 6)}
        server.runs_are(4)
        for attempt in (1, 2):
            refused = client.call(_ACT, b"6", 6, attempt=attempt)
            assert refused.refusal == ("UNAVAILABLE", "OVERLOADED", "not-executed")
        assert client.call(_ACT, b"1", 1, attempt=2).outcome == "replayed"
        assert client.resolve(1).outcome
        again = client.future(_ACT, b"2", 2, attempt=2)
        server.duplicate_waits()
        assert bound.running == 4
        server.release()
        assert {read(each).response for each in (calls[2], again)} == {b"did 2"}
        assert all(read(each).ok for each in calls.values())
        until(lambda: not bound.running, "none runs")
        assert client.call(_ACT, b"6", 6, attempt=3).response == b"did 6"
    assert sorted(server.runs) == [b"%d" % seq for seq in range(1, 7)]


@pytest.mark.parametrize("claim", [None, "always"])
def test_at_that_bound_atomic_calls_have_their_effect_once(
    left: Any, effects: Effects, shared_postgres: Any, claim: Any
) -> None:
    """One that was refused has none, of a first attempt and of a later one, until it runs (§6)."""
    server = left(shared_postgres.url(), effects.within, kind="atomic", claim=claim)
    bound = _bound(server, "atomic")
    with RawClient(server.served.address) as client:
        server.loop.loop.call_soon_threadsafe(_came_too_late, bound, server.loop.loop)
        until(lambda: bound.counts, "calls are counted")
        calls = [client.future(_ACT, b"%d" % seq, seq) for seq in range(1, 5)]
        server.runs_are(4)
        for seq, attempt in ((5, 1), (5, 2), (6, 2)):
            refused = client.call(_ACT, b"%d" % seq, seq, attempt=attempt)
            assert refused.refusal == ("UNAVAILABLE", "OVERLOADED", "not-executed")
        assert (bound.running, effects.count) == (4, 0)
        server.release()
        assert all(read(call).ok for call in calls)
        until(lambda: not bound.running, "none runs")
        for seq in (5, 6):
            assert client.call(_ACT, b"%d" % seq, seq, attempt=3).response == b"did %d" % seq
        again = client.call(_ACT, b"1", 1, attempt=2)
        assert (again.response, again.outcome) == (b"did 1", "replayed")
    assert sorted(server.runs) == [b"%d" % seq for seq in range(1, 7)]
    assert (effects.count, server.cancelled) == (6, [])


@pytest.mark.parametrize("kind", ["plain", "idempotent"])
def test_calls_are_counted_once_one_came_too_late(left: Any, kind: str) -> None:
    """Not if their callers cancel them, and not for good."""
    server = left(kind=kind)
    bound = _bound(server, kind)
    with RawClient(server.served.address) as client:
        call = client.future(_ACT, b"1", 1)
        server.runs_are(1)
        call.cancel()
        unheard = int(kind == "plain")
        until(lambda: server.cancelled or bound.unheard, "its caller has left")
        assert (bound.counts, bound.unheard) == (False, unheard)
        assert not client.call(_ACT, b"2", 2, timeout=0.5).ok
        until(lambda: bound.counts, "calls are counted")
        assert not client.call(_ACT, b"3", 3, timeout=0.5).ok
        until(lambda: bound._late == 1, "the one that was counted came too late")
        server.release()
        until(lambda: not bound.running, "none runs")
        for seq in range(4, 70):
            assert client.call(_ACT, b"%d" % seq, seq).ok
        assert not bound.counts
    until(lambda: not bound.unheard, "none runs for no caller")
