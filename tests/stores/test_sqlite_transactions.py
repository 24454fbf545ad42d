"""``rifl.record`` into SQLAlchemy's and DB-API transactions over SQLite (DESIGN §6)."""

from __future__ import annotations

import contextlib
import sqlite3

import aiosqlite
import pytest
import sqlalchemy
import sqlalchemy.ext.asyncio
import sqlalchemy.orm

import rifl
from rifl._stores import WrongDatabase
from rifl.core._serving.later import Later
from rifl.core._serving.policy import Kind, MethodPolicy
from rifl.core._shared.errors import StaleRpc
from tests.stores.conformance import FIRST, OTHER, Opened, call, wait

ATOMIC = MethodPolicy(kind=Kind.ATOMIC)
INSERT = "INSERT INTO effects VALUES ('x')"


class Somewhere:
    """A store in a file."""

    durable = True

    def __init__(self, path):
        self.path = path
        self.url = f"sqlite:///{path}"


@pytest.fixture
def place(tmp_path):
    """A file with a table of effects."""
    place = Somewhere(tmp_path / "store.db")
    with sqlite3.connect(place.path) as connection:
        connection.execute("CREATE TABLE effects (name)")
    connection.close()
    return place


@pytest.fixture
def opened(place):
    """A store over that file."""
    opened = Opened(place)
    yield opened
    opened.close()


class Ways:
    """Handlers that write an effect and the record in one transaction, each in its way."""

    def named(self, place, record):
        """A DB-API connection that is named so."""
        connection = sqlite3.connect(place.path)
        try:
            with connection:
                connection.execute(INSERT)
                record(rifl.DbApiTransaction(connection, sqlite3.paramstyle))
        finally:
            connection.close()

    def cursor(self, place, record):
        """A cursor."""
        connection = sqlite3.connect(place.path)
        try:
            with connection:
                record(connection.cursor())
                connection.execute(INSERT)
        finally:
            connection.close()

    def sqlalchemy_connection(self, place, record):
        """A SQLAlchemy connection whose transaction our record begins."""
        engine = sqlalchemy.create_engine(place.url)
        with engine.connect() as connection:
            record(connection)
            connection.execute(sqlalchemy.text(INSERT))
            connection.commit()
        engine.dispose()

    def sqlalchemy_session(self, place, record):
        """A SQLAlchemy session."""
        engine = sqlalchemy.create_engine(place.url)
        with sqlalchemy.orm.Session(engine) as session, session.begin():
            session.execute(sqlalchemy.text(INSERT))
            record(session)
        engine.dispose()


WAYS = [name for name in vars(Ways) if not name.startswith("_")]


def committed(opened, attempt):
    """What the handler left; on a Mac its commit is waited for by another one."""
    standing = opened.store.committed(attempt)
    return wait(standing) if isinstance(standing, Later) else standing


def effects(place):
    """How many effects are committed."""
    connection = sqlite3.connect(place.path)
    try:
        return connection.execute("SELECT count(*) FROM effects").fetchone()[0]
    finally:
        connection.close()


@pytest.mark.parametrize("way", WAYS)
def test_record_and_effect_commit_together(opened, place, way):
    """One commit holds both, and the record is what stands (DESIGN §1, §6)."""
    attempt = opened.begin(call(opened.client(), 1), ATOMIC)
    getattr(Ways(), way)(place, lambda held: opened.store.transactions.record(attempt, FIRST, held))
    assert committed(opened, attempt) == FIRST
    opened.store.adopt(attempt, FIRST)
    assert opened.answer(attempt.call) == FIRST
    assert effects(place) == 1


@pytest.mark.parametrize("way", WAYS)
def test_a_record_that_stands_undoes_the_rest(opened, place, way):
    """A second record raises, and the effects roll back (DESIGN §6)."""
    attempt = opened.begin(call(opened.client(), 1), ATOMIC)
    ways = Ways()
    ways.cursor(place, lambda held: opened.store.transactions.record(attempt, OTHER, held))
    with pytest.raises(StaleRpc):
        getattr(ways, way)(
            place, lambda held: opened.store.transactions.record(attempt, FIRST, held)
        )
    assert committed(opened, attempt) == OTHER
    assert effects(place) == 1


