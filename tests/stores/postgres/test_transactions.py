"""``rifl.record`` into transactions of psycopg, SQLAlchemy and DB-API (DESIGN §6)."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import psycopg
import pytest
import sqlalchemy
import sqlalchemy.ext.asyncio
import sqlalchemy.orm

import rifl
from rifl._stores import UnsupportedStore, WrongDatabase, open_store
from rifl._stores.shared import Claim
from rifl.core._serving.bounds import Bounds
from rifl.core._serving.policy import Kind, MethodPolicies, MethodPolicy
from rifl.core._serving.verdict import Verdict
from rifl.core._shared.errors import LeaseExpired, StaleRpc
from tests.helpers.waiting import until
from tests.stores.redis.replica import ATOMIC, FIRST, IDEMPOTENT, OTHER, PLAIN, call

INSERT = "INSERT INTO effects VALUES ('x')"


def effects(database):
    """How many effects are committed."""
    database.rollback()
    return database.execute("SELECT count(*) FROM effects").fetchone()[0]


def new(decision):
    """The attempt of a decision, if the call is claimed."""
    return decision.attempt if decision.verdict is Verdict.NEW else None


@pytest.fixture
def engine(shared_server):
    """SQLAlchemy's engine over psycopg."""
    engine = sqlalchemy.create_engine(
        shared_server.url().replace("postgresql://", "postgresql+psycopg://")
    )
    yield engine
    engine.dispose()


class Ways:
    """Handlers that write an effect and the record in one transaction, each in its way."""

    def __init__(self, server, engine):
        self.server, self.engine = server, engine

    def connection(self, record):
        """A psycopg connection."""
        with self.server.connect() as connection:
            connection.execute(INSERT)
            record(connection)

    def cursor(self, record):
        """A psycopg cursor, with rows of its own kind."""
        with self.server.connect(row_factory=psycopg.rows.dict_row) as connection:
            cursor = connection.cursor()
            record(cursor)
            cursor.execute(INSERT)

    def block(self, record):
        """A transaction block on a connection in autocommit."""
        with self.server.connect(autocommit=True) as connection, connection.transaction():
            record(connection)
            connection.execute(INSERT)

    def named(self, record):
        """A DB-API connection that is named so."""
        with self.server.connect() as connection:
            connection.execute(INSERT)
            record(rifl.DbApiTransaction(connection, "pyformat"))

    def sqlalchemy_connection(self, record):
        """A SQLAlchemy connection whose transaction our record begins."""
        with self.engine.connect() as connection:
            record(connection)
            connection.execute(sqlalchemy.text(INSERT))
            connection.commit()

    def sqlalchemy_session(self, record):
        """A SQLAlchemy session."""
        with sqlalchemy.orm.Session(self.engine) as session, session.begin():
            session.execute(sqlalchemy.text(INSERT))
            record(session)


WAYS = [name for name in vars(Ways) if not name.startswith("_")]


@pytest.mark.parametrize("way", WAYS)
def test_record_and_effect_commit_together(replicas, database, shared_server, engine, way):
    """One commit holds both, and the record is what stands everywhere (DESIGN §1, §6)."""
    one, two = replicas(), replicas()
    attempt = one.begin(call(one.client(), 1), ATOMIC)
    handler = getattr(Ways(shared_server, engine), way)
    handler(lambda transaction: one.store.transactions.record(attempt, FIRST, transaction))
    assert one.store.committed(attempt).wait() == FIRST
    one.store.adopt(attempt, FIRST)
    assert two.claim(attempt.call, ATOMIC).record == FIRST
    assert effects(database) == 1


@pytest.mark.parametrize("way", WAYS)
def test_a_handler_that_is_not_current_leaves_nothing(
    replicas, database, shared_server, engine, way
):
    """A record that stands already raises, and the effects roll back (DESIGN §6)."""
    one = replicas()
    attempt = one.begin(call(one.client(), 1), ATOMIC)
    with shared_server.connect() as connection:
        one.store.transactions.record(attempt, OTHER, connection)
    handler = getattr(Ways(shared_server, engine), way)
    with pytest.raises(StaleRpc):
        handler(lambda transaction: one.store.transactions.record(attempt, FIRST, transaction))
    assert one.store.committed(attempt).wait() == OTHER
    assert effects(database) == 0


