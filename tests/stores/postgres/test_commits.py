"""``rifl.transaction`` over psycopg, SQLAlchemy and DB-API (DESIGN §6)."""

from __future__ import annotations

from functools import partial

import psycopg
import pytest
import sqlalchemy
import sqlalchemy.ext.asyncio
import sqlalchemy.orm
from psycopg.pq import TransactionStatus

import rifl
from _rifl_ground.refusals import Outcome
from rifl._server.context import AioHandlerContext, HandlerContext, Serving
from rifl._stores import WrongDatabase
from rifl.core._serving.answer import HandlerResult
from rifl.core._serving.later import Later
from rifl.core._serving.serving import serve
from rifl.core._serving.verdict import Verdict
from rifl.core._shared.errors import LeaseExpired, NotRecorded, StaleRpc
from rifl.core._shared.record import CompletionRecord
from tests.helpers.raw import RawClient
from tests.helpers.servers import generic
from tests.helpers.servers import serve as serve_service
from tests.helpers.waiting import until
from tests.stores.conformance import drive
from tests.stores.postgres.servers import DroppingProxy
from tests.stores.redis.replica import ATOMIC, FIRST, OTHER, call

INSERT = "INSERT INTO effects VALUES ('x')"
# Too large to travel as text.
LARGE = CompletionRecord(response=b"\x00'\\%s" * 5000)


@pytest.fixture
def proxy(shared_server):
    """A way to the run's server on which connections can be dropped."""
    proxy = DroppingProxy(shared_server.port)
    yield proxy
    proxy.close()


@pytest.fixture
def effects(database):
    """Tell how many effects are committed, seen by another connection."""

    def count():
        database.rollback()
        return database.execute("SELECT count(*) FROM effects").fetchone()[0]

    return count


@pytest.fixture
def begun(replicas):
    """A replica with an attempt at an atomic call."""
    one = replicas()
    return one, one.begin(call(one.client(), 1, payload=b"\x00'\\%"), ATOMIC)


def by_connection(server, commit):
    """A psycopg connection."""
    with server.connect() as connection:
        connection.execute(INSERT)
        commit(connection)


def by_cursor(server, commit):
    """A psycopg cursor, on a connection whose cursors are of another kind."""
    with server.connect(cursor_factory=psycopg.RawCursor) as connection:
        cursor = connection.cursor(row_factory=psycopg.rows.dict_row)
        cursor.execute(INSERT)
        commit(cursor)


def by_explicit_begin(server, commit):
    """A transaction begun by hand on a connection in autocommit."""
    with server.connect(autocommit=True) as connection:
        connection.execute("BEGIN ISOLATION LEVEL SERIALIZABLE")
        connection.execute(INSERT)
        commit(connection)
        assert connection.info.transaction_status == TransactionStatus.IDLE


def with_old_strings(server, commit):
    """A session in which a backslash in a text means something."""
    with server.connect(options="-c standard_conforming_strings=off") as connection:
        connection.execute(INSERT)
        commit(connection)


def by_name(server, commit):
    """A DB-API connection that is named so."""
    with server.connect() as connection:
        connection.execute(INSERT)
        commit(rifl.DbApiTransaction(connection, "pyformat"))


def by_session(server, commit):
    """A SQLAlchemy session, whose objects are flushed by its own commit."""
    engine = sqlalchemy.create_engine(
        server.url().replace("postgresql://", "postgresql+psycopg://")
    )
    with sqlalchemy.orm.Session(engine) as session:
        session.execute(sqlalchemy.text(INSERT))
        commit(session)
    engine.dispose()


SEEN = [by_connection, by_cursor, by_explicit_begin, with_old_strings]
READ_BACK = [by_name, by_session]


