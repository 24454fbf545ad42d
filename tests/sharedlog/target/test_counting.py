"""Errors of atomic handlers: which are their messages' failures (DESIGN-LOG §15, P7)."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis
import sqlalchemy
import sqlalchemy.orm

import rifl
import rifl.aio
import sharedlog
from tests.helpers.servers import generic, serve
from tests.sharedlog.target.player import A, Player, message, player, told

METHOD = "/shop.S/Atomic"
INSERT = "INSERT INTO effect VALUES (1)"
NOWAIT = "SELECT 1 FROM locked FOR UPDATE NOWAIT"


@contextlib.contextmanager
def served(kind: str, url: str, handle: Any) -> Iterator[Player]:
    """A target with one atomic handler."""
    with rifl.Deduplicator(url, methods={METHOD: "atomic"}, drain_s=1.0) as dedup:

        def add(server: Any) -> None:
            sharedlog.add_target_to_server(server, dedup, {"orders": METHOD})

        service = generic("shop.S", {"Atomic": handle})
        with (
            serve(kind, [service], dedup=dedup, add=add) as at,
            player(at.address) as found,
        ):
            try:
                yield found
            finally:
                dedup.close()


def check(target: Player, end: Callable[[], Any], *, counts: bool) -> None:
    """Its message has failed, or waits for what passes; once that has, it is taken."""
    (answer,) = target.batch(message(1, None, METHOD))
    found = (answer.kind, answer.code if answer.kind == A.UNAVAILABLE else 10, answer.details)
    assert found[:2] == (A.FAILED if counts else A.UNAVAILABLE, 10), found
    end()
    assert told(target.batch(message(1, None, METHOD))) == [("DONE", 1)]


@contextlib.contextmanager
def wrapped(how: str) -> Iterator[None]:
    """Raise what comes so."""
    try:
        yield
    except Exception as error:
        if how == "cause":
            raise ValueError("no order") from error
        if how == "group":
            raise ExceptionGroup("no order", [KeyError(1), error]) from None
        raise


@pytest.fixture
def held(tmp_path: Path) -> Iterator[tuple[Path, Any, Any]]:
    """A store's file, and another one: of each a connection that holds its lock."""
    holders = []
    for name in ("store.db", "other.db"):
        holder = sqlite3.connect(tmp_path / name, isolation_level=None, check_same_thread=False)
        holder.execute("PRAGMA journal_mode=WAL")
        holder.execute("CREATE TABLE effect (lsn INTEGER)")
        holders.append(holder)
    yield tmp_path, *holders
    for holder in holders:
        holder.close()


@pytest.mark.parametrize("how", ["plain", "cause", "group"])
@pytest.mark.parametrize("driver", ["sqlite3", "sqlalchemy"])
def test_a_lock_of_the_stores_file_passes(held: Any, driver: str, how: str) -> None:
    """Of the transaction's own connection, also under what wraps it."""
    path, holder, _ = held
    failing: list[bool] = []

    def handle(request: bytes, context: Any) -> bytes:
        if failing:
            raise ValueError("not yet")
        with wrapped(how):
            if driver == "sqlite3":
                connection = sqlite3.connect(path / "store.db", timeout=0)
                with contextlib.closing(connection), rifl.transaction(context, connection):
                    connection.execute(INSERT)
                    rifl.record(context, b"done", connection)
            else:
                engine = sqlalchemy.create_engine(
                    f"sqlite:///{path}/store.db", connect_args={"timeout": 0}
                )
                with sqlalchemy.orm.Session(engine) as session, rifl.transaction(context, session):
                    session.execute(sqlalchemy.text(INSERT))
                    rifl.record(context, b"done", session)
                engine.dispose()
        return b"done"

    with served("sync", f"sqlite:///{path}/store.db", handle) as target:
        assert not target.index().HasField("at")
        # The first message of a connection moves a row before its handler is called.
        failing.append(True)
        target.batch(message(1, None, METHOD))
        failing.clear()
        holder.execute("BEGIN IMMEDIATE")
        check(target, lambda: holder.execute("COMMIT"), counts=False)


@pytest.mark.parametrize("block", ["shared", "own"])
def test_a_lock_of_another_file_is_the_handlers(held: Any, block: str) -> None:
    """The store moves a row right after: it is not the store that fails."""
    path, _, holder = held

    def handle(request: bytes, context: Any) -> bytes:
        with contextlib.ExitStack() as stack:
            given = []
            if block == "own":
                given.append(
                    stack.enter_context(contextlib.closing(sqlite3.connect(path / "store.db")))
                )
            with rifl.transaction(context, *given) as connection:
                connection.execute(INSERT)
                other = stack.enter_context(
                    contextlib.closing(sqlite3.connect(path / "other.db", timeout=0))
                )
                with other:
                    other.execute(INSERT)
                rifl.record(context, b"done", connection)
        return b"done"

    with served("sync", f"sqlite:///{path}/store.db", handle) as target:
        assert not target.index().HasField("at")
        holder.execute("BEGIN IMMEDIATE")
        check(target, lambda: holder.execute("COMMIT"), counts=True)


