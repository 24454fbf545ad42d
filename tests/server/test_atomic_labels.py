"""An atomic handler that leaves no record is never told *not executed* on trust (DESIGN §4)."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
import redis

import rifl
from rifl.v1 import rifl_pb2
from tests.helpers.raw import RawClient
from tests.helpers.sealing import FINGERPRINT_KEYS
from tests.helpers.servers import generic, serve
from tests.stores.postgres.servers import PostgresServer
from tests.stores.redis.servers import RedisServer

METHOD = "/test.Atomic/Act"
_UNKNOWN = rifl_pb2.OUTCOME_UNKNOWN


class Sql:
    """Effects in a table beside the records."""

    def __init__(self, url: str, connect: Callable[[], Any], insert: str) -> None:
        self.url, self._connect, self._insert = url, connect, insert
        with contextlib.closing(connect()) as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS effects (name text)")
            connection.commit()

    def act(self, what: str, context: Any) -> None:
        """Do what a handler does that forgets its record, or undoes it, or raises."""
        with contextlib.closing(self._connect()) as connection:
            if what.startswith("block"):
                with rifl.transaction(context, connection):
                    connection.execute(self._insert, (what,))
                    raise ValueError("nothing of it stands")
            connection.execute(self._insert, (what,))
            if what.startswith("savepoint"):
                connection.execute("SAVEPOINT s")
                rifl.record(context, b"recorded", connection)
                connection.execute("ROLLBACK TO SAVEPOINT s")
            if what.startswith("records"):
                rifl.record(context, b"recorded", connection)
            connection.commit()

    def effects(self, what: str) -> int:
        """Count the effects of a request."""
        with contextlib.closing(self._connect()) as connection:
            rows = connection.execute("SELECT name FROM effects").fetchall()
            connection.rollback()
        return [row[0] for row in rows].count(what)


class Redis:
    """Effects in a list beside the records."""

    def __init__(self, url: str, client: redis.Redis) -> None:
        self.url, self._client = url, client

    def act(self, what: str, context: Any) -> None:
        """The same, with a pipeline that is given up in the savepoint's place."""
        if what.startswith("savepoint"):
            with self._client.pipeline() as pipe:
                rifl.record(context, b"recorded", pipe)
        if what.startswith("records"):
            with self._client.pipeline() as pipe:
                rifl.record(context, b"recorded", pipe)
                pipe.rpush("effects", what)
                pipe.execute()
        else:
            self._client.rpush("effects", what)

    def effects(self, what: str) -> int:
        """Count the effects of a request."""
        return self._client.lrange("effects", 0, -1).count(what.encode())


_SQL = ("sqlite", "postgres")


@pytest.fixture(scope="module")
def place(request: Any, tmp_path_factory: Any) -> Iterator[Any]:
    """Somewhere records and effects live together."""
    folder = tmp_path_factory.mktemp("atomic")
    if request.param == "sqlite":
        yield Sql(
            f"sqlite:///{folder}/s.db",
            lambda: sqlite3.connect(folder / "s.db", timeout=10),
            "INSERT INTO effects VALUES (?)",
        )
        return
    if request.param == "postgres":
        postgres = PostgresServer()
        yield Sql(
            postgres.url(),
            lambda: psycopg.connect(postgres.url()),
            "INSERT INTO effects VALUES (%s)",
        )
        postgres.stop()
        return
    server = RedisServer(folder)
    with server.client() as client:
        yield Redis(server.url(), client)
    server.stop()


@pytest.mark.parametrize("place", [*_SQL, "redis"], indirect=True)
@pytest.mark.parametrize("kind", ["sync", "aio"])
def test_an_atomic_handler_without_its_record_is_unknown(place: Any, kind: str) -> None:
    """Record forgotten, or undone in a savepoint: unknown, for good, and one effect (§4).

    Where the handler then raises: unknown, also to who asks what became of it.
    """

    def act(request: bytes, context: Any) -> bytes:
        what = request.decode()
        place.act(what, context)
        if "raise" in what:
            raise ValueError("after the commit")
        return b"done"

    async def act_async(request: bytes, context: Any) -> bytes:
        return act(request, context)

    handlers = [generic("test.Atomic", {"Act": act_async if kind == "aio" else act})]
    with (
        rifl.Deduplicator(place.url, methods={METHOD: "atomic"}) as dedup,
        serve(kind, handlers, dedup=dedup) as served,
        RawClient(served.address) as client,
    ):
        for seq, form in enumerate(("forgets", "savepoint"), 1):
            what = f"{form} {kind}"
            for attempt in (1, 2):
                reply = client.call(METHOD, what.encode(), seq, attempt=attempt)
                assert reply.refusal == ("INTERNAL", "NOT_RECORDED", "unknown")
            assert place.effects(what) == 1
        for seq, form in enumerate(("forgets", "savepoint"), 11):
            what = f"{form} raise {kind}"
            reply = client.call(METHOD, what.encode(), seq)
            assert (reply.code.name, reply.outcome) == ("UNKNOWN", "unknown")
            assert "after the commit" in reply.details
            assert client.resolve(seq).outcome == _UNKNOWN
            assert place.effects(what) == 1
        if served.loop is not None:
            served.loop.run(dedup.aclose())