@pytest.mark.parametrize("meanwhile", ["acknowledged", "expired", "taken over"])
def test_what_ends_the_attempt_undoes_the_transaction(replicas, database, meanwhile):
    """Known client, nothing recorded or acknowledged, current token: else it raises (§6)."""
    one, two = replicas(), replicas()
    attempt = one.begin(call(one.client(), 1), ATOMIC)
    database.execute(INSERT)
    if meanwhile == "acknowledged":
        two.finish(two.begin(call(attempt.call.client_id, 2, first=2)))
    elif meanwhile == "expired":
        two.store.leases.drop_client(attempt.call.client_id)
    else:
        woken = two.woken(two.claim(attempt.call, ATOMIC).attempt)
        one.fall_silent()
        assert woken.wait(60)
        two.begin(attempt.call, ATOMIC)
    with pytest.raises((StaleRpc, LeaseExpired)):
        one.store.transactions.record(attempt, FIRST, database)
    assert effects(database) == 0


def test_what_was_rolled_back_left_nothing(replicas, database):
    """A transaction that rolls back records nothing; the call is new again (DESIGN §4)."""
    one = replicas()
    attempt = one.begin(call(one.client(), 1), ATOMIC)
    database.execute(INSERT)
    one.store.transactions.record(attempt, FIRST, database)
    database.rollback()
    assert one.store.committed(attempt).wait() is None
    one.store.abandon(attempt).wait()
    assert one.claim(attempt.call, ATOMIC).verdict is Verdict.NEW
    assert effects(database) == 0


def test_whether_it_committed_is_decided_by_the_row_not_by_a_race(replicas, database):
    """Reading back waits for a transaction that may still commit (DESIGN §6)."""
    one = replicas()
    attempt = one.begin(call(one.client(), 1), ATOMIC)
    one.store.transactions.record(attempt, FIRST, database)
    found = []
    reading = threading.Thread(target=lambda: found.append(one.store.committed(attempt).wait()))
    reading.start()
    reading.join(0.3)
    assert not found, "it waits"
    database.commit()
    reading.join(60)
    assert found == [FIRST]


def test_a_take_over_ends_the_transaction_of_a_silent_replica(replicas, database, shared_server):
    """Its session would hold the call for ever; ended, it can commit nothing (DESIGN §6)."""
    one, two = replicas(), replicas()
    attempt = one.begin(call(one.client(), 1), ATOMIC)
    silent = shared_server.connect()
    silent.execute(INSERT)
    one.store.transactions.record(attempt, FIRST, silent)
    one.fall_silent()
    # Whoever waits looks again with every beat: the row is locked, so nothing is noted.
    taken = until(lambda: new(two.claim(attempt.call, ATOMIC)), "the call is taken over")
    with pytest.raises(psycopg.OperationalError):
        silent.commit()
    database.execute(INSERT)
    two.store.transactions.record(taken, OTHER, database)
    database.commit()
    assert one.store.committed(attempt).wait() == OTHER, "both answer with what stands"
    assert effects(database) == 1


def test_other_calls_of_the_client_do_not_wait_for_a_handler(replicas, database):
    """An open transaction pins its own call, not the client (DESIGN §4, head of line)."""
    one, two = replicas(), replicas()
    client = one.client()
    attempt = one.begin(call(client, 1), ATOMIC)
    one.store.transactions.record(attempt, FIRST, database)
    for seq in range(2, 9):
        done = [(2, seq - 1)] if seq > 2 else []
        two.finish(two.begin(call(client, seq, completed=done)))
    database.commit()
    assert two.claim(attempt.call, ATOMIC).record == FIRST


def test_a_transaction_that_cannot_hold_the_record_is_refused(replicas, shared_server, database):
    """Autocommit, another database, something else, another kind (DESIGN §6)."""
    one = replicas()
    attempt = one.begin(call(one.client(), 1), ATOMIC)
    with shared_server.connect(autocommit=True) as admin:
        admin.execute("DROP DATABASE IF EXISTS elsewhere")
        admin.execute("CREATE DATABASE elsewhere")
        for wrong in (admin, rifl.DbApiTransaction(admin, "format"), _sneaky(admin)):
            with pytest.raises(WrongDatabase, match="autocommit"):
                one.store.transactions.record(attempt, FIRST, wrong)
    elsewhere = psycopg.connect(shared_server.url().replace("/postgres", "/elsewhere"))
    wrong = [elsewhere, rifl.DbApiTransaction(elsewhere, "pyformat")]
    for transaction in wrong:
        with pytest.raises(WrongDatabase, match="recovery could not find"):
            one.store.transactions.record(attempt, FIRST, transaction)
        elsewhere.rollback()
    elsewhere.close()
    with pytest.raises(WrongDatabase, match="is wanted"):
        one.store.transactions.record(attempt, FIRST, object())
    plain = one.begin(call(one.client(), 1), IDEMPOTENT)
    with pytest.raises(WrongDatabase, match="not declared atomic"):
        one.store.transactions.record(plain, FIRST, database)
    assert one.store.committed(attempt).wait() is None


