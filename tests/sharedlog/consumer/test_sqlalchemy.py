"""Handlers that use SQLAlchemy, in the consumer's transaction (DESIGN-LOG §14, T1, T2)."""

import itertools
import re

import pytest
import sqlalchemy
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sharedlog import InvalidRequest
from sharedlog.testing import die, drain
from tests.helpers.log_servers import shared_postgres
from tests.sharedlog.consumer.world import PostgresDatabase, World

__all__ = ["shared_postgres"]


class Base(DeclarativeBase):
    pass


class Note(Base):
    __tablename__ = "note"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    what: Mapped[str]


@pytest.fixture(params=["sqlite", "postgres"])
def new_world(request, tmp_path):
    count = itertools.count()
    server = request.getfixturevalue("shared_postgres") if request.param == "postgres" else None

    def make(**settings):
        place = tmp_path / f"{next(count)}" if server is None else PostgresDatabase(server)
        world = World(place, **{"orders": 2, "substreams": 1, **settings})
        kind = "SERIAL" if server else "INTEGER"
        connection = world.connect()
        connection.execute(f"CREATE TABLE note (id {kind} PRIMARY KEY, what TEXT)")
        connection.commit()
        connection.close()
        return world

    return make


def notes(world):
    connection = world.connect()
    try:
        return [row[0] for row in connection.execute("SELECT what FROM note ORDER BY id")]
    finally:
        connection.close()


def note(order, effects):
    with Session(effects.sqlalchemy) as session:
        with session.begin_nested():
            session.add(Note(what=order["what"]))
        session.commit()
    statement = sqlalchemy.text("UPDATE note SET what = what || '!' WHERE what = :what")
    effects.sqlalchemy.execute(statement, {"what": order["what"]})


def test_what_sqlalchemy_writes_is_there_once_wherever_a_process_dies(new_world):
    """With the checkpoint: a session's commit flushes, and the consumer commits (T1, T2)."""
    for step in itertools.count(1):
        world = new_world()
        world.looks = note
        died = die(world.consumer(), before=step)
        drain(world.consumer())
        assert notes(world) == ["order 1!", "order 2!"]
        world.check()
        if not died:
            break
    assert step > 5


def test_a_handler_does_not_end_the_transaction_by_sqlalchemy(new_world):
    """``InvalidRequest``, and nothing of it is there (T2)."""
    for end in ("commit", "rollback"):
        world = new_world(orders=1, attempts=1, dead_letters="dead")
        world.log.stream("dead", substreams=1)

        def ends(order, effects, end=end):
            note(order, effects)
            with pytest.raises(InvalidRequest):
                getattr(effects.sqlalchemy, end)()
            raise ValueError("enough")

        world.looks = ends
        drain(world.consumer())
        assert notes(world) == []
        assert world.bills() == {}
        assert len(world.log.read("dead", 0)) == 1


def flushes(effects, twice):
    with Session(effects.sqlalchemy) as session:
        session.add_all(twice)
        session.flush()


def commits(effects, twice):
    session = Session(effects.sqlalchemy)
    session.add_all(twice)
    session.commit()


def rolls_back(effects, twice):
    session = Session(effects.sqlalchemy)
    try:
        session.add_all(twice)
        session.flush()
    except Exception:
        session.rollback()
        raise


def begins(effects, twice):
    with Session(effects.sqlalchemy) as session, session.begin():
        session.add_all(twice)


def by_connection(effects, _):
    try:
        for _ in range(2):
            effects.connection.execute("INSERT INTO note (id, what) VALUES (7, 'x')")
    except Exception:
        effects.connection.rollback()
        raise


@pytest.mark.parametrize("way", [flushes, commits, rolls_back, begins, by_connection])
def test_a_rollback_that_is_refused_does_not_hide_what_it_is_for(new_world, way):
    """SQLAlchemy rolls back by itself: the letter names the constraint that was violated, too."""
    world = new_world(orders=1, attempts=1, dead_letters="dead")
    world.log.stream("dead", substreams=1)
    world.looks = lambda order, effects: way(effects, [Note(id=7, what="x") for _ in range(2)])
    drain(world.consumer())
    (dead,) = world.log.read("dead", 0)
    said = dead.headers["dead-letter-error"].decode()
    assert re.search(
        "^(InvalidRequest|ProgrammingError): .*; after (Integrity|UniqueViolation)", said
    )
    assert notes(world) == []


def test_what_the_database_raises_through_sqlalchemy_does_not_count(new_world):
    """A full disk, a deadlock: it is no less the database's for being wrapped (T5)."""
    world = new_world(orders=1, attempts=2, dead_letters="dead")
    world.log.stream("dead", substreams=1)
    failures = 0

    def full(order, effects):
        nonlocal failures
        (pages,) = effects.connection.execute("PRAGMA page_count").fetchone()
        most = pages if failures < 5 else 1_000_000
        effects.connection.execute(f"PRAGMA max_page_count = {most}")
        failures += failures < 5
        effects.sqlalchemy.execute(
            sqlalchemy.text("INSERT INTO note (what) VALUES (zeroblob(20000))")
        )

    def deadlock(order, effects):
        nonlocal failures
        if failures < 5:
            failures += 1
            raises = "DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = 'deadlock_detected'; END $$"
            effects.sqlalchemy.execute(sqlalchemy.text(raises))

    world.looks = deadlock if isinstance(world.database, PostgresDatabase) else full
    drain(world.consumer())
    world.check()
    assert failures == 5
    assert not world.log.read("dead", 0)