@pytest.mark.parametrize("record", [FIRST, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("way", [*SEEN, *READ_BACK])
def test_record_and_effect_are_committed(replicas, begun, shared_server, effects, way, record):
    """One commit holds both; where its answer was seen, nothing is read back (DESIGN §1, §6)."""
    one, attempt = begun
    way(
        shared_server,
        lambda transaction: one.store.transactions.commit(attempt, record, transaction),
    )
    standing = one.store.committed(attempt)
    assert isinstance(standing, Later) == (way in READ_BACK)
    assert (standing.wait() if isinstance(standing, Later) else standing) == record
    one.store.adopt(attempt, record)
    assert replicas().claim(attempt.call, ATOMIC).record == record
    assert effects() == 1


@pytest.mark.parametrize("record", [FIRST, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("way", [*SEEN, *READ_BACK])
def test_an_attempt_that_may_not_record_commits_nothing(begun, shared_server, effects, way, record):
    """A COMMIT that follows a refused record is not carried out (DESIGN §6)."""
    one, attempt = begun
    with shared_server.connect() as connection:
        one.store.transactions.record(attempt, OTHER, connection)
    with pytest.raises(StaleRpc):
        way(
            shared_server,
            lambda transaction: one.store.transactions.commit(attempt, record, transaction),
        )
    assert effects() == 0
    assert attempt.committed is None
    assert one.store.committed(attempt).wait() == OTHER


def test_a_client_that_is_gone_commits_nothing(begun, shared_server, effects):
    """The client has to be known when the record is written, or all rolls back (DESIGN §6)."""
    one, attempt = begun
    one.store.leases.drop_client(attempt.call.client_id)
    # Dropped once its last call has ended: an administrator's doing, or a store's that was lost.
    with shared_server.connect() as connection:
        connection.execute(
            f"DELETE FROM {one.store._postgres.schema}.clients WHERE client_id = %s",
            (attempt.call.client_id,),
        )
    with shared_server.connect() as connection:
        connection.execute(INSERT)
        with pytest.raises(LeaseExpired):
            one.store.transactions.commit(attempt, FIRST, connection)
        connection.rollback()
    assert effects() == 0


def test_the_first_commit_stands_whatever_follows(begun, shared_server, effects):
    """A second record is refused with its effects, and does not replace the answer (§4, §6)."""
    one, attempt = begun
    by_connection(shared_server, lambda held: one.store.transactions.commit(attempt, FIRST, held))
    for again in (one.store.transactions.commit, one.store.transactions.record):
        with pytest.raises(StaleRpc):
            by_connection(shared_server, lambda held, again=again: again(attempt, OTHER, held))
    assert one.store.committed(attempt) == FIRST
    assert effects() == 1


def test_a_commit_that_fails_is_not_told_as_done(begun, shared_server, effects):
    """What is checked at the commit only, and a transaction that has failed before (§6)."""
    one, attempt = begun
    with shared_server.connect() as connection:
        connection.execute(
            "CREATE TEMPORARY TABLE late (x int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED)"
        )
        connection.commit()
        connection.execute(INSERT)
        connection.execute("INSERT INTO late VALUES (1), (1)")
        with pytest.raises(psycopg.errors.UniqueViolation):
            one.store.transactions.commit(attempt, FIRST, connection)
        assert attempt.committed is None
        assert one.store.committed(attempt).wait() is None
        connection.rollback()
        with pytest.raises(psycopg.errors.DivisionByZero):
            connection.execute("SELECT 1 / 0")
        for record in (FIRST, LARGE):
            with pytest.raises(psycopg.errors.InFailedSqlTransaction):
                one.store.transactions.commit(attempt, record, connection)
        connection.rollback()
    assert attempt.committed is None
    assert one.store.committed(attempt).wait() is None
    one.store.abandon(attempt).wait()
    assert one.claim(attempt.call, ATOMIC).verdict is Verdict.NEW
    assert effects() == 0


@pytest.mark.parametrize("record", [FIRST, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("reached", [True, False], ids=["committed", "not committed"])
def test_a_connection_dropped_at_the_commit_is_read_back(
    replicas, shared_server, effects, proxy, reached, record
):
    """Without the commit's answer nobody knows but the store, and that is asked (DESIGN §6)."""
    one = replicas()
    arriving = call(one.client(), 1)
    url = shared_server.url(proxy.address)
    attempts = []

    def run(attempt):
        attempts.append(attempt)
        with psycopg.connect(url) as connection:
            connection.execute(INSERT)
            proxy.drop_at(b"COMMIT", forward=reached)
            with pytest.raises(psycopg.OperationalError):
                one.store.transactions.commit(attempt, record, connection)
        if reached:
            until(lambda: effects() == 1, "it is committed")
        return HandlerResult(CompletionRecord(2, "lost"), raised=True, undone=True)

    answer = drive(serve(one.store, arriving, ATOMIC), one.store, run)
    assert attempts[0].committed is None
    if reached:
        assert (answer.record, answer.outcome, effects()) == (record, Outcome.EXECUTED, 1)
        assert one.claim(arriving, ATOMIC).record == record
    else:
        assert (answer.outcome, effects()) == (Outcome.NOT_EXECUTED, 0)
        # It may arrive all the same, when nobody waits for it any more.
        late = attempts[0]
        with pytest.raises(StaleRpc):
            by_connection(
                shared_server, lambda held: one.store.transactions.commit(late, record, held)
            )
        assert effects() == 0
        assert one.claim(arriving, ATOMIC).verdict is Verdict.NEW


def test_what_others_commit_is_not_committed_here(begun, shared_server, effects):
    """Within psycopg's blocks, in autocommit, in a pipeline, in another database (DESIGN §6)."""
    one, attempt = begun
    with shared_server.connect() as connection:
        with connection.transaction(force_rollback=True):
            connection.execute(INSERT)
            with pytest.raises(WrongDatabase, match="block of psycopg's"):
                one.store.transactions.commit(attempt, FIRST, connection)
        connection.tpc_begin("one")
        connection.execute(INSERT)
        with pytest.raises(WrongDatabase, match="block of psycopg's"):
            one.store.transactions.commit(attempt, FIRST, connection)
        connection.tpc_rollback()
        with connection.pipeline():
            for refused in (
                one.store.transactions.begin,
                partial(one.store.transactions.commit, attempt, FIRST),
            ):
                with pytest.raises(WrongDatabase, match="pipeline"):
                    refused(connection)
    with shared_server.connect(autocommit=True) as connection:
        with pytest.raises(WrongDatabase, match="autocommit"):
            one.store.transactions.commit(attempt, FIRST, connection)
        with pytest.raises(WrongDatabase, match="autocommit"):
            one.store.transactions.begin(rifl.DbApiTransaction(connection, "pyformat"))
        connection.execute("DROP DATABASE IF EXISTS another")
        connection.execute("CREATE DATABASE another")
    for record in (FIRST, LARGE):
        with psycopg.connect(shared_server.url().replace("/postgres", "/another")) as elsewhere:
            elsewhere.execute("SELECT 1")
            with pytest.raises(WrongDatabase, match="recovery could not find"):
                one.store.transactions.commit(attempt, record, elsewhere)
            elsewhere.rollback()
    with pytest.raises(WrongDatabase, match="no commit"):
        one.store.transactions.commit(attempt, FIRST, object())
    assert attempt.committed is None
    assert effects() == 0


@pytest.fixture
def context(begun):
    """The context that the handler of the attempt is given."""
    one, attempt = begun
    return HandlerContext(None, attempt, Serving(one.store, None))


@pytest.mark.parametrize("autocommit", [False, True])
def test_a_block_is_the_transaction(begun, context, shared_server, effects, autocommit):
    """It begins as the connection says, holds the record back, and commits both (DESIGN §6)."""
    _, attempt = begun
    with shared_server.connect(autocommit=autocommit) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        with rifl.transaction(context, connection) as given:
            assert given is connection
            isolation = given.execute("SHOW transaction_isolation").fetchone()[0]
            rifl.record(context, FIRST.response, given.cursor())
            given.execute(INSERT)
            assert (effects(), attempt.committed) == (0, None)
        assert connection.info.transaction_status == TransactionStatus.IDLE
    assert isolation == "repeatable read"
    assert attempt.committed == FIRST
    assert effects() == 1


def forgets(context, connection, other):
    """Leave the block without a record."""


def raises(context, connection, other):
    """Leave it by an exception, with a record."""
    rifl.record(context, b"x", connection)
    raise KeyError


def records_elsewhere(context, connection, other):
    """Give the record another connection."""
    rifl.record(context, b"x", other)


def records_twice(context, connection, other):
    """Give two answers."""
    rifl.record(context, b"x", connection)
    rifl.record(context, b"x", connection)


def nests(context, connection, other):
    """Open another block within."""
    with rifl.transaction(context, other):
        rifl.record(context, b"x", other)


LEFT = [
    (forgets, NotRecorded),
    (raises, KeyError),
    (records_elsewhere, WrongDatabase),
    (records_twice, WrongDatabase),
    (nests, WrongDatabase),
]


@pytest.mark.parametrize("autocommit", [False, True])
@pytest.mark.parametrize(("leave", "error"), LEFT, ids=lambda value: value.__name__)
def test_a_block_that_is_left_otherwise_leaves_nothing(
    begun, context, shared_server, effects, leave, error, autocommit
):
    """It is rolled back, and the call was not executed (DESIGN §4, §6)."""
    one, attempt = begun
    with (
        shared_server.connect(autocommit=autocommit) as connection,
        shared_server.connect() as other,
    ):
        with pytest.raises(error), rifl.transaction(context, connection):  # noqa: PT012 - its body
            connection.execute(INSERT)
            leave(context, connection, other)
        assert connection.info.transaction_status == TransactionStatus.IDLE
        assert (effects(), attempt.committed, attempt.recorded) == (0, None, None)
        with rifl.transaction(context, connection):
            rifl.record(context, FIRST.response, connection)
    assert one.store.committed(attempt) == FIRST, "and there can be another one"


def test_a_block_of_an_attempt_that_may_not_record_is_rolled_back(
    begun, context, shared_server, effects
):
    """What is refused at the end is rolled back there (DESIGN §6)."""
    one, attempt = begun
    by_connection(shared_server, lambda held: one.store.transactions.commit(attempt, OTHER, held))
    with shared_server.connect() as connection:
        with pytest.raises(StaleRpc), rifl.transaction(context, connection):  # noqa: PT012 - its body
            connection.execute(INSERT)
            rifl.record(context, FIRST.response, connection)
        assert connection.info.transaction_status == TransactionStatus.IDLE
    assert one.store.committed(attempt) == OTHER
    assert effects() == 1


def test_a_block_is_the_only_one_that_begins_and_commits(begun, context, shared_server, effects):
    """A transaction that is open already, or was ended within, is not the block's (DESIGN §6)."""
    _, attempt = begun
    with shared_server.connect() as connection:
        connection.execute(INSERT)
        with pytest.raises(WrongDatabase, match="open"), rifl.transaction(context, connection):
            pytest.fail("it has begun")
        connection.rollback()
        with pytest.raises(WrongDatabase, match="ended"), rifl.transaction(context, connection):  # noqa: PT012 - its body
            rifl.record(context, FIRST.response, connection)
            connection.execute("ROLLBACK")
    assert (effects(), attempt.committed) == (0, None)


@pytest.mark.parametrize("autocommit", [False, True])
def test_a_block_without_an_identity_is_a_plain_transaction(shared_server, effects, autocommit):
    """Effects are committed together, or rolled back together; nothing is recorded (§6)."""
    with shared_server.connect(autocommit=autocommit) as connection:
        for held in (connection, connection.cursor()):
            with pytest.raises(KeyError), rifl.transaction(None, held):  # noqa: PT012 - its body
                connection.execute(INSERT)
                raise KeyError
            assert effects() == 0
        with rifl.transaction(None, connection):
            connection.execute(INSERT)
            rifl.record(None, b"x", connection)
        assert effects() == 1


def test_the_handler_cannot_end_the_block_s_transaction(begun, context, shared_server, effects):
    """As within psycopg's: else an effect were undone, or done, without its record (DESIGN §6)."""
    one, attempt = begun
    with shared_server.connect() as connection:
        for end in (connection.commit, connection.rollback):
            with pytest.raises(psycopg.ProgrammingError), rifl.transaction(context, connection):  # noqa: PT012 - its body
                connection.execute(INSERT)
                rifl.record(context, b"x", connection)
                end()
            assert connection.info.transaction_status == TransactionStatus.IDLE
            assert effects() == 0
        with rifl.transaction(context, connection):
            connection.execute(INSERT)
            with pytest.raises(KeyError), connection.transaction():  # noqa: PT012 - its body
                connection.execute(INSERT)
                raise KeyError
            rifl.record(context, FIRST.response, connection)
        # As before.
        connection.execute(INSERT)
        connection.rollback()
        connection.execute(INSERT)
        connection.commit()
    assert one.store.committed(attempt) == FIRST
    assert effects() == 2


def test_a_call_whose_transaction_was_ended_has_no_other(begun, context, shared_server, effects):
    """What it committed may be all that it does: its outcome is unknown, for good (DESIGN §6)."""
    _, attempt = begun
    with shared_server.connect() as connection:
        with (  # noqa: PT012 - its body
            pytest.raises(rifl.TransactionEnded, match="COMMIT"),
            rifl.transaction(context, connection),
        ):
            connection.execute(INSERT)
            connection.execute("COMMIT")
        assert attempt.doubt
        with pytest.raises(rifl.TransactionEnded), rifl.transaction(context, connection):
            pytest.fail("it has begun")
        with pytest.raises(rifl.TransactionEnded):
            rifl.record(context, b"x", connection)
    assert effects() == 1


def test_a_block_has_read_nothing_before_its_first_statement(context, shared_server):
    """So that a handler may set the isolation level, and lock before its snapshot is taken (§6)."""
    with (  # noqa: PT012 - its body
        shared_server.connect() as connection,
        pytest.raises(NotRecorded),
        rifl.transaction(context, connection),
    ):
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        assert connection.execute("SHOW transaction_isolation").fetchone() == ("repeatable read",)


def test_what_a_block_writes_last_is_written_where_it_began(begun, context, shared_server, effects):
    """A role that a handler left is put back, for us alone, and the schema is named (DESIGN §6)."""
    _, attempt = begun
    with shared_server.connect() as connection:
        connection.execute("CREATE SCHEMA IF NOT EXISTS elsewhere")
        connection.commit()
        with rifl.transaction(context, connection):
            connection.execute(INSERT)
            connection.execute("SET ROLE pg_monitor")
            connection.execute("SET search_path = elsewhere")
            rifl.record(context, FIRST.response, connection)
        assert connection.execute("SHOW role").fetchone() == ("pg_monitor",)
        assert connection.execute("SHOW search_path").fetchone() == ("elsewhere",)
    assert attempt.committed == FIRST
    assert effects() == 1


def test_a_connection_that_is_lost_within_a_block_leaves_unknown(
    begun, context, shared_server, effects
):
    """We cannot ask whether its handler had committed; nobody need have (DESIGN §4, §6)."""
    _, attempt = begun
    with (  # noqa: PT012 - its body
        pytest.raises(psycopg.OperationalError),
        shared_server.connect() as connection,
        rifl.transaction(context, connection),
    ):
        connection.execute(INSERT)
        connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")
    assert (context.rifl_undone, attempt.doubt) == (False, "")
    assert effects() == 0


def test_a_connection_that_prepares_every_statement_will_do(begun, context, shared_server, effects):
    """What records and commits in one message cannot be prepared (PostgreSQL's protocol)."""
    one, attempt = begun
    with (
        shared_server.connect(prepare_threshold=0) as connection,
        rifl.transaction(context, connection),
    ):
        connection.execute(INSERT)
        rifl.record(context, FIRST.response, connection)
    assert one.store.committed(attempt) == FIRST
    assert effects() == 1


async def test_blocks_of_asynchronous_transactions(begun, shared_server, effects):
    """``async with``: as ``with`` (DESIGN §6)."""
    one, attempt = begun
    context = AioHandlerContext(None, attempt, Serving(one.store, None))
    async with await psycopg.AsyncConnection.connect(
        shared_server.url(), autocommit=True
    ) as connection:
        with pytest.raises(NotRecorded):
            async with rifl.aio.transaction(context, connection):
                await connection.execute(INSERT)
        with pytest.raises(KeyError):  # noqa: PT012 - its body
            async with rifl.aio.transaction(None, connection):
                await connection.execute(INSERT)
                raise KeyError
        assert effects() == 0
        async with rifl.aio.transaction(context, connection) as given:
            await given.execute(INSERT)
            await rifl.aio.record(context, FIRST.response, given)
            assert effects() == 0
        with pytest.raises(psycopg.ProgrammingError):
            async with rifl.aio.transaction(context, connection):
                await connection.rollback()
        with pytest.raises(StaleRpc):  # noqa: PT012 - its body
            async with rifl.aio.transaction(context, connection):
                await connection.execute(INSERT)
                await rifl.aio.record(context, b"x", connection)
    assert one.store.committed(attempt) == FIRST
    assert effects() == 1


async def test_asynchronous_transactions_are_committed_too(replicas, shared_server, effects):
    """psycopg's and SQLAlchemy's asynchronous forms, with ``await`` (DESIGN §6)."""
    one = replicas()
    client = one.client()
    engine = sqlalchemy.ext.asyncio.create_async_engine(
        shared_server.url().replace("postgresql://", "postgresql+psycopg://")
    )

    async def of_connection(commit):
        async with await psycopg.AsyncConnection.connect(shared_server.url()) as connection:
            await connection.execute(INSERT)
            await commit(connection)

    async def of_cursor(commit):
        async with await psycopg.AsyncConnection.connect(shared_server.url()) as connection:
            cursor = connection.cursor()
            await cursor.execute(INSERT)
            await commit(cursor)

    async def of_session(commit):
        async with sqlalchemy.ext.asyncio.AsyncSession(engine) as session:
            await session.execute(sqlalchemy.text(INSERT))
            await commit(session)

    async def of_alchemy(commit):
        async with engine.connect() as connection:
            await connection.execute(sqlalchemy.text(INSERT))
            await commit(connection)

    ways = [of_connection, of_cursor, of_session, of_alchemy]
    for seq, way in enumerate(ways, 1):
        attempt = one.begin(call(client, seq), ATOMIC)

        async def commit(transaction, attempt=attempt):
            await one.store.transactions.commit_async(attempt, FIRST, transaction)

        await way(commit)
        standing = one.store.committed(attempt)
        assert isinstance(standing, Later) == (seq > 2)
        assert (await standing if isinstance(standing, Later) else standing) == FIRST
        with pytest.raises(StaleRpc):
            await way(commit)
    await engine.dispose()
    assert effects() == len(ways)


def test_a_handler_with_a_block_is_answered_and_replayed(url, shared_server, effects):
    """Once, with the first answer to every attempt; without an identity, too (DESIGN §4, §6)."""

    def move(request, context):
        with shared_server.connect() as connection, rifl.transaction(context, connection):
            connection.execute(INSERT)
            rifl.record(context, b"moved", connection)
        return b"something else"

    with (
        rifl.Deduplicator(url, default="atomic") as dedup,
        serve_service("sync", [generic("s.S", {"Move": move})], dedup=dedup) as served,
        RawClient(served.address) as client,
    ):
        replies = [client.call("/s.S/Move", b"x", 1, attempt=attempt) for attempt in (1, 2)]
        assert [reply.response for reply in replies] == [b"moved", b"moved"]
        assert replies[1].outcome == "replayed"
        assert effects() == 1
        assert client.call("/s.S/Move", b"x", bare=True).response == b"something else"
        assert effects() == 2