def _sneaky(connection):
    """A DB-API connection that does not say that it is in autocommit."""
    hidden = SimpleNamespace(cursor=connection.cursor, commit=connection.commit)
    return rifl.DbApiTransaction(hidden, "pyformat")


def test_a_named_database_has_to_be_the_stores_own(url, shared_server):
    """An atomic method may name the store's own database, no other (DESIGN §6)."""
    for database, fine in ((url, True), (shared_server.url(schema="other"), False), ("x:", False)):
        store = open_store(url)
        policy = MethodPolicy(kind=Kind.ATOMIC, database=database)
        policies = MethodPolicies({"/s/M": policy}, "plain")
        try:
            if fine:
                store.bind(None, policies, clock=None, bounds=Bounds(window=8))
            else:
                with pytest.raises(UnsupportedStore, match="another database"):
                    store.bind(None, policies, clock=None, bounds=Bounds(window=8))
        finally:
            store.close()


async def test_asynchronous_transactions_record_too(replicas, database, shared_server):
    """psycopg's and SQLAlchemy's asynchronous forms, with ``await`` (DESIGN §6)."""
    one = replicas()
    client = one.client()
    engine = sqlalchemy.ext.asyncio.create_async_engine(
        shared_server.url().replace("postgresql://", "postgresql+psycopg://")
    )

    async def by_connection(record):
        async with await psycopg.AsyncConnection.connect(shared_server.url()) as connection:
            await connection.execute(INSERT)
            await record(connection)

    async def by_cursor(record):
        async with await psycopg.AsyncConnection.connect(shared_server.url()) as connection:
            await record(cursor := connection.cursor())
            await cursor.execute(INSERT)

    async def by_alchemy(record):
        async with engine.connect() as connection:
            await record(connection)
            await connection.execute(sqlalchemy.text(INSERT))
            await connection.commit()

    async def by_session(record):
        async with sqlalchemy.ext.asyncio.AsyncSession(engine) as session, session.begin():
            await session.execute(sqlalchemy.text(INSERT))
            await record(session)

    ways = [by_connection, by_cursor, by_alchemy, by_session]
    for seq, way in enumerate(ways, 1):
        attempt = one.begin(call(client, seq), ATOMIC)

        async def record(transaction, attempt=attempt):
            with pytest.raises(WrongDatabase, match="await"):
                one.store.transactions.record(
                    attempt, FIRST, getattr(transaction, "sync_connection", transaction)
                )
            await one.store.transactions.record_async(attempt, FIRST, transaction)

        if way is by_session:

            async def record(transaction, attempt=attempt):
                await one.store.transactions.record_async(attempt, FIRST, transaction)

        await way(record)
        assert await one.store.committed(attempt) == FIRST
    await engine.dispose()
    assert effects(database) == len(ways)


@pytest.mark.parametrize(("policy", "waits"), [(PLAIN, "on"), (IDEMPOTENT, "off"), (ATOMIC, "off")])
def test_only_a_plain_calls_claim_waits_for_the_disk(replicas, shared_server, policy, waits):
    """An intent is durable before the handler starts; other claims have nothing to keep (§1)."""
    one = replicas()
    wanted = Claim(call(one.client(), 1), policy.kind, b"t", one.store.owner, False, 8, 9, 999)
    statement, arguments = one.store._postgres._pack(wanted)
    with shared_server.connect() as connection:
        assert connection.execute(statement.text, arguments, binary=True).fetchone()[0] == "new"
        assert connection.execute("SHOW synchronous_commit").fetchone()[0] == waits
        connection.rollback()


def test_an_atomic_call_whose_claim_a_crash_lost_cannot_commit(replicas, database, schema):
    """Its transaction is refused, so whoever claims the call then is the only one (§1, §4)."""
    one = replicas()
    attempt = one.begin(call(one.client(), 1), ATOMIC)
    database.execute(f"DELETE FROM {schema}.calls")
    database.commit()
    database.execute(INSERT)
    with pytest.raises(StaleRpc):
        one.store.transactions.record(attempt, FIRST, database)
    database.rollback()
    again = replicas().begin(attempt.call, ATOMIC)
    database.execute(INSERT)
    one.store.transactions.record(again, FIRST, database)
    database.commit()
    assert effects(database) == 1
