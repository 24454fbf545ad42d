"""``rifl.record`` into transactions of PyMySQL, SQLAlchemy, Django and DB-API (DESIGN §6)."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace

import pymysql
import pytest
import sqlalchemy
import sqlalchemy.orm

import rifl
from rifl._stores import UnsupportedStore, WrongDatabase, open_store
from rifl.core._serving.bounds import Bounds
from rifl.core._serving.policy import Kind, MethodPolicies, MethodPolicy
from rifl.core._serving.verdict import Verdict
from rifl.core._shared.errors import LeaseExpired, StaleRpc
from tests.helpers.waiting import until
from tests.stores.redis.replica import ATOMIC, FIRST, IDEMPOTENT, OTHER, call

INSERT = "INSERT INTO effects VALUES ('x')"


@pytest.fixture
def engine(shared_mariadb):
    """SQLAlchemy's engine over PyMySQL."""
    where = f"127.0.0.1:{shared_mariadb.port}/rifl?ssl_disabled=true"
    engine = sqlalchemy.create_engine(f"mysql+pymysql://root@{where}")
    yield engine
    engine.dispose()


class Ways:
    """Handlers that write an effect and the record in one transaction, each in its way."""

    def __init__(self, server, engine):
        self.server, self.engine = server, engine

    def connection(self, record):
        """A PyMySQL connection whose cursors make dictionaries, and whose counts are of matches."""
        options = {
            "cursorclass": pymysql.cursors.DictCursor,
            "client_flag": pymysql.constants.CLIENT.FOUND_ROWS,
        }
        with self.server.connect(**options) as connection, connection.cursor() as cursor:
            # REPEATABLE READ: it sees from now on what is so now.
            cursor.execute("SELECT COUNT(*) FROM effects")
            cursor.execute(INSERT)
            record(connection)
            connection.commit()

    def cursor(self, record):
        """A PyMySQL cursor."""
        with self.server.connect() as connection, connection.cursor() as cursor:
            record(cursor)
            cursor.execute(INSERT)
            connection.commit()

    def begun(self, record):
        """A transaction begun by hand on a connection in autocommit."""
        with self.server.connect(autocommit=True) as connection, connection.cursor() as cursor:
            connection.begin()
            record(connection)
            cursor.execute(INSERT)
            connection.commit()

    def named(self, record):
        """A DB-API connection that is named so, in a mode where nothing is escaped."""
        with self.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SET sql_mode = 'NO_BACKSLASH_ESCAPES,ANSI_QUOTES'")
            cursor.execute(INSERT)
            record(rifl.DbApiTransaction(connection, "pyformat"))
            connection.commit()

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
def test_record_and_effect_commit_together(replicas, effects, shared_mariadb, engine, way):
    """One commit holds both, and the record is what stands everywhere (DESIGN §1, §6)."""
    one, two = replicas(), replicas()
    attempt = one.begin(call(one.client(), 1), ATOMIC)
    handler = getattr(Ways(shared_mariadb, engine), way)
    handler(lambda transaction: one.store.transactions.record(attempt, FIRST, transaction))
    assert one.store.committed(attempt).wait() == FIRST
    one.store.adopt(attempt, FIRST)
    assert two.claim(attempt.call, ATOMIC).record == FIRST
    assert effects() == 1


@pytest.mark.parametrize("way", WAYS)
def test_a_handler_that_is_not_current_leaves_nothing(
    replicas, database, effects, shared_mariadb, engine, way
):
    """A record that stands already raises, and the effects roll back (DESIGN §6)."""
    one = replicas()
    attempt = one.begin(call(one.client(), 1), ATOMIC)
    one.store.transactions.record(attempt, OTHER, database)
    database.commit()
    handler = getattr(Ways(shared_mariadb, engine), way)
    with pytest.raises(StaleRpc):
        handler(lambda transaction: one.store.transactions.record(attempt, FIRST, transaction))
    assert one.store.committed(attempt).wait() == OTHER
    assert effects() == 0


@pytest.mark.parametrize("isolation", [0, 1])
@pytest.mark.parametrize("meanwhile", ["acknowledged", "expired", "taken over"])
def test_what_ends_the_attempt_undoes_the_transaction(
    replicas, database, effects, meanwhile, isolation
):
    """Current token, seen in a transaction that began before: else it raises (DESIGN §6)."""
    one, two = replicas(), replicas()
    attempt = one.begin(call(one.client(), 1), ATOMIC)
    with database.cursor() as cursor:
        cursor.execute("SET innodb_snapshot_isolation = %s", (isolation,))
        cursor.execute("SELECT COUNT(*) FROM effects")
        cursor.execute(INSERT)
    if meanwhile == "acknowledged":
        two.finish(two.begin(call(attempt.call.client_id, 2, first=2)))
    elif meanwhile == "expired":
        two.store.leases.drop_client(attempt.call.client_id)
    else:
        woken = two.woken(two.claim(attempt.call, ATOMIC).attempt)
        one.fall_silent()
        assert woken.wait(60)
        two.begin(attempt.call, ATOMIC)
    # The server refuses what has changed since the transaction began, or we do.
    expected = (StaleRpc, LeaseExpired) + (pymysql.OperationalError,) * isolation
    with pytest.raises(expected):
        one.store.transactions.record(attempt, FIRST, database)
    database.rollback()
    assert effects() == 0


def test_whether_it_committed_is_decided_by_the_row_not_by_a_race(replicas, database, url):
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