@pytest.fixture
def locked(shared_postgres: Any, name: str) -> Iterator[tuple[Any, str, Any]]:
    """A server with a row that another session has locked, and the store's URL."""
    with shared_postgres.connect(autocommit=True) as holder:
        holder.execute("DROP TABLE IF EXISTS effect, locked")
        holder.execute("CREATE TABLE effect (lsn int)")
        holder.execute("CREATE TABLE locked (at int)")
        holder.execute("INSERT INTO locked VALUES (1)")
        yield shared_postgres, shared_postgres.url(schema=name), holder


WAYS = ["shared", "own", "savepoint", "sqlalchemy", "nested", "another"]


@pytest.mark.parametrize("how", ["plain", "cause", "group"])
@pytest.mark.parametrize("way", WAYS)
def test_a_lock_of_postgresql_passes_on_the_transactions_connection(
    locked: Any, way: str, how: str
) -> None:
    """Also in a savepoint, and under what wraps it; on another connection it is the handler's."""
    server, url, holder = locked

    def handle(request: bytes, context: Any) -> bytes:
        with wrapped(how), contextlib.ExitStack() as stack:
            if way in ("sqlalchemy", "nested"):
                engine = sqlalchemy.create_engine(
                    "postgresql+psycopg://", creator=lambda: psycopg.connect(server.url())
                )
                stack.callback(engine.dispose)
                session = stack.enter_context(sqlalchemy.orm.Session(engine))
                with rifl.transaction(context, session):
                    with session.begin_nested() if way == "nested" else contextlib.nullcontext():
                        session.execute(sqlalchemy.text(NOWAIT))
                    rifl.record(context, b"done", session)
                return b"done"
            own = () if way == "shared" else (stack.enter_context(server.connect()),)
            with rifl.transaction(context, *own) as connection:
                asked = stack.enter_context(server.connect()) if way == "another" else connection
                with asked.transaction() if way == "savepoint" else contextlib.nullcontext():
                    asked.execute(NOWAIT)
                rifl.record(context, b"done", connection)
        return b"done"

    with served("sync", url, handle) as target:
        holder.execute("BEGIN")
        holder.execute("SELECT 1 FROM locked FOR UPDATE")
        check(target, lambda: holder.execute("COMMIT"), counts=way == "another")


@pytest.mark.parametrize("way", ["shared", "own", "another"])
def test_so_it_is_on_an_event_loop(locked: Any, way: str) -> None:
    """The same of asynchronous connections."""
    server, url, holder = locked

    async def handle(request: bytes, context: Any) -> bytes:
        async with contextlib.AsyncExitStack() as stack:

            async def connected() -> Any:
                connection = await psycopg.AsyncConnection.connect(server.url())
                return await stack.enter_async_context(connection)

            own = () if way == "shared" else (await connected(),)
            async with rifl.aio.transaction(context, *own) as connection:
                asked = await connected() if way == "another" else connection
                await asked.execute(NOWAIT)
                await rifl.aio.record(context, b"done", connection)
        return b"done"

    with served("aio", url, handle) as target:
        holder.execute("BEGIN")
        holder.execute("SELECT 1 FROM locked FOR UPDATE")
        check(target, lambda: holder.execute("COMMIT"), counts=way == "another")


@pytest.mark.parametrize("statement", ["SELECT 1 / 0", "SELECT no_such_column", "x"])
def test_a_wrong_statement_is_the_handlers(locked: Any, statement: str) -> None:
    """22 and 42, of the transaction's own connection."""
    _, url, _ = locked
    wrong = [statement]

    def handle(request: bytes, context: Any) -> bytes:
        with rifl.transaction(context) as connection:
            if wrong:
                connection.execute(wrong[0])
            rifl.record(context, b"done", connection)
        return b"done"

    with served("sync", url, handle) as target:
        check(target, wrong.clear, counts=True)


@pytest.mark.parametrize("own", [True, False], ids=["own", "another"])
def test_a_redis_transaction_that_met_another_passes(
    shared_redis: Any, name: str, own: bool
) -> None:
    """``WatchError`` of the pipeline that moves the index; of another it is the handler's."""
    client = redis.Redis.from_url(shared_redis.url())
    meets = [True]

    def handle(request: bytes, context: Any) -> bytes:
        with client.pipeline() as recorded, client.pipeline() as other:
            watching = recorded if own else other
            watching.watch(f"{name}-key")
            if meets:
                client.incr(f"{name}-key")
            if own:
                rifl.record(context, b"done", recorded)
                recorded.execute()
            else:
                other.multi()
                other.set(f"{name}-other", 1)
                other.execute()
                rifl.record(context, b"done", recorded)
                recorded.execute()
        return b"done"

    with (
        contextlib.closing(client),
        served("sync", shared_redis.url(namespace=name), handle) as target,
    ):
        check(target, meets.clear, counts=not own)