class Unsealing:
    """An unsealing that fails when it is told to, as one does whose keys are elsewhere."""

    def __init__(self) -> None:
        self.failing = False

    def seal(self, data: bytes, associated: bytes) -> bytes:
        """Turn it around."""
        return data[::-1]

    def unseal(self, data: bytes, associated: bytes) -> bytes:
        """Turn it back, or fail."""
        if self.failing:
            raise ConnectionError("the keys cannot be reached")
        return data[::-1]


@pytest.mark.parametrize("place", [*_SQL, "redis"], indirect=True)
@pytest.mark.parametrize("kind", ["sync", "aio"])
def test_a_failing_read_after_the_commit_wedges_nothing(place: Any, kind: str) -> None:
    """The caller is told unknown, if need be, a retry gets the answer, and nothing runs on (§4)."""
    runs: list[bytes] = []
    unsealing = Unsealing()

    def act(request: bytes, context: Any) -> bytes:
        runs.append(request)
        place.act(request.decode(), context)
        unsealing.failing = True
        return b"recorded"

    async def act_async(request: bytes, context: Any) -> bytes:
        return act(request, context)

    handlers = [generic("test.Atomic", {"Act": act_async if kind == "aio" else act})]
    what = f"records {kind}"
    with (
        rifl.Deduplicator(
            place.url,
            methods={METHOD: "atomic"},
            seal=unsealing.seal,
            unseal=unsealing.unseal,
            fingerprint_keys=FINGERPRINT_KEYS,
        ) as dedup,
        serve(kind, handlers, dedup=dedup) as served,
        RawClient(served.address) as client,
    ):
        told = client.call(METHOD, what.encode(), 1)
        if place.url.startswith("sqlite"):
            # What stands is what the run wrote, to the byte: it need not be unsealed.
            assert (told.response, told.outcome) == (b"recorded", "")
        else:
            assert told.refusal == ("ABORTED", "OUTCOME_UNKNOWN", "unknown")
        assert dedup.statistics().running == 0
        unsealing.failing = False
        again = client.call(METHOD, what.encode(), 1, attempt=2)
        assert (again.response, again.outcome) == (b"recorded", "replayed")
        if served.loop is not None:
            served.loop.run(dedup.aclose())
    assert len(runs) == place.effects(what) == 1


@pytest.mark.parametrize("place", _SQL, indirect=True)
@pytest.mark.parametrize("kind", ["sync", "aio"])
def test_a_block_that_was_rolled_back_is_not_executed(place: Any, kind: str) -> None:
    """Of ``rifl.transaction`` we know that nothing of it stands: the call is new again (§4).

    Where first attempts are not claimed, nobody knows that of another copy of them (§4.6).
    """
    runs: list[bytes] = []

    def act(request: bytes, context: Any) -> bytes:
        runs.append(request)
        place.act(request.decode(), context)
        raise AssertionError

    async def act_async(request: bytes, context: Any) -> bytes:
        return act(request, context)

    handlers = [generic("test.Atomic", {"Act": act_async if kind == "aio" else act})]
    with (
        rifl.Deduplicator(place.url, methods={METHOD: "atomic"}) as dedup,
        serve(kind, handlers, dedup=dedup) as served,
        RawClient(served.address) as client,
    ):
        claimed = place.url.startswith("sqlite:")
        for attempt, told in ((1, "not-executed"), (2, "not-executed" if claimed else "unknown")):
            reply = client.call(METHOD, b"block", 21, attempt=attempt)
            assert (reply.code.name, reply.outcome) == ("UNKNOWN", told)
        if served.loop is not None:
            served.loop.run(dedup.aclose())
    assert runs == [b"block", b"block"]
    assert place.effects("block") == 0
