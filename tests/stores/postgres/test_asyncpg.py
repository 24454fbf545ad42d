"""``rifl.aio.record`` and ``rifl.aio.transaction`` over asyncpg (DESIGN §6)."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import asyncpg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

import rifl
import rifl.aio
from tests.helpers.raw import RawClient
from tests.helpers.servers import generic, serve

INSERT = "INSERT INTO asyncpg_effects VALUES ('x')"
METHOD = "/t.S/Act"
WAYS = ["connection", "pool", "session", "core"]


@pytest.fixture
def effects(shared_server):
    """A table of effects; how many are committed."""
    with shared_server.connect(autocommit=True) as connection:
        connection.execute(
            "DROP TABLE IF EXISTS asyncpg_effects; CREATE TABLE asyncpg_effects (what text)"
        )
        yield lambda: connection.execute("SELECT count(*) FROM asyncpg_effects").fetchone()[0]


@contextlib.asynccontextmanager
async def opened(way: str, url: str) -> Any:
    """What a handler gives to rifl, and what executes its SQL."""
    async with contextlib.AsyncExitStack() as stack:
        if way == "connection":
            held: Any = await asyncpg.connect(url)
            stack.push_async_callback(held.close)
        elif way == "pool":
            pool = await stack.enter_async_context(asyncpg.create_pool(url, min_size=1))
            held = await stack.enter_async_context(pool.acquire())
        else:
            engine = create_async_engine(url.replace("postgresql://", "postgresql+asyncpg://"))
            stack.push_async_callback(engine.dispose)
            made = AsyncSession(engine) if way == "session" else engine.connect()
            held = await stack.enter_async_context(made)
        text = sqlalchemy.text if way in ("session", "core") else str

        async def sql(statement: str) -> None:
            await held.execute(text(statement))

        yield held, sql


@contextlib.contextmanager
def calls(url: str, act: Any, **options: Any) -> Any:
    """A client of a server with one atomic method."""
    with (
        rifl.Deduplicator(url, methods={METHOD: "atomic"}) as dedup,
        serve("aio", [generic("t.S", {"Act": act})], dedup=dedup, **options) as served,
        RawClient(served.address) as client,
    ):
        try:
            yield client
        finally:
            if served.loop is not None:
                served.loop.run(dedup.aclose())


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", [5, 100_000])
def test_effect_and_record_are_one_commit(url, shared_server, effects, way: str, size: int) -> None:
    """In a block, or in the handler's own transaction; replayed, and without identity (§6)."""
    answer = bytes(range(256)) * (size // 256 + 1)

    async def act(request: bytes, context: Any) -> bytes:
        async with opened(way, shared_server.url()) as (held, sql):
            if request == b"own":
                async with held.transaction() if way in ("connection", "pool") else held.begin():
                    await rifl.aio.record(context, answer, held)
                    await sql(INSERT)
            else:
                async with rifl.aio.transaction(context, held) as given:
                    assert given is held
                    await sql(INSERT)
                    await rifl.aio.record(context, answer, held)
                    assert effects() == before[0]
        return b"else"

    before = [0]
    with calls(url, act) as client:
        for seq, request in enumerate([b"block", b"own"], 1):
            replies = [client.call(METHOD, request, seq, attempt=attempt) for attempt in (1, 2)]
            assert [reply.response for reply in replies] == [answer, answer]
            assert replies[1].outcome == "replayed"
            before[0] += 1
            assert effects() == before[0]
        assert client.call(METHOD, b"block", bare=True).response == b"else"
        assert effects() == 3


@pytest.mark.parametrize("way", WAYS)
def test_a_handler_that_raises_leaves_nothing_and_runs_again(
    url, shared_server, effects, way: str
) -> None:
    """A savepoint of its own is rolled back alone; what leaves the block rolls back all (§6)."""
    runs: list[bytes] = []

    async def act(request: bytes, context: Any) -> bytes:
        runs.append(request)
        async with (
            opened(way, shared_server.url()) as (held, sql),
            rifl.aio.transaction(context, held),
        ):
            nested = held.transaction if way in ("connection", "pool") else held.begin_nested
            with contextlib.suppress(KeyError):
                async with nested():
                    await sql(INSERT)
                    raise KeyError
            await sql(INSERT)
            if len(runs) == 1:
                raise LookupError("the handler's own")
            await rifl.aio.record(context, b"done", held)
        return b"done"

    with calls(url, act) as client:
        first = client.call(METHOD, b"x", 1)
        assert (first.outcome, effects()) == ("not-executed", 0)
        assert client.call(METHOD, b"x", 1, attempt=2).response == b"done"
        assert effects() == 1


@pytest.mark.parametrize("commits", [False, True])
def test_a_connection_that_went_back_to_its_pool_is_no_more_the_handlers(
    url, shared_server, effects, commits: bool
) -> None:
    """Nothing is done on it, since others may use it; the outcome is unknown for good (§6)."""

    async def act(request: bytes, context: Any) -> bytes:
        async with asyncpg.create_pool(shared_server.url(), min_size=1, max_size=1) as pool:
            held = await pool.acquire()
            async with rifl.aio.transaction(context, held):
                await held.execute(INSERT)
                if commits:
                    await held.execute("COMMIT")
                await pool.release(held)
                await rifl.aio.record(context, b"done", held)
        return b"done"

    with calls(url, act) as client:
        for attempt in (1, 2):
            assert client.call(METHOD, b"x", 1, attempt=attempt).outcome == "unknown"
        assert effects() == commits


def test_what_cannot_be_is_told(url, shared_server, effects) -> None:
    """No transaction, one that is open, another connection, and no ``await`` (§6)."""
    told: list[str] = []

    async def act(request: bytes, context: Any) -> bytes:
        async with (
            opened("connection", shared_server.url()) as (held, _),
            opened("connection", shared_server.url()) as (other, _),
        ):
            try:
                if request == b"autocommit":
                    await rifl.aio.record(context, b"done", held)
                elif request == b"open":
                    await held.execute("BEGIN")
                    async with rifl.aio.transaction(context, held):
                        pass
                elif request == b"other":
                    async with rifl.aio.transaction(context, held):
                        await rifl.aio.record(context, b"done", other)
                elif request == b"blocking":
                    with rifl.transaction(context, held):
                        pass
                else:
                    rifl.record(context, b"done", held)
            except rifl.WrongDatabase as error:
                told.append(str(error))
                raise
        return b"done"

    requests = [b"autocommit", b"open", b"other", b"blocking", b"record"]
    with calls(url, act) as client:
        for seq, request in enumerate(requests, 1):
            client.call(METHOD, request, seq)
    assert [word in text for word, text in zip(_WORDS, told, strict=True)] == [True] * 5, told
    assert effects() == 0


_WORDS = ["autocommit", "open", "another connection", "rifl.aio.transaction", "rifl.aio.record"]


def test_other_stores_refuse_it(tmp_path, shared_server) -> None:
    """The record would not be where the store looks for it (§6)."""
    told: list[str] = []

    async def act(request: bytes, context: Any) -> bytes:
        async with opened("connection", shared_server.url()) as (held, _):
            with pytest.raises(rifl.WrongDatabase) as refused:
                async with rifl.aio.transaction(context, held):
                    await rifl.aio.record(context, b"done", held)
            told.append(str(refused.value))
            assert not held.is_in_transaction()
        return b"done"

    with calls(f"sqlite:///{tmp_path}/s.db", act) as client:
        client.call(METHOD, b"x", 1)
    assert told


@pytest.mark.parametrize("way", WAYS)
def test_a_session_that_the_server_ends_leaves_nothing_and_a_retry_runs(
    url, shared_server, effects, way: str
) -> None:
    """A failover in a block: the outcome is unknown, and the retry decides it (§6)."""
    runs: list[bytes] = []

    async def act(request: bytes, context: Any) -> bytes:
        runs.append(request)
        async with (
            opened(way, shared_server.url()) as (held, sql),
            rifl.aio.transaction(context, held),
        ):
            await sql(INSERT)
            if len(runs) == 1:
                await sql("SELECT pg_terminate_backend(pg_backend_pid())")
            await rifl.aio.record(context, b"done", held)
        return b"done"

    with calls(url, act) as client:
        assert client.call(METHOD, b"x", 1).outcome == "unknown"
        assert effects() == 0
        assert client.call(METHOD, b"x", 1, attempt=2).response == b"done"
        assert effects() == 1


@pytest.mark.parametrize("way", WAYS)
def test_a_handler_that_is_cancelled_in_its_block_leaves_nothing(
    url, shared_server, effects, way: str
) -> None:
    """In a statement, as a task group or a timeout cancels it: the transaction ends (§6)."""
    runs: list[bytes] = []

    async def act(request: bytes, context: Any) -> bytes:
        runs.append(request)
        first = len(runs) == 1
        async with (
            opened(way, shared_server.url()) as (held, sql),
            asyncio.timeout(0.2 if first else None),
            rifl.aio.transaction(context, held),
        ):
            await sql(INSERT)
            await sql(f"SELECT pg_sleep({600 if first else 0})")
            await rifl.aio.record(context, b"done", held)
        return b"done"

    with calls(url, act) as client:
        assert client.call(METHOD, b"x", 1).outcome in ("not-executed", "unknown")
        assert effects() == 0
        assert client.call(METHOD, b"x", 1, attempt=2).response == b"done"
        assert effects() == 1