@pytest.mark.parametrize("mode", ["OFF", "NORMAL", "FULL", "EXTRA"])
def test_an_answer_waits_for_the_disk_whatever_the_connection_does(opened, place, mode):
    """Where the handler's commit does not, one of the store's own after it does (§4.7)."""
    attempt = opened.begin(call(opened.client(), 1), ATOMIC)
    with contextlib.closing(sqlite3.connect(place.path)) as connection, connection:
        connection.execute(f"PRAGMA synchronous={mode}")
        connection.execute("PRAGMA fullfsync=ON")
        connection.execute(INSERT)
        opened.store.transactions.record(attempt, FIRST, connection)
    standing = opened.store.committed(attempt)
    if mode in ("OFF", "NORMAL"):
        assert isinstance(standing, Later)
        before = probes(place)
        standing = standing.wait()
        assert probes(place) == before + 1
    assert standing == FIRST
    opened.store.adopt(attempt, standing)
    assert opened.answer(attempt.call) == FIRST


def probes(place):
    """How many commits of the store's own had nothing else to write."""
    with contextlib.closing(sqlite3.connect(place.path)) as connection:
        return connection.execute("SELECT value FROM rifl_meta WHERE name='probes'").fetchone()[0]


def can_write(place):
    """Whether nobody holds the file's lock."""
    with contextlib.closing(sqlite3.connect(place.path, timeout=0)) as other:
        other.execute("BEGIN IMMEDIATE")
    return True


def test_what_a_refused_record_raises_holds_no_lock(opened, place):
    """The handler closes its connection, the server keeps the error: others may write (§6)."""
    attempt = opened.begin(call(opened.client(), 1), ATOMIC)
    Ways().cursor(place, lambda held: opened.store.transactions.record(attempt, FIRST, held))
    with contextlib.closing(sqlite3.connect(place.path)) as connection:
        connection.execute(INSERT)
        with pytest.raises(StaleRpc) as kept:
            opened.store.transactions.record(attempt, FIRST, connection)
    assert can_write(place)
    assert kept.value.__traceback__ is not None


async def test_so_it_is_with_aiosqlite(opened, place):
    """The same for a coroutine (§6)."""
    attempt = opened.begin(call(opened.client(), 1), ATOMIC)
    Ways().cursor(place, lambda held: opened.store.transactions.record(attempt, FIRST, held))
    async with aiosqlite.connect(place.path) as connection:
        await connection.execute(INSERT)
        with pytest.raises(StaleRpc) as kept:
            await opened.store.transactions.record_async(attempt, FIRST, connection)
    assert can_write(place)
    assert kept.value.__traceback__ is not None


def test_another_database_or_autocommit_is_refused(opened, place, tmp_path):
    """Recovery would not find the record, or it would commit alone (DESIGN §6)."""
    attempt = opened.begin(call(opened.client(), 1), ATOMIC)
    elsewhere = sqlalchemy.create_engine(f"sqlite:///{tmp_path}/other.db")
    alone = sqlalchemy.create_engine(place.url, isolation_level="AUTOCOMMIT")
    for engine, why in ((elsewhere, "could not find"), (alone, "autocommit")):
        with engine.connect() as connection, pytest.raises(WrongDatabase, match=why):
            opened.store.transactions.record(attempt, FIRST, connection)
        engine.dispose()
    with pytest.raises(ValueError, match="none of qmark"):
        rifl.DbApiTransaction(object(), "percent")
    with pytest.raises(WrongDatabase, match="DB-API"):
        rifl.DbApiTransaction(object(), "qmark")


async def test_asynchronous_sessions_record_too(opened, place):
    """SQLAlchemy over aiosqlite, session and connection, with ``await`` (DESIGN §6)."""
    engine = sqlalchemy.ext.asyncio.create_async_engine(
        place.url.replace("sqlite:", "sqlite+aiosqlite:")
    )
    client = opened.client()
    one = opened.begin(call(client, 1), ATOMIC)
    async with sqlalchemy.ext.asyncio.AsyncSession(engine) as session, session.begin():
        await session.execute(sqlalchemy.text(INSERT))
        await opened.store.transactions.record_async(one, FIRST, session)
    two = opened.begin(call(client, 2), ATOMIC)
    async with engine.connect() as connection:
        await opened.store.transactions.record_async(two, OTHER, connection)
        await connection.execute(sqlalchemy.text(INSERT))
        await connection.commit()
    await engine.dispose()
    assert committed(opened, one) == FIRST
    assert committed(opened, two) == OTHER
    assert effects(place) == 2
