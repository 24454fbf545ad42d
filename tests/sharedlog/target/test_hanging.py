"""Handlers that hang within their transactions: revoked, then passed over (DESIGN-LOG §15, P7)."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiosqlite
import psycopg
import pytest
import redis
import sqlalchemy
import sqlalchemy.orm

import rifl
import rifl.aio
import sharedlog
from rifl._server import local_calls
from sharedlog._target import target as served_target
from sharedlog.v1 import target_pb2
from tests.helpers.servers import generic, serve
from tests.helpers.waiting import until
from tests.sharedlog.target.player import TAG, A, Player, message, place, player, told

METHOD = "/shop.S/Atomic"
OTHER = "orders/2"
MAKE = "CREATE TABLE effect (lsn INTEGER)"
READ = "SELECT lsn FROM effect ORDER BY lsn"
INSERT = "INSERT INTO effect VALUES (%s)"
# SQLite's, and PostgreSQL's: they do not end within a test.
ENDLESS = (
    "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) "
    "INSERT INTO effect SELECT x FROM c WHERE x < 0"
)
SLEEP = "SELECT pg_sleep(60)"


class Hangs:
    """A handler, over one store, that hangs with message ``at`` in its transaction."""

    def __init__(self, how: str, place: Any) -> None:
        self.how, self.place = how, place
        self.at, self.statement = 1, ""
        self.hanging, self.go_on = threading.Event(), threading.Event()
        # What the run that hung met when it went on, and each that was begun.
        self.refused: list[BaseException] = []
        self.called: list[int] = []

    def hang(self, lsn: int, execute: Callable[[str], Any]) -> None:
        """Hang in Python, or in a statement."""
        self.called.append(lsn)
        if lsn != self.at or self.hanging.is_set():
            return
        self.hanging.set()
        if self.statement:
            execute(self.statement)
        else:
            assert self.go_on.wait(30)
            execute(self.insert % 99)

    async def hang_aio(self, lsn: int, execute: Callable[[str], Any]) -> None:
        """The same on an event loop."""
        self.called.append(lsn)
        if lsn != self.at or self.hanging.is_set():
            return
        self.hanging.set()
        if self.statement:
            await execute(self.statement)
        else:
            while not self.go_on.is_set():
                await asyncio.sleep(0.005)
            if asyncio.iscoroutine(done := execute(self.insert % 99)):
                await done

    @property
    def insert(self) -> str:
        """As the driver takes it."""
        return INSERT

    @contextlib.contextmanager
    def noting(self, lsn: int) -> Iterator[None]:
        """Note what the run that hangs ends with."""
        try:
            yield
        except BaseException as error:
            if lsn == self.at:
                self.refused.append(error)
            raise

    def handle(self, request: bytes, context: Any) -> bytes:
        """In a thread."""
        lsn = int(request)
        with self.noting(lsn), self.connected() as connection:
            given = () if connection is None else (connection,)
            with rifl.transaction(context, *given) as lent:

                def execute(statement: str) -> Any:
                    text: Any = sqlalchemy.text(statement) if self.how == "alchemy" else statement
                    return lent.execute(text)

                execute(INSERT % lsn)
                self.hang(lsn, execute)
                rifl.record(context, b"done", lent)
        return b"done"

    async def handle_aio(self, request: bytes, context: Any) -> bytes:
        """On the event loop."""
        lsn = int(request)
        with self.noting(lsn):
            async with self.connected_aio() as connection:
                given = () if connection is None else (connection,)
                async with rifl.aio.transaction(context, *given) as lent:
                    done = lent.execute(INSERT % lsn)
                    if asyncio.iscoroutine(done) or hasattr(done, "__await__"):
                        await done
                    await self.hang_aio(lsn, lent.execute)
                    await rifl.aio.record(context, b"done", lent)
        return b"done"

    @contextlib.contextmanager
    def connected(self) -> Iterator[Any]:
        """A connection of its own, None: the store's."""
        if self.how == "shared":
            yield None
        elif isinstance(self.place, Path):
            if self.how == "alchemy":
                engine = sqlalchemy.create_engine(f"sqlite:///{self.place}")
                with sqlalchemy.orm.Session(engine) as session:
                    yield session
                engine.dispose()
            else:
                foreign = self.how == "own"
                with contextlib.closing(
                    sqlite3.connect(self.place, check_same_thread=not foreign)
                ) as connection:
                    yield connection
        else:
            with self.place.connect() as connection:
                yield connection

    @contextlib.asynccontextmanager
    async def connected_aio(self) -> Any:
        """The same on an event loop."""
        if self.how == "shared":
            yield None
        elif isinstance(self.place, Path):
            async with aiosqlite.connect(self.place) as connection:
                yield connection
        else:
            async with await psycopg.AsyncConnection.connect(self.place.url()) as connection:
                yield connection

    def effects(self) -> list[int]:
        """What is there."""
        if isinstance(self.place, Path):
            with contextlib.closing(sqlite3.connect(self.place)) as connection:
                return [lsn for (lsn,) in connection.execute(READ)]
        with self.place.connect() as connection:
            return [lsn for (lsn,) in connection.execute(READ).fetchall()]


