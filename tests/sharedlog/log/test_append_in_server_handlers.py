"""Handlers' effects, answers and events in PostgreSQL transactions (DESIGN §6, DESIGN-LOG §12)."""

import asyncio
import secrets
from contextlib import closing, suppress

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import rifl
import rifl.aio
import sharedlog
import sharedlog.aio
from _rifl_ground.postgres.riders import takes_riders
from tests.echo import METHOD, aio_served, lose_answers, served
from tests.helpers.waiting import until
from tests.stores.postgres.servers import DroppingProxy


@pytest.fixture
def url(shared_postgres):
    """Of a log that is not there yet."""
    return shared_postgres.url(log=secrets.token_hex(8))


@pytest.fixture
def log(url):
    """A log in the run's server, with a stream."""
    with sharedlog.create(url) as made:
        made.stream("orders", substreams=1)
        yield made


@pytest.fixture
def table(shared_postgres):
    """What handlers write to, empty."""
    with shared_postgres.connect(autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS handled")
        connection.execute("CREATE TABLE handled (name text)")


@pytest.fixture
def dedup(shared_postgres):
    """The server's, over a store of its own in the same database."""
    url = shared_postgres.url(schema=f"s{secrets.token_hex(4)}")
    with closing(rifl.Deduplicator(url, methods={METHOD: "atomic"})) as made:
        yield made


@pytest.fixture
def effects(shared_postgres, table):
    """Tell what the handlers did."""

    def tell():
        with shared_postgres.connect() as connection:
            found = connection.execute("SELECT name FROM handled ORDER BY ctid").fetchall()
        return [name for (name,) in found]

    return tell


def texts(log):
    """What readers get."""
    return [message.text for message in log.read("orders", 0)]


def test_a_replayed_call_publishes_nothing(shared_postgres, effects, log, dedup):
    """Effect and event are there once, in one order, from calls that meet, too (§12)."""
    left = []

    def handler(request, context):
        with shared_postgres.connect() as connection:
            with rifl.transaction(context, connection):
                log.append_in(connection, "orders", request)
                connection.execute("INSERT INTO handled VALUES (%s)", (request.decode(),))
                log.append_in(connection, "orders", request + b" done", key="a")
                rifl.record(context, request, connection)
            left.append(takes_riders(connection))
        return request

    with (
        served(dedup, handler, around=[lose_answers(1)]) as target,
        rifl.connect(target) as channel,
    ):
        call = channel.unary_unary(METHOD)
        names = [f"order {number}" for number in range(12)]
        call(names[0].encode())
        for each in [call.future(name.encode(), timeout=60) for name in names[1:]]:
            each.result()
    found = texts(log)
    assert found[::2] == [name.removesuffix(" done") for name in found[1::2]]
    assert sorted(found[::2]) == sorted(effects()) == sorted(names)
    assert left == [False] * 12


def test_the_log_is_locked_by_the_commits_message_only(shared_postgres, effects, log, dedup):
    """A handler that takes long behind its append holds no other writer up (§12)."""

    def handler(request, context):
        with shared_postgres.connect() as connection, rifl.transaction(context, connection):
            log.append_in(connection, "orders", request)
            log.publish("orders", "meanwhile")
            connection.execute("INSERT INTO handled VALUES (%s)", (request.decode(),))
            rifl.record(context, request * 20_000, connection)
        return request * 20_000

    with served(dedup, handler) as target, rifl.connect(target) as channel:
        channel.unary_unary(METHOD)(b"late", timeout=30)
    assert texts(log) == ["meanwhile", "late"]


def test_a_savepoint_that_is_rolled_back_takes_its_events_along(
    shared_postgres, effects, log, dedup
):
    """Though they travel with the commit only."""

    def handler(request, context):
        with shared_postgres.connect() as connection, rifl.transaction(context, connection):
            log.append_in(connection, "orders", "before")
            with suppress(psycopg.Rollback), connection.transaction():
                log.append_in(connection, "orders", "undone")
                raise psycopg.Rollback
            connection.execute("SAVEPOINT mine")
            log.append_in(connection, "orders", "undone, too")
            connection.execute("ROLLBACK TO mine")
            log.append_in(connection, "orders", "behind")
            rifl.record(context, request, connection)
        return request

    with served(dedup, handler) as target, rifl.connect(target) as channel:
        channel.unary_unary(METHOD)(b"a", timeout=30)
    assert texts(log) == ["before", "behind"]


def test_what_is_refused_at_the_end_undoes_all(shared_postgres, effects, log, dedup):
    """A fence that was raised since, a deferred constraint: neither effect nor record (L4)."""
    old = log.raise_fence("writer")
    caught = []
    with shared_postgres.connect(autocommit=True) as connection:
        connection.execute(
            "ALTER TABLE handled ADD CONSTRAINT c UNIQUE (name) DEFERRABLE INITIALLY DEFERRED"
        )

    def handler(request, context):
        try:
            with shared_postgres.connect() as connection, rifl.transaction(context, connection):
                connection.execute("INSERT INTO handled VALUES (%s)", (request.decode(),))
                log.append_in(connection, "orders", request, fence=old)
                if request == b"fenced":
                    log.raise_fence("writer")
                if request == b"twice":
                    connection.execute("INSERT INTO handled VALUES ('twice')")
                rifl.record(context, request, connection)
        except (sharedlog.LogError, psycopg.Error) as error:
            caught.append(error)
            raise
        return request

    with served(dedup, handler) as target, rifl.connect(target) as channel:
        call = channel.unary_unary(METHOD)
        assert call(b"held", timeout=30) == b"held"
        for name in (b"twice", b"fenced"):
            with pytest.raises(rifl.CallError):
                call(name, timeout=30)
    kinds = {type(each) for each in caught}
    assert kinds == {psycopg.errors.UniqueViolation, sharedlog.Fenced}
    assert texts(log) == effects() == ["held"]


def test_what_cannot_travel_is_refused_at_once(shared_postgres, effects, log, dedup):
    """At another isolation level; the call is refused, and nothing of it stands (§12)."""
    caught = []

    def handler(request, context):
        with shared_postgres.connect() as connection:
            connection.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
            with rifl.transaction(context, connection):
                try:
                    log.append_in(connection, "orders", request)
                except sharedlog.LogError as error:
                    caught.append(error)
                    raise
                rifl.record(context, request, connection)
        return request

    with (
        served(dedup, handler) as target,
        rifl.connect(target) as channel,
        pytest.raises(rifl.CallError),
    ):
        channel.unary_unary(METHOD)(b"a", timeout=30)
    assert type(caught[0]) is sharedlog.WrongTransaction
    assert texts(log) == []


@pytest.mark.parametrize("forward", [False, True])
def test_a_commit_whose_answer_is_lost(shared_postgres, effects, log, dedup, forward):
    """The store finds out what became of it; effect, answer and event are one (DESIGN §6)."""
    with closing(DroppingProxy(shared_postgres.port)) as proxy:
        host, port = proxy.address.split(":")

        def handler(request, context):
            with (
                shared_postgres.connect(host=host, port=port) as connection,
                rifl.transaction(context, connection),
            ):
                connection.execute("INSERT INTO handled VALUES (%s)", (request.decode(),))
                log.append_in(connection, "orders", request)
                rifl.record(context, request, connection)
            return request

        with served(dedup, handler) as target, rifl.connect(target) as channel:
            proxy.drop_at(b"append_in_1", forward=forward)
            with suppress(rifl.CallError):
                channel.unary_unary(METHOD)(b"order", timeout=30)
            assert proxy.dropped.is_set()
    # Where the server read it, it may be carrying it out yet.
    until(lambda: texts(log) == effects(), "both are there, or neither")
    assert len(effects()) <= 1


def test_sqlalchemys_sessions_and_connections(shared_postgres, effects, log, dedup):
    """They commit by themselves: the append is behind the record all the same (§12)."""
    engine = sqlalchemy.create_engine(
        f"postgresql+psycopg://rifl@127.0.0.1:{shared_postgres.port}/postgres"
    )

    def handler(request, context):
        made = Session(engine) if request == b"session" else engine.connect()
        with made as mine:
            with suppress(ZeroDivisionError), rifl.transaction(context, mine):
                log.append_in(mine, "orders", "undone")
                raise ZeroDivisionError
            with rifl.transaction(context, mine):
                log.append_in(mine, "orders", request)
                log.publish("orders", "meanwhile")
                mine.execute(
                    sqlalchemy.text("INSERT INTO handled VALUES (:name)"),
                    {"name": request.decode()},
                )
                rifl.record(context, request, mine)
        return request

    with served(dedup, handler) as target, rifl.connect(target) as channel:
        call = channel.unary_unary(METHOD)
        for name in (b"session", b"connection"):
            call(name, timeout=30)
    engine.dispose()
    assert effects() == ["session", "connection"]
    assert texts(log) == ["meanwhile", "session", "meanwhile", "connection"]


def test_handlers_of_an_event_loop(shared_postgres, effects, url, log, dedup):
    """psycopg's asynchronous connections, and SQLAlchemy's sessions over them."""
    engine = create_async_engine(
        f"postgresql+psycopg://rifl@127.0.0.1:{shared_postgres.port}/postgres"
    )

    async def run():
        async with await sharedlog.aio.open(url) as mine:

            async def handler(request, context):
                if request.startswith(b"session"):
                    held = AsyncSession(engine)
                else:
                    held = await psycopg.AsyncConnection.connect(
                        host="127.0.0.1", port=shared_postgres.port, user="rifl", dbname="postgres"
                    )
                insert = "INSERT INTO handled SELECT 'NAME'".replace("NAME", request.decode())
                async with held, rifl.aio.transaction(context, held):
                    await mine.append_in(held, "orders", request)
                    await held.execute(
                        sqlalchemy.text(insert) if hasattr(held, "sync_session") else insert
                    )
                    await rifl.aio.record(context, request, held)
                return request

            async with aio_served(dedup, handler) as target, rifl.aio.connect(target) as channel:
                call = channel.unary_unary(METHOD)
                names = [f"{kind} {n}".encode() for n in range(3) for kind in ("own", "session")]
                await asyncio.gather(*(call(name, timeout=60) for name in names))
        await engine.dispose()
        return names

    names = asyncio.run(run())
    assert sorted(texts(log)) == sorted(effects()) == sorted(name.decode() for name in names)
