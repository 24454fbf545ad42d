"""A handler's effect, its answer and its event commit together (DESIGN §6, DESIGN-LOG §12)."""

import asyncio
import sqlite3
from contextlib import closing

import grpc
import pytest

import rifl
import rifl.aio
import sharedlog
import sharedlog.aio
from tests.echo import METHOD, aio_served, lose_answers, served


@pytest.fixture
def path(tmp_path):
    """A rifl store's file, with a table of the application's."""
    path = tmp_path / "store.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE effect (name)")
    return path


@pytest.fixture
def log(path):
    """A log in that file."""
    with sharedlog.create(f"sqlite:///{path}") as made:
        made.stream("orders", substreams=1)
        yield made


@pytest.fixture
def dedup(path, log):
    """The server's."""
    with closing(rifl.Deduplicator(f"sqlite:///{path}", methods={METHOD: "atomic"})) as made:
        yield made


def effects(path):
    """What the handlers did."""
    with closing(sqlite3.connect(path)) as connection:
        return [name for (name,) in connection.execute("SELECT name FROM effect ORDER BY rowid")]


def texts(log):
    """What readers get."""
    return [message.text for message in log.read("orders", 0)]


def test_a_replayed_call_publishes_nothing(path, log, dedup):
    """Its answer was lost on the way; effect and event are there once, in one order (§12)."""

    def handler(request, context):
        with rifl.transaction(context) as connection:
            connection.execute("INSERT INTO effect VALUES (?)", (request.decode(),))
            log.append_in(connection, "orders", request)
            rifl.record(context, request, connection)
        return request

    with (
        served(dedup, handler, around=[lose_answers(1)]) as target,
        rifl.connect(target) as channel,
    ):
        call = channel.unary_unary(METHOD)
        names = [f"order {number}" for number in range(5)]
        assert [call(name.encode()).decode() for name in names] == names
    assert texts(log) == effects(path) == names


def test_a_block_that_is_undone_publishes_nothing(path, log, dedup):
    """By an exception, and without ``rifl.record``; the others of its transaction stay (§6)."""

    def handler(request, context):
        with rifl.transaction(context) as connection:
            connection.execute("INSERT INTO effect VALUES (?)", (request.decode(),))
            log.append_in(connection.cursor(), "orders", request)
            if request == b"raises":
                raise ValueError
            if request != b"forgets":
                rifl.record(context, request, connection)
        return request

    with served(dedup, handler) as target, rifl.connect(target) as channel:
        call = channel.unary_unary(METHOD)
        futures = [
            call.future(name, timeout=30) for name in (b"a", b"raises", b"b", b"forgets", b"c")
        ]
        failed = [each.exception() is not None for each in futures]
    assert failed == [False, True, False, True, False]
    assert sorted(texts(log)) == sorted(effects(path)) == ["a", "b", "c"]
    assert texts(log) == effects(path)


def test_a_handlers_own_transaction_takes_it_along(path, log, dedup):
    """One connection a call, with ``rifl.transaction`` around it or ``rifl.record`` in it."""

    def handler(request, context):
        with closing(sqlite3.connect(path, timeout=30)) as connection:
            if request == b"block":
                with rifl.transaction(context, connection):
                    connection.execute("INSERT INTO effect VALUES ('block')")
                    log.append_in(connection, "orders", request)
                    rifl.record(context, request, connection)
            else:
                log.append_in(connection, "orders", request)
                connection.execute("INSERT INTO effect VALUES ('own')")
                rifl.record(context, request, connection)
                connection.commit()
        return request

    with (
        served(dedup, handler, around=[lose_answers(1)]) as target,
        rifl.connect(target) as channel,
    ):
        call = channel.unary_unary(METHOD)
        call(b"block")
        call(b"own")
    assert texts(log) == effects(path) == ["block", "own"]


def test_a_connection_outside_its_block_is_refused(log, dedup):
    """What ``rifl.transaction`` lent goes back at the block's end: nothing is appended."""
    caught = []

    def handler(request, context):
        with rifl.transaction(context) as connection:
            rifl.record(context, request, connection)
        try:
            log.append_in(connection, "orders", "late")
        except sharedlog.LogError as error:
            caught.append(error)
        return request

    with served(dedup, handler) as target, rifl.connect(target) as channel:
        channel.unary_unary(METHOD)(b"a")
    (error,) = caught
    assert isinstance(error, sharedlog.WrongTransaction)
    assert error.appended is False
    assert texts(log) == []


def test_handlers_of_an_event_loop(path, log, dedup):
    """``rifl.aio.transaction`` lends the same connection; calls that meet share a commit."""

    async def run():
        async with await sharedlog.aio.open(f"sqlite:///{path}") as mine:

            async def handler(request, context):
                async with rifl.aio.transaction(context) as connection:
                    connection.execute("INSERT INTO effect VALUES (?)", (request.decode(),))
                    await mine.append_in(connection, "orders", request)
                    await rifl.aio.record(context, request, connection)
                return request

            async with aio_served(dedup, handler) as target, rifl.aio.connect(target) as channel:
                call = channel.unary_unary(METHOD)
                await asyncio.gather(*(call(f"order {number}".encode()) for number in range(10)))
                with pytest.raises(grpc.RpcError):
                    await call(b"x" * (1 << 21))

    asyncio.run(run())
    assert texts(log) == effects(path)
    assert sorted(texts(log)) == [f"order {number}" for number in range(10)]