@pytest.fixture
def hangs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Hangs, str]]:
    """A handler of the given kind of server and store, and the store's URL."""
    kind, store, how = request.param
    if store == "sqlite":
        found = tmp_path / "store.db"
        with contextlib.closing(sqlite3.connect(found)) as connection:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute(MAKE)
            connection.commit()
        yield kind, Hangs(how, found), f"sqlite:///{found}"
        return
    server = request.getfixturevalue("shared_postgres")
    with server.connect() as connection:
        connection.execute("DROP TABLE IF EXISTS effect")
        connection.execute(MAKE)
    yield kind, Hangs(how, server), server.url(schema=request.getfixturevalue("name"))


@contextlib.contextmanager
def served(kind: str, shop: Hangs, url: str, **given: Any) -> Iterator[Player]:
    """A target with that handler."""
    with rifl.Deduplicator(url, methods={METHOD: "atomic"}, drain_s=1.0, **given) as dedup:

        def add(server: Any) -> None:
            sharedlog.add_target_to_server(server, dedup, {"orders": METHOD})

        handle: Any = shop.handle_aio if kind == "aio" else shop.handle
        service = generic("shop.S", {"Atomic": handle})
        with (
            serve(kind, [service], dedup=dedup, add=add) as at,
            player(at.address) as found,
        ):
            try:
                yield found
            finally:
                shop.go_on.set()
                # Connections of an event loop are closed on it.
                dedup.close()


def skip(lsn: int) -> Any:
    """Pass a message over."""
    return target_pb2.Delivery(
        tag=TAG,
        kind=target_pb2.Delivery.SKIP,
        place=place(lsn),
        follows=place(lsn - 1) if lsn > 1 else None,
        skip={"reason": "hangs", "by": "x"},
    )


def begun(target: Player, *deliveries: Any) -> Any:
    """Deliver, and go on while a handler hangs."""
    return target.stub.DeliverBatch.future(target.deliveries(deliveries, (), first=True))


# In Python, or in a statement; but one of the store's own SQLite runs on the event loop itself.
WAYS = [
    *[("sync", "sqlite", how) for how in ("shared", "own", "alchemy")],
    *[("aio", "sqlite", how) for how in ("shared", "own")],
    *[("threads", "sqlite", how) for how in ("shared", "own")],
    *[(kind, "postgres", how) for kind in ("sync", "aio", "threads") for how in ("shared", "own")],
]


ON_THE_LOOP = ("aio", "sqlite", "shared", "statement")


@pytest.mark.parametrize(
    ("hangs", "statement"),
    [(way, at) for way in WAYS for at in ("python", "statement") if (*way, at) != ON_THE_LOOP],
    indirect=["hangs"],
    ids=lambda each: each if isinstance(each, str) else "-".join(each),
)
def test_a_handler_that_hangs_in_its_transaction_is_revoked(
    hangs: tuple[str, Hangs, str], statement: str
) -> None:
    """It is rolled back before the index moves: others go on, and it commits nothing later."""
    kind, shop, url = hangs
    if statement == "statement":
        shop.statement = ENDLESS if url.startswith("sqlite") else SLEEP
    with served(kind, shop, url) as target:
        first = begun(target, message(1, None, METHOD))
        until(lambda: shop.hanging.is_set() or first.done(), "its handler hangs")
        assert shop.hanging.is_set(), first.result()
        assert told(target.batch(skip(1), message(2, 1, METHOD)))[-1] == ("DONE", 2)
        # An atomic method, of any substream: over SQLite the run had the only writer.
        assert told(target.batch(message(11, None, METHOD, tag=OTHER))) == [("DONE", 11)]
        shop.go_on.set()
        first.result(timeout=20)
        until(lambda: shop.refused, "the run met that it was revoked")
        assert told(target.batch(message(3, 2, METHOD))) == [("DONE", 3)]
        index = target.index()
        assert (index.at.lsn, [each.place.lsn for each in index.skipped]) == (3, [1])
    assert shop.effects() == [2, 3, 11]
    assert sorted(shop.called) == [1, 2, 3, 11]