def test_a_take_over_ends_the_transaction_of_a_silent_replica(
    replicas, database, effects, shared_mariadb
):
    """Its session would hold the call for ever; killed, it can commit nothing (DESIGN §6)."""
    one, two = replicas(), replicas()
    attempt = one.begin(call(one.client(), 1), ATOMIC)
    silent = shared_mariadb.connect()
    silent.cursor().execute(INSERT)
    one.store.transactions.record(attempt, FIRST, silent)
    one.fall_silent()
    taken = until(lambda: _new(two.claim(attempt.call, ATOMIC)), "the call is taken over")
    with pytest.raises(pymysql.OperationalError):
        silent.commit()
    with database.cursor() as cursor:
        cursor.execute(INSERT)
    two.store.transactions.record(taken, OTHER, database)
    database.commit()
    assert one.store.committed(attempt).wait() == OTHER, "both answer with what stands"
    assert effects() == 1


def _new(decision):
    return decision.attempt if decision.verdict is Verdict.NEW else None


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


def test_a_transaction_that_cannot_hold_the_record_is_refused(replicas, shared_mariadb, database):
    """Autocommit, another database, something else, another kind (DESIGN §6)."""
    one = replicas()
    attempt = one.begin(call(one.client(), 1), ATOMIC)
    record = one.store.transactions.record
    with shared_mariadb.connect(autocommit=True) as admin:
        admin.cursor().execute("CREATE DATABASE IF NOT EXISTS elsewhere")
        hidden = SimpleNamespace(cursor=admin.cursor, commit=admin.commit)
        for wrong in (admin, rifl.DbApiTransaction(hidden, "pyformat")):
            with pytest.raises(WrongDatabase, match="autocommit"):
                record(attempt, FIRST, wrong)
        with pytest.raises(WrongDatabase, match="autocommit"):
            one.store.transactions.begin(admin)
    with shared_mariadb.connect(database="elsewhere") as elsewhere:
        for wrong in (elsewhere, rifl.DbApiTransaction(elsewhere, "pyformat")):
            with pytest.raises(WrongDatabase, match="recovery could not find"):
                record(attempt, FIRST, wrong)
        elsewhere.rollback()
        with pytest.raises(WrongDatabase, match="in another database"):
            one.store.transactions.begin(elsewhere)
    with pytest.raises(WrongDatabase, match="is wanted"):
        record(attempt, FIRST, object())
    with pytest.raises(WrongDatabase, match="not declared atomic"):
        record(one.begin(call(one.client(), 1), IDEMPOTENT), FIRST, database)
    database.cursor().execute("SELECT COUNT(*) FROM effects")
    with pytest.raises(WrongDatabase, match="is open on the connection already"):
        one.store.transactions.begin(database)
    with pytest.raises(WrongDatabase, match="PyMySQL connection"):
        one.store.transactions.begin(rifl.DbApiTransaction(database, "format"))
    assert one.store.committed(attempt).wait() is None


async def test_an_asynchronous_connection_is_refused(replicas):
    """PyMySQL blocks, and no other driver is supported: it is said (DESIGN §6)."""

    class Asyncmy:
        async def commit(self):
            """As asyncmy's and aiomysql's."""

        def cursor(self):
            """The same."""

    one = replicas()
    attempt = one.begin(call(one.client(), 1), ATOMIC)
    for refused in (
        one.store.transactions.record_async(attempt, FIRST, Asyncmy()),
        one.store.transactions.begin_async(Asyncmy()),
    ):
        with pytest.raises(WrongDatabase, match="asynchronous drivers are not supported"):
            await refused


def test_a_named_database_has_to_be_the_stores_own(url, shared_mariadb):
    """An atomic method may name the store's own database, no other (DESIGN §6)."""
    for database, fine in (
        (url, True),
        (shared_mariadb.url(prefix="other_"), False),
        ("x:", False),
    ):
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


def test_django_commits_the_record_with_its_transaction(
    replicas, effects, shared_mariadb, monkeypatch
):
    """``transaction.atomic``, by the connection that Django calls its own (DESIGN §6)."""
    # As PyMySQL's own documentation has it.
    monkeypatch.setattr(pymysql, "version_info", (2, 2, 1, "final", 0))
    monkeypatch.setitem(sys.modules, "MySQLdb", pymysql)
    monkeypatch.setitem(sys.modules, "_mysql", pymysql)
    from django.conf import settings

    if not settings.configured:
        settings.configure()
    from django.db.backends.mysql.base import DatabaseWrapper

    wrapper = DatabaseWrapper(
        {
            "NAME": "rifl",
            "USER": "root",
            "PASSWORD": "",
            "HOST": "127.0.0.1",
            "PORT": shared_mariadb.port,
            "OPTIONS": {"ssl_disabled": True},
            "TIME_ZONE": None,
            "AUTOCOMMIT": True,
            "CONN_MAX_AGE": 0,
            "CONN_HEALTH_CHECKS": False,
            "ATOMIC_REQUESTS": False,
            "TEST": {},
        },
        alias="mariadb",
    )
    one = replicas()
    attempt = one.begin(call(one.client(), 1), ATOMIC)
    with pytest.raises(WrongDatabase, match="autocommit"):
        one.store.transactions.record(attempt, FIRST, wrapper)
    with pytest.raises(WrongDatabase):
        one.store.transactions.begin(wrapper)
    wrapper.set_autocommit(False)
    with wrapper.cursor() as cursor:
        cursor.execute(INSERT)
    one.store.transactions.record(attempt, FIRST, wrapper)
    wrapper.commit()
    wrapper.close()
    assert one.store.committed(attempt).wait() == FIRST
    assert effects() == 1