@pytest.mark.parametrize(
    "hangs",
    [(kind, store, "shared") for kind in ("aio", "threads") for store in ("sqlite", "postgres")],
    indirect=True,
    ids="-".join,
)
def test_those_before_it_in_its_transaction_are_kept(hangs: tuple[str, Hangs, str]) -> None:
    """Its own part is undone, and they are committed: they do not run again."""
    kind, shop, url = hangs
    shop.at = 3
    with served(kind, shop, url) as target:
        first = begun(
            target, *(message(at, at - 1 if at > 1 else None, METHOD) for at in (1, 2, 3, 4))
        )
        until(lambda: shop.hanging.is_set() or first.done(), "its handler hangs")
        assert shop.hanging.is_set(), first.result()
        assert told(target.batch(skip(3), message(4, 3, METHOD)))[-1] == ("DONE", 4)
        shop.go_on.set()
        first.result(timeout=20)
        assert target.index().at.lsn == 4
    assert shop.effects() == [1, 2, 4]
    assert shop.called[:3] == [1, 2, 3]
    assert shop.called.count(1) == 1


@pytest.mark.parametrize(
    "hangs",
    [(kind, store, "shared") for kind in ("aio", "sync") for store in ("sqlite", "postgres")],
    indirect=True,
    ids="-".join,
)
def test_a_player_that_passes_it_over_is_told_where_it_is(hangs: tuple[str, Hangs, str]) -> None:
    """At once, over SQLite, too, whose only writer it has; those before it are not waited for."""
    kind, shop, url = hangs
    shop.at = 3
    with served(kind, shop, url) as target:
        first = begun(
            target, *(message(at, at - 1 if at > 1 else None, METHOD) for at in (1, 2, 3))
        )
        until(lambda: shop.hanging.is_set() or first.done(), "its handler hangs")
        assert target.index().running.lsn == 3
        over = target_pb2.PassedOver(tag=TAG, place=place(3))
        (index,) = target.connect(passed_over=[over]).indexes
        assert (index.at.lsn, index.HasField("running")) == (2, False)
        assert told(target.batch(skip(3)))[-1] == ("DONE", 3)
        shop.go_on.set()
        first.result(timeout=20)
    assert shop.effects() == [1, 2]


@pytest.mark.parametrize("hangs", [("threads", "sqlite", "shared")], indirect=True, ids="-".join)
def test_those_that_went_with_an_interrupted_statement_run_again(
    hangs: tuple[str, Hangs, str],
) -> None:
    """SQLite rolls the whole transaction back: it is no failure of theirs."""
    kind, shop, url = hangs
    shop.at, shop.statement = 2, ENDLESS
    with served(kind, shop, url) as target:
        first = begun(target, *(message(at, at - 1 if at > 1 else None, METHOD) for at in (1, 2)))
        until(lambda: shop.hanging.is_set() or first.done(), "its handler hangs")
        assert shop.hanging.is_set(), first.result()
        target.batch(skip(2))
        answers = first.result(timeout=20).answers
        assert {each.kind for each in answers} <= {A.UNAVAILABLE, A.DONE, A.GAP}
        assert told(target.batch(message(1, None, METHOD), skip(2)))[-1] == ("DONE", 2)
    assert shop.effects() == [1]


@pytest.mark.parametrize("hangs", [("threads", "sqlite", "strict")], indirect=True, ids="-".join)
def test_what_cannot_be_rolled_back_from_outside_is_not_passed_over(
    hangs: tuple[str, Hangs, str],
) -> None:
    """sqlite3 lets a connection's own thread alone do it: the skip waits, and says why."""
    kind, shop, url = hangs
    with served(kind, shop, url) as target:
        first = begun(target, message(1, None, METHOD))
        until(lambda: shop.hanging.is_set() or first.done(), "its handler hangs")
        assert shop.hanging.is_set(), first.result()
        (answer,) = target.batch(skip(1), message(2, 1, METHOD))
        assert (answer.kind, answer.code, answer.place.lsn) == (A.UNAVAILABLE, 10, 1)
        assert "its own thread" in answer.details
        shop.go_on.set()
        # It commits nothing, all the same.
        until(lambda: shop.refused, "the run met that it was revoked")
        until(lambda: not target.index().HasField("running"), "it has ended")
        assert told(target.batch(skip(1), message(2, 1, METHOD)))[-1] == ("DONE", 2)
    assert shop.effects() == [2]


@pytest.mark.parametrize("hangs", [("aio", "sqlite", "shared")], indirect=True, ids="-".join)
def test_a_handler_that_blocks_the_event_loop_is_named(
    hangs: tuple[str, Hangs, str], monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """It cannot be set aside; an event says which method it is, and at which line it stands."""
    kind, shop, url = hangs
    monkeypatch.setattr(local_calls, "_TOLD_AFTER_S", 0.05)

    async def block(request: bytes, context: Any) -> bytes:
        shop.hanging.set()
        assert shop.go_on.wait(30)
        return await handle(request, context)

    shop.at, handle = 0, shop.handle_aio
    shop.handle_aio = block  # type: ignore[method-assign]
    with served(kind, shop, url, term_s=0.2) as target:
        first = begun(target, message(1, None, METHOD))
        try:
            until(lambda: "handler_blocks_loop" in caplog.text, "it is named")
        finally:
            shop.go_on.set()
        assert told(first.result(timeout=20).answers) == [("DONE", 1)]
    (said, *_) = [each for each in caplog.messages if "handler_blocks_loop" in each]
    assert METHOD in said
    assert "threading.py" in said


@pytest.mark.parametrize("hangs", [("threads", "sqlite", "shared")], indirect=True, ids="-".join)
def test_beyond_so_many_abandoned_runs_a_skip_waits(
    hangs: tuple[str, Hangs, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each holds a thread: it is answered why, and done once one has ended."""
    kind, shop, url = hangs
    monkeypatch.setattr(served_target, "_MOST_HUNG", 0)
    with served(kind, shop, url) as target:
        first = begun(target, message(1, None, METHOD))
        until(lambda: shop.hanging.is_set() or first.done(), "its handler hangs")
        (answer,) = target.batch(skip(1))
        assert (answer.kind, answer.code) == (A.UNAVAILABLE, 10)
        assert "do not end in this process" in answer.details
        monkeypatch.undo()
        assert told(target.batch(skip(1))) == [("DONE", 1)]


def test_a_pipeline_that_waits_with_its_record_is_refused(shared_redis: Any, name: str) -> None:
    """Redis holds nothing for it: its EXEC depends on where the index was, in any replica."""
    client = redis.Redis.from_url(shared_redis.url())
    hanging, go_on = threading.Event(), threading.Event()
    refused: list[BaseException] = []

    def handle(request: bytes, context: Any) -> bytes:
        with client.pipeline() as pipeline:
            rifl.record(context, b"done", pipeline)
            pipeline.rpush(f"{name}-effects", request)
            if request == b"1":
                hanging.set()
                assert go_on.wait(30)
            try:
                pipeline.execute()
            except redis.WatchError as error:
                refused.append(error)
                raise
        return b"done"

    shop = Hangs("own", None)
    shop.handle = handle  # type: ignore[method-assign]
    url = shared_redis.url(namespace=name)
    with contextlib.closing(client), served("sync", shop, url) as one:
        first = begun(one, message(1, None, METHOD))
        until(lambda: hanging.is_set() or first.done(), "its handler hangs")
        with served("sync", shop, url) as other:
            assert told(other.batch(skip(1), message(2, 1, METHOD)))[-1] == ("DONE", 2)
        assert told(one.batch(skip(1), message(2, 1, METHOD)))[-1] == ("DONE", 2)
        go_on.set()
        first.result(timeout=20)
        assert told(one.batch(message(3, 2, METHOD))) == [("DONE", 3)]
        assert client.lrange(f"{name}-effects", 0, -1) == [b"2", b"3"]
        assert len(refused) == 1
